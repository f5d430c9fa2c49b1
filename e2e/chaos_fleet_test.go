package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// launch starts a member of the fleet.
func (c *chaos) launch(name string) {
	c.t.Helper()
	command, _, _ := strings.Cut(name, " ")
	// without the socket a process does not log that it is ready
	env := append(slices.Clone(c.env), c.clocks[name].env(), "NOTIFY_SOCKET="+c.notified)
	if command == "consume" {
		env = append(env, c.more...)
	}
	p := startProgram(c.t, c.program, env, command)
	c.mu.Lock()
	c.fleet[name] = p
	c.mu.Unlock()
}

func (c *chaos) member(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet[name]
}

// relaunch starts a member again, and counts it.
func (c *chaos) relaunch(name string) {
	c.t.Helper()
	c.launch(name)
	c.restarts++
}

// kill sends SIGKILL to a member, which must still be running.
func (c *chaos) kill(name string) {
	c.t.Helper()
	p := c.member(name)
	p.kill()
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(c.t, ok && status.Signal() == syscall.SIGKILL, "%s ended before it was killed: %s", name, tail(p.stderr.String(), 2000))
	c.kills++
}

// reader returns the consumer that holds the lease, and the one that waits.
func (c *chaos) reader() (reading, waiting string) {
	c.t.Helper()
	eventually.True(c.t, func() bool {
		reading = c.holder()
		return reading != ""
	}, 20*time.Millisecond, "no consumer takes the lease")
	if reading == "consume 1" {
		return reading, "consume 2"
	}
	return reading, "consume 1"
}

// holder is the member that holds the lease; "" if none does.
func (c *chaos) holder() string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var owner string // host/pid/start
	if c.pool.QueryRow(ctx, `SELECT coalesce(lease_owner, '') FROM streams WHERE lease_expires_at > clock_timestamp()`).Scan(&owner) != nil {
		return ""
	}
	for _, name := range fleet()[:2] {
		if strings.Contains(owner, fmt.Sprintf("/%d/", c.member(name).cmd.Process.Pid)) {
			return name
		}
	}
	return ""
}

// supervise fails the test if a process has exited by itself. A process that could not start
// because Postgres was down was never ready: it is started again, as systemd does.
func (c *chaos) supervise() {
	c.t.Helper()
	for _, name := range fleet() {
		p := c.member(name)
		select {
		case <-p.exited:
			logs := p.stderr.String()
			require.False(c.t, strings.Contains(logs, `"msg":"ready"`), "%s exited by itself: %s", name, tail(logs, 3000))
			c.relaunch(name)
		default:
		}
	}
}

// logged counts a text in the logs of the fleet.
func (c *chaos) logged(text string) (times int) {
	for _, name := range fleet() {
		times += strings.Count(c.member(name).stderr.String(), text)
	}
	return times
}

// position is the stream's committed position, in the network's own numbering.
func (c *chaos) position() int64 {
	seq, err := tryCount(c.pool, `SELECT coalesce((anchor ->> 'seq')::bigint, 0) FROM streams`)
	if err != nil {
		return 0
	}
	return c.unshifted(int64(seq))
}

// renumbering is the amount by which simnet.Renumber lowers every number.
const renumbering = 4

// unshifted returns the number that a stored number had before any renumbering.
func (c *chaos) unshifted(seq int64) int64 {
	return seq + int64(renumbering*c.net.Fired()[simnet.Renumber])
}

// number is the number of an entry on the wire, before any renumbering.
func (r round) number(e *simnet.Entry) int64 {
	if r.relay {
		return e.RelaySeq
	}
	return e.Seq
}

// recover waits until an event that happened after the fault is committed. It returns how long that
// took.
func (c *chaos) recover(after string) time.Duration {
	c.t.Helper()
	began := time.Now()
	c.advance("after: %s", after)
	c.supervise()
	took := time.Since(began)
	if took > c.slowest && len(c.fired) > 0 {
		c.slowest, c.after = took, after
	}
	return took
}

// advance waits until an event that happens after this call is committed.
func (c *chaos) advance(message string, args ...any) {
	c.t.Helper()
	mark := c.number(c.net.Log().Last()) + 10 // more than a renumbering lowers a number
	finishes(c.t, 10*time.Millisecond, func() (int, error) { return int(mark - c.position()), nil }, "the stream does not move "+message,
		args...)
}

// progress waits until this many more commits have moved the cursor, so that a fault hits a working
// system.
func (c *chaos) progress(commits int) {
	c.t.Helper()
	seen, last := 0, -1
	finishes(c.t, 5*time.Millisecond, func() (int, error) {
		cursor, err := tryCount(c.pool, `SELECT cursor FROM streams`)
		if err == nil && cursor != last {
			last = cursor
			seen++
		}
		return commits + 1 - seen, err
	}, "the stream does not move")
}

// waitCommitted adds a last post and waits until it is committed. No other events may happen
// meanwhile.
func (c *chaos) waitCommitted() *simnet.Entry {
	c.t.Helper()
	last := c.post("so far")
	finishes(c.t, 10*time.Millisecond, func() (int, error) { return int(c.number(last) - c.position()), nil },
		"the end of the stream is not committed")
	return last
}

// drain waits until every event is committed and processed.
func (c *chaos) drain() *simnet.Entry {
	c.t.Helper()
	last := c.waitCommitted()
	// a job that has failed three times is retried after 81 s
	finishes(c.t, 50*time.Millisecond, func() (int, error) { return unprocessed(c.pool) }, "jobs are left")
	return last
}

// end stops the fleet with SIGTERM.
func (c *chaos) end() {
	c.t.Helper()
	c.supervise()
	for _, name := range fleet() {
		c.member(name).signal(syscall.SIGTERM)
	}
	for _, name := range fleet() {
		require.Zero(c.t, c.member(name).wait(c.t, patience), name)
	}
}
