package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// fault is one thing that goes wrong. It returns once there is evidence that it happened, where
// possible from something other than Weir itself. Without evidence it fails the test.
type fault struct {
	name string
	do   func(c *chaos)
}

// plan returns the faults of a round in random order, each once. Without -chaos it returns half of
// them.
func (c *chaos) plan() []fault {
	plan := c.allFaults()
	c.random.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	if *chaosLength == 0 {
		plan = plan[:len(plan)/2]
	}
	return plan
}

// planned returns the faults with these names, in this order.
func (c *chaos) planned(wanted ...string) (plan []fault) {
	c.t.Helper()
	all := c.allFaults()
	for _, name := range wanted {
		at := slices.IndexFunc(all, func(b fault) bool { return b.name == name })
		require.GreaterOrEqual(c.t, at, 0, "no fault is named %q: expected one of %s", name, names(all))
		plan = append(plan, all[at])
	}
	return plan
}

// allFaults returns every fault that this kind of round can inject.
func (c *chaos) allFaults() []fault {
	all := slices.Concat(processFaults(), c.networkFaults(), c.streamFaults(), clockFaults(), c.retentionFaults())
	if c.relay {
		all = append(all, c.relayFaults()...)
	}
	if c.follows {
		all = append(all, followFaults()...)
	}
	if c.disk != nil {
		all = append(all, fault{"full disk of Postgres", (*chaos).fullDisk})
	}
	return all
}

func names(plan []fault) string {
	all := make([]string, len(plan))
	for i, b := range plan {
		all[i] = b.name
	}
	return strings.Join(all, ", ")
}

// processFaults kill, stop and pause processes, Postgres among them.
func processFaults() []fault {
	return []fault{
		{"SIGKILL of the active consumer", func(c *chaos) {
			reading, _ := c.reader()
			c.kill(reading)
			c.relaunch(reading)
		}},
		{"SIGKILL of the standby consumer", func(c *chaos) {
			_, waiting := c.reader()
			c.kill(waiting)
			c.relaunch(waiting)
		}},
		{"SIGKILL of a worker", func(c *chaos) { c.killAll("work 1") }},
		{"SIGKILL of the web process", func(c *chaos) { c.killAll("web 1") }},
		{"SIGKILL of both consumers", func(c *chaos) { c.killAll("consume 1", "consume 2") }},
		{"SIGKILL of everything", func(c *chaos) { c.killAll(fleet()...) }},
		{"SIGTERM of the active consumer", func(c *chaos) {
			reading, _ := c.reader()
			c.terminate(reading)
		}},
		{"SIGTERM of a worker", func(c *chaos) { c.terminate("work 2") }},
		{"SIGSTOP of the consumer beyond its lease", (*chaos).pauseReader},
		{"SIGSTOP of the workers until the queue is full", (*chaos).pauseWorkers},
		{"links merged, one of them split", (*chaos).mergeLinks},
		{"crash of Postgres", func(c *chaos) { c.crash(func() {}) }},
		{"SIGKILL of the consumer while Postgres is down", func(c *chaos) {
			reading, _ := c.reader()
			c.crash(func() { c.kill(reading) })
			c.relaunch(reading)
		}},
	}
}

// networkFaults are the faults of the connections to the source and to Postgres.
func (r round) networkFaults() []fault {
	var all []fault
	for _, to := range []string{r.source(), "Postgres"} {
		at := func(c *chaos) *proxy {
			if to == "Postgres" {
				return c.database
			}
			return c.stream
		}
		all = append(all,
			fault{"connections to " + to + " cut", func(c *chaos) {
				p := at(c)
				p.cut()
				p.returned(p.accepted.Load())
			}},
			fault{"no connection to " + to, func(c *chaos) {
				p := at(c)
				p.down()
				lasts(time.Duration(300+c.random.IntN(1000)) * time.Millisecond)
				p.up()
				p.returned(p.accepted.Load())
			}},
			fault{"slow connection to " + to, func(c *chaos) {
				p := at(c)
				p.renew(`{"type":"latency","attributes":{"latency":80,"jitter":40}}`) // ms
				defer p.renew()
				c.requireSlow(p, 40*time.Millisecond)
				c.progress(3)
			}},
			fault{"narrow connection to " + to, func(c *chaos) {
				p := at(c)
				p.renew(`{"type":"bandwidth","attributes":{"rate":100}}`) // KB/s
				defer p.renew()
				c.requireSlow(p, 300*time.Millisecond)
				c.progress(3)
			}},
		)
	}
	return all
}

