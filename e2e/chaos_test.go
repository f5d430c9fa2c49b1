package e2e

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// chaosRate is the number of events per second of make chaos.
const chaosRate = 300

// rate is the number of events per second: a quarter of chaosRate in the round that runs beside other
// tests, where each event uses processor time that they need.
func (c *chaos) rate() float64 {
	if *chaosLength == 0 {
		return chaosRate / 4
	}
	return chaosRate
}

// round is what a round reads, and from which kind of server.
type round struct{ follows, relay, events bool }

// rounds returns the kinds of rounds.
func rounds() []round {
	return []round{{}, {events: true}, {relay: true}, {follows: true}, {follows: true, events: true}, {follows: true, relay: true}}
}

// roundOf returns the kind of a seed's round. Two rounds in a row cover both sources, and both the
// whole network and followed accounts. Jetstream has subscribeEvents in every other four rounds.
func roundOf(seed uint64) round {
	r := []round{{}, {follows: true, relay: true}, {relay: true}, {follows: true}}[seed%4]
	r.events = !r.relay && seed&4 != 0
	return r
}

// String names the round in the report.
func (r round) String() string {
	name := "the whole network"
	if r.follows {
		name = "followed accounts"
	}
	if r.relay {
		name += ", from a relay"
	}
	if r.events {
		name += ", from subscribeEvents"
	}
	return name
}

// source names the server that the round reads.
func (r round) source() string {
	if r.relay {
		return "relay"
	}
	return "Jetstream"
}

// chaos is one round: a network, a database, the processes between them, and the
// faults.
type chaos struct {
	t    *testing.T
	seed uint64
	round
	random *rand.Rand // makes the plan; used only by the test's goroutine
	net    *simnet.Net
	machines
	observed
	results
}

// machines are what the processes of a round run on, and how they are started.
type machines struct {
	server *devpg.Server
	disk   *disk // the server's; nil if no small disk can be mounted
	noDisk error // why there is no disk

	pool             *pgxpool.Pool // the oracle's, which does not use the proxy
	stream, database *proxy
	env              []string
	more             []string             // additional variables of the consumers
	program          string               // what the fleet runs: the real binary with a clock that can be stepped
	clocks           map[string]wallClock // by member of the fleet
	notified         string               // a notification socket, like systemd's; nobody acts on its messages
	stop             func()               // stops the events of the network
}

// observed is what is known of what the tables must hold.
type observed struct {
	mu         sync.Mutex // guards the fields that the watcher reads
	fleet      map[string]*process
	everMerged [][2]string            // URLs of links that were merged at any time
	lost       map[*simnet.Entry]bool // events that the server has forgotten unread
	steady     map[string]bool        // the accounts followed since the event with the number since, as the query following selects them
	since      int64

	scripted []string        // accounts that only do what the test scripts; the hub follows them
	byHand   []string        // accounts with a watch of their own
	known    map[string]bool // accounts that were ever followed
	doubts   []string        // accounts with commits that could not be verified
	posted   []*simnet.Entry // posts of the first scripted account that still exist
	holes    []hole
	merged   map[string]string // by URL: the URL of the link into which it is merged
}

// results are what a round reports.
type results struct {
	began     time.Time
	fired     map[string]int
	kills     int
	restarts  int
	slowest   time.Duration // the longest recovery
	after     string        // the fault before the longest recovery
	endWatch  func() responses
	responses responses
	problems  []string // what the comparison found
}

// hole is the time from the first forgotten event to the last. A gap must be
// recorded for it.
type hole struct{ from, to time.Time }

// fleet lists the members by the command that they run.
func fleet() []string { return []string{"consume 1", "consume 2", "work 1", "work 2", "web 1"} }

