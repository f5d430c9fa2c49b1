package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/devpg"
	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// chaosRate is how many events happen in a second.
const chaosRate = 300

// TestChaos has a fleet of processes store a simulated network while everything
// around them breaks, and then compares the tables with the fold of the
// network's log. Nothing of a round is left out: a fault that cannot be shown to
// have happened fails the test.
//
// WEIR_CHAOS says how long it goes on, in whole rounds; one round when it is not
// set. WEIR_SEED repeats the plan and the network of an earlier run, though not
// its timing, which is the machine's. WEIR_REPORT names a file for the report.
func TestChaos(t *testing.T) {
	t.Parallel()
	c := newChaos(t, seed(t))
	answers := c.watch()
	c.stop = live(t, c.net, chaosRate)
	c.recover("the start")
	for until := time.Now().Add(chaosLength(t)); c.rounds == 0 || time.Now().Before(until); c.rounds++ {
		plan := c.plan()
		t.Logf("round %d: %s", c.rounds+1, names(plan))
		for _, b := range plan {
			c.progress(2 + c.random.IntN(4))
			began := time.Now()
			b.do(c)
			lasted := time.Since(began)
			took := c.recover(b.name)
			c.fired[b.name]++
			t.Logf("%-47s lasted %6s, back after %6s, %d events so far", b.name, lasted.Round(10*time.Millisecond), took.Round(10*time.Millisecond), len(c.net.Log().Entries()))
		}
	}
	c.progress(3)
	c.stop()
	c.drain()
	c.answers = answers()
	c.end()
	c.judge()
}

// seed is that of WEIR_SEED, or a new one.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if given := os.Getenv("WEIR_SEED"); given != "" {
		var err error
		s, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err, "WEIR_SEED")
	}
	t.Logf("WEIR_SEED=%d repeats this plan", s)
	return s
}

func chaosLength(t *testing.T) time.Duration {
	t.Helper()
	length, err := time.ParseDuration(cmp.Or(os.Getenv("WEIR_CHAOS"), "0s"))
	require.NoError(t, err, "WEIR_CHAOS")
	return length
}

// chaos is a network, a database, the processes between them, and what is done
// to them all.
type chaos struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand // of the plan: used by the test's goroutine alone
	net    *simnet.Net
	server *devpg.Server
	disk   *disk // of the server; nil where none can be made small
	noDisk error // why

	pool             *pgxpool.Pool // past the proxy: the judge's
	stream, database *proxy
	env              []string
	program          string               // what the fleet runs: the real binary, whose clock can be stepped
	clocks           map[string]wallClock // of each of the fleet
	stop             func()               // ends what happens on the network

	mu    sync.Mutex // guards fleet: the watcher looks into it
	fleet map[string]*process

	lost  map[*simnet.Entry]bool // events that the server has forgotten unread
	holes []hole

	began    time.Time
	rounds   int
	fired    map[string]int
	kills    int
	restarts int
	slowest  time.Duration // to recover
	after    string        // what
	answers  answers
}

// hole is what a gap must be recorded for: from the first event that was
// forgotten to the last.
type hole struct{ from, to time.Time }

// The members of the fleet, by the command they run.
func fleet() []string { return []string{"consume 1", "consume 2", "work 1", "work 2", "web 1"} }

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: seed, Accounts: 300, History: 1000, HistorySpan: time.Hour})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	c := &chaos{t: t, seed: seed, random: rand.New(rand.NewPCG(seed, seed)), net: n, fleet: map[string]*process{}, clocks: map[string]wallClock{},
		lost: map[*simnet.Entry]bool{}, fired: map[string]int{}, began: time.Now()}
	c.startServer()
	c.stream = newProxy(t, "Jetstream", n.Address())
	c.database = newProxy(t, "Postgres", hostOf(t, c.server.URL("weir")))
	direct := c.server.URL("weir")
	url := strings.Replace(direct, hostOf(t, direct), c.database.Listen, 1)
	c.env = append(reads(n, url), "WEIR_JETSTREAM=ws://"+c.stream.Listen+"/subscribe",
		"WEIR_BATCH_EVENTS=100", "WEIR_BATCH_EVERY=50ms", // small ones by insertion, large ones by COPY
		"WEIR_QUEUE_LIMIT=40", "WEIR_GAP_THRESHOLD=1s")
	succeed(t, c.env, "migrate")
	c.pool = open(t, direct)
	c.program, err = steppable()
	require.NoError(t, err)
	c.steppableDatabase()
	for _, name := range fleet() {
		c.clocks[name] = newWallClock(t)
		c.launch(name)
	}
	return c
}