// streamFaults are the faults of the simulated Jetstream and relay.
func (r round) streamFaults() []fault {
	var all []fault
	for _, f := range []simnet.Fault{simnet.Duplicate, simnet.Stale, simnet.Renumber, simnet.Restart, simnet.Stall} {
		all = append(all, fault{r.source() + ": " + string(f), func(c *chaos) { c.inject(f) }})
	}
	for _, p := range r.poisons() {
		all = append(all, fault{r.source() + ": " + string(p.fault), func(c *chaos) { c.poison(p) }})
	}
	if r.events {
		all = append(all, eventsFaults()...)
	}
	return append(all,
		fault{r.source() + ": refuse", func(c *chaos) {
			c.refuse()
			require.NoError(c.t, c.net.Do(simnet.Accept))
		}},
		fault{r.source() + ": too-old", (*chaos).forgetUnread},
		fault{r.source() + ": clock ahead, then right again", (*chaos).clockStep},
		fault{"flood, ten times the rate", (*chaos).flood},
	)
}

// poison is a frame that cannot be read.
type poison struct {
	fault simnet.Fault
	like  string // part of the dead letter's cause, or of the received value
}

func (r round) poisons() []poison {
	if r.relay { // text in such frames need not be UTF-8 and is not read
		return []poison{{simnet.Garbage, "an object"}, {simnet.Oversized, "too long"}}
	}
	return []poison{{simnet.Garbage, "not JSON"}, {simnet.NotUTF8, "UTF-8"}, {simnet.Oversized, "too long"}}
}

// lasts sleeps for the duration of a fault that consists only of time: an outage, or a stream that
// nobody reads.
func lasts(d time.Duration) { time.Sleep(d) }

// killAll kills members of the fleet at once, and starts them again.
func (c *chaos) killAll(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.kill(name)
	}
	for _, name := range names {
		c.relaunch(name)
	}
}

func (c *chaos) terminate(name string) {
	c.t.Helper()
	c.member(name).signal(syscall.SIGTERM)
	require.Zero(c.t, c.member(name).wait(c.t, patience), name)
	c.relaunch(name)
}

// pauseReader stops the active consumer until the other one has taken over, then
// resumes it and waits until it learns that it lost its lease.
func (c *chaos) pauseReader() {
	c.t.Helper()
	before := c.logged("lease_lost")
	reading, waiting := c.reader()
	c.member(reading).pause(c.t)
	eventually.True(c.t, func() bool { return c.holder() == waiting }, 20*time.Millisecond, "the standby does not take over")
	c.member(reading).signal(syscall.SIGCONT)
	eventually.True(c.t, func() bool { return c.logged("lease_lost") > before }, 20*time.Millisecond)
}

// pauseWorkers stops the workers until the full queue pauses the stream.
func (c *chaos) pauseWorkers() {
	c.t.Helper()
	before := c.logged("paused_by_backpressure")
	for _, name := range []string{"work 1", "work 2"} {
		c.member(name).pause(c.t)
		defer c.member(name).signal(syscall.SIGCONT)
	}
	eventually.True(c.t, func() bool { return c.logged("paused_by_backpressure") > before }, 20*time.Millisecond)
}

// crash kills Postgres, calls while, and starts Postgres again.
func (c *chaos) crash(while func()) {
	c.t.Helper()
	started := func() (at time.Time) {
		require.NoError(c.t, c.pool.QueryRow(c.t.Context(), `SELECT pg_postmaster_start_time()`).Scan(&at))
		return at
	}
	before := started()
	require.NoError(c.t, c.server.Crash(c.t.Context()))
	while()
	require.NoError(c.t, c.server.Resume(c.t.Context()))
	c.pool.Reset()
	require.True(c.t, started().After(before))
}