func newChaos(t *testing.T, seed uint64, r round) *chaos {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: seed, Accounts: 300, Follows: 60, History: 1000, HistorySpan: time.Hour,
		Serving: simnet.Serving{Events: r.events, Relay: simnet.Relay{Silent: seed%8 < 4, Inclusive: seed%16 < 8}}})
	require.NoError(t, err)
	startNetwork(t, n)
	c := &chaos{t: t, seed: seed, round: r, random: rand.New(rand.NewPCG(seed, seed)), net: n,
		observed: observed{fleet: map[string]*process{}, lost: map[*simnet.Entry]bool{}, known: map[string]bool{}, merged: map[string]string{}},
		machines: machines{clocks: map[string]wallClock{}},
		results:  results{fired: map[string]int{}, began: time.Now()}}
	c.chooseScripted()
	c.startServer()
	c.stream = newProxy(t, c.source(), n.Address())
	c.database = newProxy(t, "Postgres", hostOf(t, c.server.URL("weir")))
	direct := c.server.URL("weir")
	url := strings.Replace(direct, hostOf(t, direct), c.database.Listen, 1)
	c.env = append(batching(t, n, url), "WEIR_JETSTREAM=ws://"+c.stream.Listen+"/subscribe", "WEIR_QUEUE_LIMIT=40", "WEIR_QUIET_AFTER=5s")
	if c.relay {
		c.env = append(c.env, "WEIR_SOURCE=firehose", "WEIR_RELAYS=ws://"+c.stream.Listen, "WEIR_JETSTREAM=ws://127.0.0.1:1")
	}
	if c.relay && c.follows {
		c.env = append(c.env, "WEIR_VERIFY=chained")
	}
	if c.follows || c.relay {
		services := "http://" + c.stream.Listen
		c.env = append(c.env, "WEIR_APPVIEW="+services, "WEIR_DIRECTORY="+services, "WEIR_API_INTERVAL=0s")
	}
	if c.follows {
		c.env = append(c.env, "WEIR_START=tip")
	}
	succeed(t, c.env, "migrate")
	c.pool = open(t, direct)
	c.program, err = steppable()
	require.NoError(t, err)
	c.steppableDatabase()
	if c.follows {
		c.follow(c.net.Hub().Handle, "follows")
	}
	t.Cleanup(c.explain)
	systemd := newSystemd(t)
	systemd.ignore()
	c.notified = systemd.path
	for _, name := range fleet() {
		c.clocks[name] = newWallClock(t)
		c.launch(name)
	}
	return c
}

// explain logs the state that a failed round left.
func (c *chaos) explain() {
	if !c.t.Failed() {
		return
	}
	var text string
	err := c.pool.QueryRow(context.Background(), `
SELECT concat_ws(E'\n', (SELECT json_agg(s) FROM streams AS s), (SELECT json_agg(g) FROM gaps AS g), (SELECT json_agg(w) FROM watches AS w),
       (SELECT json_agg(j) FROM (SELECT kind, state, queue, count(*), max(scheduled_at), max(attempted_by[1]), max(errors::text)
           FROM river_job GROUP BY 1, 2, 3) AS j))`).Scan(&text)
	c.t.Logf("%s\n%v", text, err)
}

// startServer starts Postgres, on its own small disk if possible.
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

// chooseScripted picks accounts that the simulation then leaves to the test.
func (c *chaos) chooseScripted() {
	for _, did := range c.net.Follows(c.net.Hub().DID) {
		if a, _ := c.net.Account(did); a.Status == "" && len(c.scripted) < 5 {
			leaveAlone(c.t, c.net, did)
			c.scripted = append(c.scripted, did)
		}
	}
	require.Len(c.t, c.scripted, 5)
}

// play injects every fault of a plan while events happen, and returns when every
// event has been processed.
func (c *chaos) play(plan []fault) {
	c.t.Helper()
	c.t.Logf("-seed %d: %s", c.seed, names(plan))
	c.endWatch = c.watch()
	c.stop = c.events()
	c.recover("the start")
	if c.follows {
		c.settleIn()
		c.rememberFollowed()
	}
	for _, f := range plan {
		c.progress(2 + c.random.IntN(4))
		c.supervise()
		began := time.Now()
		f.do(c)
		lasted := time.Since(began)
		took := c.recover(f.name)
		c.fired[f.name]++
		c.t.Logf("%-47s lasted %6s, recovered after %6s, %d events so far", f.name, lasted.Round(10*time.Millisecond),
			took.Round(10*time.Millisecond), len(c.net.Log().Entries()))
	}
	c.progress(3)
	c.stop()
	if c.relay {
		c.verifyAll()
	}
	if c.follows {
		c.anHourLater()
	}
	if c.relay {
		c.synchronize()
	}
	if c.relay && c.follows {
		c.settle()
	}
	c.drain()
	c.responses = c.endWatch()
}

// mostUnread is the number of unread events above which the rate is reduced.
const mostUnread = 500

// events generates events until the returned function is called. It reduces the rate to a tenth
// while too many events are unread. Events of a fault must be read before the fault is over, so a
// machine that is too slow for the full rate would fall further behind with each fault.
func (c *chaos) events() (stop func()) {
	return background(c.t, func(ctx context.Context) {
		for read := int64(0); ctx.Err() == nil; {
			read = max(read, c.position()) // the position is unknown while Postgres is down
			rate := c.rate()
			if last := c.net.Log().Last(); last != nil && c.number(last)-read > mostUnread {
				rate /= 10
			}
			turn, end := context.WithTimeout(ctx, time.Second)
			c.net.Live(turn, rate)
			end()
		}
	})
}

// live generates events until the returned function is called and returns.
func live(t *testing.T, n *simnet.Net, rate float64) (stop func()) {
	t.Helper()
	return background(t, func(ctx context.Context) { n.Live(ctx, rate) })
}

// background runs do concurrently with the test. The returned function cancels its context and
// waits for it.
func background(t *testing.T, do func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		do(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}