// startServer starts the Postgres: on a disk of its own, where one can be had.
func (c *chaos) startServer() {
	c.t.Helper()
	if c.disk, c.noDisk = newDisk(c.t); c.noDisk != nil {
		c.server = schematest.Server(c.t)
		return
	}
	server, err := devpg.Start(c.t.Context(), devpg.Options{Dir: c.disk.dir + "/postgres", Ephemeral: true})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, server.Stop(context.Background())) })
	c.server = server
}

// launch starts a member of the fleet, for the first time or again.
func (c *chaos) launch(name string) {
	c.t.Helper()
	command, _, _ := strings.Cut(name, " ")
	p := startProgram(c.t, c.program, append(slices.Clone(c.env), c.clocks[name].env()), command)
	c.mu.Lock()
	c.fleet[name] = p
	c.mu.Unlock()
}

func (c *chaos) member(name string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fleet[name]
}

// relaunch starts a member that has been ended.
func (c *chaos) relaunch(name string) {
	c.t.Helper()
	c.launch(name)
	c.restarts++
}

// kill ends a member without a warning, and does not start it again.
func (c *chaos) kill(name string) {
	c.t.Helper()
	p := c.member(name)
	p.kill()
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(c.t, ok && status.Signal() == syscall.SIGKILL, "%s ended before it was killed: %s", name, tail(p.stderr.String(), 2000))
	c.kills++
}

// reader is the consumer that holds the lease; the other one waits.
func (c *chaos) reader() (reading, waiting string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		reading = c.holder()
		return reading != ""
	}, time.Minute, 20*time.Millisecond, "nobody takes the lease")
	if reading == "consume 1" {
		return reading, "consume 2"
	}
	return reading, "consume 1"
}

// holder is the member that holds the lease; "" while none does.
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

// standing fails the test when a process has ended that nobody has ended.
func (c *chaos) standing() {
	c.t.Helper()
	for _, name := range fleet() {
		select {
		case <-c.member(name).exited:
			require.Fail(c.t, name+" has ended by itself", tail(c.member(name).stderr.String(), 3000))
		default:
		}
	}
}

// told is how often the fleet has logged something.
func (c *chaos) told(what string) (times int) {
	for _, name := range fleet() {
		times += strings.Count(c.member(name).stderr.String(), what)
	}
	return times
}

// place is where the stream stands, by the network's own numbering.
func (c *chaos) place() int64 {
	seq, err := tryCount(c.pool, `SELECT coalesce((anchor ->> 'seq')::bigint, 0) FROM streams`)
	if err != nil {
		return 0
	}
	return int64(seq) + int64(4*c.net.Fired()[simnet.Renumber])
}

// recover waits until an event has been committed that happened after the blow,
// and answers how long that took.
func (c *chaos) recover(after string) time.Duration {
	c.t.Helper()
	began := time.Now()
	mark := c.net.Log().Last().Seq + 10 // beyond what a renumbering shifts
	require.Eventually(c.t, func() bool { return c.place() >= mark }, 3*time.Minute, 10*time.Millisecond, "the stream does not move after: %s", after)
	c.standing()
	took := time.Since(began)
	if took > c.slowest && c.rounds+len(c.fired) > 0 {
		c.slowest, c.after = took, after
	}
	return took
}