// requireSlow sends a request of its own through the proxy and requires that it
// takes at least this long.
func (c *chaos) requireSlow(p *proxy, least time.Duration) {
	c.t.Helper()
	began := time.Now()
	if p == c.database {
		conn, err := pgx.Connect(c.t.Context(), c.through())
		require.NoError(c.t, err)
		var large string
		require.NoError(c.t, conn.QueryRow(c.t.Context(), `SELECT repeat('x', 60000)`).Scan(&large))
		require.NoError(c.t, conn.Close(c.t.Context()))
	} else {
		response, err := http.Get("http://" + p.Listen + "/admin/truth") // of the test's own server
		require.NoError(c.t, err)
		_, err = io.CopyN(io.Discard, response.Body, 60000)
		require.NoError(c.t, err)
		require.NoError(c.t, response.Body.Close())
	}
	require.Greater(c.t, time.Since(began), least, "the connection to %s is not slower", p.Name)
}

// through is the URL of the database that the fleet uses, by way of the proxy.
func (c *chaos) through() string {
	for _, pair := range c.env {
		if at, ok := strings.CutPrefix(pair, "DATABASE_URL="); ok {
			return at
		}
	}
	return ""
}

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u.Host
}

// inject repeats a network fault until it has reached a client.
func (c *chaos) inject(f simnet.Fault) {
	c.t.Helper()
	before := c.net.Fired()[f]
	eventually.True(c.t, func() bool {
		require.NoError(c.t, c.net.Do(f))
		return c.net.Fired()[f] > before
	}, 50*time.Millisecond, "%s reaches no client", f)
}

// refuse ends the connections and refuses new ones.
func (c *chaos) refuse() {
	c.t.Helper()
	before := c.net.Fired()[simnet.Refuse]
	require.NoError(c.t, c.net.Do(simnet.Refuse))
	c.inject(simnet.Cut)
	eventually.True(c.t, func() bool { return c.net.Fired()[simnet.Refuse] > before }, 20*time.Millisecond)
}

// poison sends an unreadable frame until it is among the dead letters.
func (c *chaos) poison(p poison) {
	c.t.Helper()
	seen := func() int {
		n, err := tryCount(c.pool, fmt.Sprintf(`
			SELECT coalesce(sum(count), 0) FROM dead_letters WHERE concat_ws(' ', cause, expected, received) LIKE '%%%s%%'`, p.like))
		if err != nil {
			return -1
		}
		return n
	}
	before := seen()
	eventually.True(c.t, func() bool {
		c.inject(p.fault)
		c.advance("%s", p.fault) // past the frame: otherwise it was lost with its connection
		return seen() > max(before, 0)
	}, 20*time.Millisecond, "%s does not become a dead letter", p.fault)
}

// clockStep sets the server's clock ahead until a consumer has received events from the future,
// then corrects it.
func (c *chaos) clockStep() {
	c.t.Helper()
	before := c.net.Fired()[simnet.Ahead]
	c.net.StepClock(time.Duration(2+c.random.IntN(10)) * time.Second)
	eventually.True(c.t, func() bool { return c.net.Fired()[simnet.Ahead] > before+50 }, 20*time.Millisecond)
	c.net.StepClock(0)
}

// flood generates as many events as make chaos does in twenty seconds, ten times as fast.
func (c *chaos) flood() {
	c.t.Helper()
	until := c.net.Log().Last().Seq + 20*chaosRate
	stop := live(c.t, c.net, 9*chaosRate)
	defer stop()
	eventually.True(c.t, func() bool { return c.net.Log().Last().Seq >= until }, 20*time.Millisecond)
}

// fullDisk fills the server's disk until a process receives the error. Before that it starts a new
// WAL segment: without space for the next one Postgres would crash, which is another fault.
func (c *chaos) fullDisk() {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), `SELECT pg_switch_wal()`)
	require.NoError(c.t, err)
	_, err = c.pool.Exec(c.t.Context(), `SELECT pg_logical_emit_message(true, 'weir', 'a fresh segment')`)
	require.NoError(c.t, err)
	const full = "SQLSTATE 53100"
	before := c.logged(full)
	c.disk.fill()
	eventually.True(c.t, func() bool { return c.logged(full) > before }, 20*time.Millisecond)
	c.disk.free()
	crashed := false
	eventually.True(c.t, func() bool {
		crashed = syscall.Kill(c.server.PID(), 0) != nil
		_, err := tryCount(c.pool, `SELECT 1`)
		return crashed || err == nil
	}, 20*time.Millisecond, "Postgres neither responds nor ends")
	if !crashed {
		return
	}
	c.t.Log("Postgres crashed on the full disk: it is started again")
	require.NoError(c.t, c.server.Crash(c.t.Context()))
	require.NoError(c.t, c.server.Resume(c.t.Context()))
}
