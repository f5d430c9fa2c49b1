package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
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

// What a round reads.
const (
	wholeNetwork     = "the whole network"
	followedAccounts = "followed accounts"
)

// TestChaos has a fleet of processes store a simulated network while everything
// around them breaks, and then compares the tables with the fold of the
// network's log. Each round has a network, a database and a fleet of its own;
// every second one follows accounts. Nothing of a round is left out: a fault
// that cannot be shown to have happened fails the test.
//
// WEIR_CHAOS says how long it goes on, in whole rounds; one round when it is not
// set. WEIR_SEED begins with the round of that seed: an even one is of the whole
// network, an odd one of followed accounts. It repeats the plan and the network,
// though not the timing, which is the machine's. WEIR_REPORT names a file for
// the report.
func TestChaos(t *testing.T) {
	t.Parallel()
	began, s := time.Now(), seed(t)
	var all chaosReport
	for until := began.Add(chaosLength(t)); len(all) == 0 || time.Now().Before(until); s++ {
		kind := wholeNetwork
		if s%2 == 1 {
			kind = followedAccounts
		}
		good := t.Run(fmt.Sprintf("round %d of %s", len(all)+1, kind), func(t *testing.T) {
			c := newChaos(t, s, kind)
			c.play(c.plan())
			all = append(all, c.compare())
			all.publish(t, time.Since(began))
			c.require()
		})
		require.True(t, good, "WEIR_SEED=%d repeats this round", s)
	}
}

// TestFollowedRound is what is new in a round of followed accounts, in little:
// they come and go, the server forgets, and processes are killed meanwhile.
func TestFollowedRound(t *testing.T) {
	t.Parallel()
	c := newChaos(t, seed(t), followedAccounts)
	c.play(c.planned("followed and unfollowed, in SQL", "short retention, after SIGKILL of the consumers", "SIGKILL of a worker"))
	c.compare()
	c.require()
}

// seed is that of WEIR_SEED, or a new one.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano()) &^ 1
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

// chaos is one round: a network, a database, the processes between them, and
// what is done to them all.
type chaos struct {
	t      *testing.T
	seed   uint64
	kind   string     // ofEveryone or ofFollowed
	random *rand.Rand // of the plan: used by the test's goroutine alone
	net    *simnet.Net
	server *devpg.Server
	disk   *disk // of the server; nil where none can be made small
	noDisk error // why

	pool             *pgxpool.Pool // past the proxy: the judge's
	stream, database *proxy
	env              []string
	more             []string             // of the consumers' environment
	program          string               // what the fleet runs: the real binary, whose clock can be stepped
	clocks           map[string]wallClock // of each of the fleet
	stop             func()               // ends what happens on the network

	mu    sync.Mutex // guards fleet: the watcher looks into it
	fleet map[string]*process

	scripted []string               // accounts that only do what the test says; followed in a round that follows
	byHand   []string               // accounts followed by a row in watches of their own
	known    map[string]bool        // who has ever been followed, or is no choice for it
	posted   []*simnet.Entry        // posts of the first friend, which stand
	lost     map[*simnet.Entry]bool // events that the server has forgotten unread
	holes    []hole

	began     time.Time
	fired     map[string]int
	kills     int
	restarts  int
	slowest   time.Duration // to recover
	after     string        // what
	endWatch  func() responses
	responses responses
	problems  []string // what the judge has to say
}

// hole is what a gap must be recorded for: from the first event that was
// forgotten to the last.
type hole struct{ from, to time.Time }

// The members of the fleet, by the command they run.
func fleet() []string { return []string{"consume 1", "consume 2", "work 1", "work 2", "web 1"} }