// progress waits until so many more commits have moved the cursor: a blow must
// meet a system at work.
func (c *chaos) progress(commits int) {
	c.t.Helper()
	seen, last := 0, -1
	require.Eventually(c.t, func() bool {
		cursor, err := tryCount(c.pool, `SELECT cursor FROM streams`)
		if err == nil && cursor != last {
			last = cursor
			seen++
		}
		return seen > commits
	}, 2*time.Minute, 5*time.Millisecond, "the stream does not move")
}

// drain waits until everything that happened is committed and processed.
func (c *chaos) drain() {
	c.t.Helper()
	last := lastAsked(c.net).Seq
	require.Eventually(c.t, func() bool { return c.place() == last }, 3*time.Minute, 20*time.Millisecond, "the end of the stream is not committed")
	require.Eventually(c.t, func() bool {
		left, err := tryCount(c.pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state NOT IN ('completed', 'cancelled', 'discarded')`)
		return err == nil && left == 0
	}, 8*time.Minute, 50*time.Millisecond, "jobs are left") // one that has failed thrice waits 81 s
}

// end stops the fleet in order.
func (c *chaos) end() {
	c.t.Helper()
	for _, name := range fleet() {
		c.member(name).signal(syscall.SIGTERM)
	}
	for _, name := range fleet() {
		require.Zero(c.t, c.member(name).wait(c.t, time.Minute), name)
	}
}

// judge compares, and reports.
func (c *chaos) judge() {
	t := c.t
	t.Helper()
	told := slices.DeleteFunc(c.net.Log().Entries(), func(e *simnet.Entry) bool { return c.lost[e] })
	truth := fold(told, "app.bsky.feed.post")
	truth.parkedExpected = 3 // garbage, what is not UTF-8, and what is too long, however often they came
	truth.gapsExpected = len(c.holes)
	end := time.Now().Truncate(time.Second).Add(time.Second).UTC()
	problems, err := truth.problems(t.Context(), c.pool, end)
	require.NoError(t, err)
	lost, doubled := truth.amiss(t, c.pool)
	c.report(truth, lost, doubled)
	require.Empty(t, problems, strings.Join(problems, "\n"))
	require.Zero(t, lost+doubled)
	for _, h := range c.holes {
		require.Equal(t, 1, count(t, c.pool, fmt.Sprintf(`SELECT count(*) FROM gaps WHERE closed_at IS NULL AND from_at <= to_timestamp(%d / 1000000.0) AND to_at >= to_timestamp(%d / 1000000.0)`,
			h.from.UnixMicro(), h.to.UnixMicro())), "a gap over what the server forgot, %s to %s", h.from, h.to)
	}
	for _, window := range []time.Duration{time.Hour, 24 * time.Hour} {
		want := truth.ranking(end, window, 1000)
		got := ranking(t, c.env, strconv.Itoa(int(window.Hours()))+"h", end.Format(time.RFC3339))
		require.Len(t, got, len(want))
		require.NotEmpty(t, want)
		for i := range want {
			require.Equal(t, want[i].URL, got[i].URL, "place %d", i+1)
			require.Equal(t, want[i].Sharers, got[i].Sharers, "place %d", i+1)
		}
	}
	require.Empty(t, c.answers.wrong, strings.Join(c.answers.wrong, "\n"))
	require.Empty(t, c.answers.silent, strings.Join(c.answers.silent, "\n"))
	require.NotEmpty(t, c.answers.statuses)
	require.Greater(t, count(t, c.pool, `SELECT max(epoch) FROM streams`), c.rounds, "the lease went from one to the next")
}

// live makes events happen until the returned function is called: after it,
// nothing happens any more.
func live(t *testing.T, n *simnet.Net, rate float64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Live(ctx, rate)
	}()
	return func() {
		cancel()
		<-ended
	}
}