func newChaos(t *testing.T, seed uint64, kind string) *chaos {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: seed, Accounts: 300, Follows: 60, History: 1000, HistorySpan: time.Hour})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	c := &chaos{t: t, seed: seed, kind: kind, random: rand.New(rand.NewPCG(seed, seed)), net: n, fleet: map[string]*process{}, clocks: map[string]wallClock{},
		lost: map[*simnet.Entry]bool{}, known: map[string]bool{}, fired: map[string]int{}, began: time.Now()}
	c.chooseScripted()
	c.startServer()
	c.stream = newProxy(t, "Jetstream", n.Address())
	c.database = newProxy(t, "Postgres", hostOf(t, c.server.URL("weir")))
	direct := c.server.URL("weir")
	url := strings.Replace(direct, hostOf(t, direct), c.database.Listen, 1)
	c.env = append(reads(n, url), "WEIR_JETSTREAM=ws://"+c.stream.Listen+"/subscribe",
		"WEIR_BATCH_EVENTS=100", "WEIR_BATCH_INTERVAL=50ms", // small ones by insertion, large ones by COPY
		"WEIR_QUEUE_LIMIT=40")
	if kind == followedAccounts {
		services := "http://" + c.stream.Listen
		c.env = append(c.env, "WEIR_START=tip", "WEIR_APPVIEW="+services, "WEIR_DIRECTORY="+services, "WEIR_API_INTERVAL=0s")
	}
	succeed(t, c.env, "migrate")
	c.pool = open(t, direct)
	c.program, err = steppable()
	require.NoError(t, err)
	c.steppableDatabase()
	if kind == followedAccounts {
		c.follow(c.net.Hub().Handle, "follows")
	}
	t.Cleanup(c.explain)
	for _, name := range fleet() {
		c.clocks[name] = newWallClock(t)
		c.launch(name)
	}
	return c
}

// explain says where a round that failed has left everything.
func (c *chaos) explain() {
	if !c.t.Failed() {
		return
	}
	var text string
	err := c.pool.QueryRow(context.Background(), `
SELECT concat_ws(E'\n', (SELECT json_agg(s) FROM streams AS s), (SELECT json_agg(g) FROM gaps AS g), (SELECT json_agg(w) FROM watches AS w),
       (SELECT json_agg(j) FROM (SELECT kind, state, queue, count(*), max(scheduled_at), max(attempted_by[1]), max(errors::text) FROM river_job GROUP BY 1, 2, 3) AS j))`).Scan(&text)
	c.t.Logf("%s\n%v", text, err)
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

// befriend has some accounts never do anything by chance, so that the test
// can.
func (c *chaos) chooseScripted() {
	for _, did := range c.net.Follows(c.net.Hub().DID) {
		if a, _ := c.net.Account(did); a.Status == "" && len(c.scripted) < 5 {
			require.NoError(c.t, c.net.Deactivate(did))
			require.NoError(c.t, c.net.Reactivate(did)) // chance leaves alone what was set by hand
			c.scripted = append(c.scripted, did)
		}
	}
	require.Len(c.t, c.scripted, 5)
}

// play has every blow of a plan fall while events happen, and ends when all that
// happened has been taken in.
func (c *chaos) play(plan []fault) {
	c.t.Helper()
	c.t.Logf("WEIR_SEED=%d: %s", c.seed, names(plan))
	c.endWatch = c.watch()
	c.stop = live(c.t, c.net, chaosRate)
	c.recover("the start")
	if c.kind == followedAccounts {
		c.settleIn()
	}
	for _, b := range plan {
		c.progress(2 + c.random.IntN(4))
		began := time.Now()
		b.do(c)
		lasted := time.Since(began)
		took := c.recover(b.name)
		c.fired[b.name]++
		c.t.Logf("%-47s lasted %6s, back after %6s, %d events so far", b.name, lasted.Round(10*time.Millisecond), took.Round(10*time.Millisecond), len(c.net.Log().Entries()))
	}
	c.progress(3)
	c.stop()
	if c.kind == followedAccounts {
		c.anHourLater()
	}
	c.drain()
	c.responses = c.endWatch()
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
