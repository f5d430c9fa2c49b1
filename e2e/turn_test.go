package e2e

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// How many tests run at once for each core: more if the cores are idle, because the processes of a
// test often wait for each other and for the network, and fewer if the machine is busy. Many tests
// generate events by the clock, and processes without processor time reach their time limits and
// wait for retries.
const (
	atOnceIdle = 6
	atOnce     = 3
	atOnceBusy = 1
)

// The mean number of threads, for each core, that run or wait for a core.
const (
	idle = 2 // below this, cores are idle at times
	busy = 6 // above this, another test would only prolong the others
)

// longest are the tests that take most time, the longest first. Such a test must start early, or it
// prolongs the whole run.
var longest = []string{
	"TestChaos", "TestFollowedRound", "TestWeekOfTwoNetworks", "TestKillInExpiry", "TestChainShowsWhatARelayLeavesOut", "TestKilledServeRefusesForgeries",
	"TestKilledServeReadsRelay", "TestKilledArchive", "TestRotationReadLateLosesNothing", "TestRollingRestart", "TestSoak", "TestTrace",
}

// turns lets tests begin: the longest first, whatever the order in which package testing
// wakes them.
type turns struct {
	mu      sync.Mutex
	running int
	queue   []*turn

	cores    int
	runnable func() float64 // returns how many threads run or wait for a core
	load     float64        // mean of runnable over about two seconds
	ticking  bool
}

// turn is a test that waits.
type turn struct {
	rank  int // the lowest begins first
	begin chan struct{}
}

var running = newTurns(runtime.GOMAXPROCS(0), runnable)

// newTurns returns the turns of a machine that counts as busy until its load is known.
func newTurns(cores int, runnable func() float64) *turns {
	return &turns{cores: cores, runnable: runnable, load: float64(busy*cores + 1)}
}

// room returns how many tests may run at once.
func (r *turns) room() int {
	switch load := r.load / float64(r.cores); {
	case load < idle:
		return atOnceIdle * r.cores
	case load <= busy:
		return atOnce * r.cores
	}
	return atOnceBusy * r.cores
}

// runnable returns how many threads of the machine run or wait for a core. Where the kernel does not
// report it, the machine counts as neither idle nor busy.
func runnable() float64 {
	unknown := float64(idle * runtime.GOMAXPROCS(0))
	text, err := os.ReadFile("/proc/loadavg") // 0.42 0.37 0.30 2/345 6789
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 4 {
		return unknown
	}
	count, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseFloat(count, 64)
	if err != nil {
		return unknown
	}
	return n
}

// parallel runs a test beside others, and returns when its turn has come. Package testing resumes
// no parallel test before all of them are in the queue.
func parallel(t *testing.T) {
	t.Helper()
	w := running.enter(t.Name())
	t.Parallel()
	running.admit()
	<-w.begin
	t.Cleanup(running.leave)
}

func (r *turns) enter(name string) *turn {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &turn{rank: math.MaxInt, begin: make(chan struct{})}
	if at := slices.Index(longest, name); at >= 0 {
		w.rank = at
	}
	at := len(r.queue)
	for at > 0 && r.queue[at-1].rank > w.rank {
		at--
	}
	r.queue = slices.Insert(r.queue, at, w)
	return w
}

// Further tests begin at least this far apart, so that the load can follow.
const (
	lookEvery   = 200 * time.Millisecond
	looksInMean = 10
)

// admit lets those of the queue begin for which there is room however busy the machine is.
func (r *turns) admit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.running < atOnceBusy*r.cores && len(r.queue) > 0 {
		r.next()
	}
	if len(r.queue) > 0 && !r.ticking {
		r.ticking = true
		time.AfterFunc(lookEvery, r.tick)
	}
}

// tick lets one more begin if there is room for it.
func (r *turns) tick() {
	r.mu.Lock()
	r.ticking = false
	r.load += (r.runnable() - r.load) / looksInMean
	if r.running < r.room() && len(r.queue) > 0 {
		r.next()
	}
	r.mu.Unlock()
	r.admit()
}

func (r *turns) next() {
	r.running++
	close(r.queue[0].begin)
	r.queue = r.queue[1:]
}

func (r *turns) leave() {
	r.mu.Lock()
	r.running--
	r.mu.Unlock()
	r.admit()
}

// TestLongestBeginFirst shows that the longest tests in the queue begin first, and that a busy
// machine runs one for each core.
func TestLongestBeginFirst(t *testing.T) {
	parallel(t)
	r := newTurns(2, func() float64 { return 13 })
	var queue []*turn
	for _, name := range []string{"TestOne", longest[1], "TestTwo", longest[0], "TestThree"} {
		queue = append(queue, r.enter(name))
	}
	began := func() (which []int) {
		for at, w := range queue {
			select {
			case <-w.begin:
				which = append(which, at)
			default:
			}
		}
		return which
	}
	require.Empty(t, began())
	r.admit()
	require.Equal(t, []int{1, 3}, began())
	r.leave()
	require.Equal(t, []int{0, 1, 3}, began())
	r.leave()
	r.leave()
	require.Equal(t, []int{0, 1, 2, 3, 4}, began())
}

// TestBusyMachineRunsFewerTests: one for each core; more, one by one, once it is less busy; most if
// it is idle.
func TestBusyMachineRunsFewerTests(t *testing.T) {
	parallel(t)
	synctest.Test(t, func(t *testing.T) {
		load := 13.0
		r := newTurns(2, func() float64 { return load })
		for range 20 {
			r.enter("TestOne")
		}
		settled := func(runnable float64) int {
			load = runnable
			time.Sleep(time.Minute)
			return r.running
		}
		r.admit()
		require.Equal(t, 2, r.running)
		require.Equal(t, 2, settled(13))
		r.leave()
		require.Equal(t, 2, r.running)
		require.Equal(t, 6, settled(11))
		require.Equal(t, 12, settled(2))
		require.Equal(t, 12, settled(11))
		for range 9 {
			r.leave()
		}
		require.Equal(t, 3, r.running)
		require.Equal(t, 6, settled(11))
		for range 6 {
			r.leave()
		}
		require.Equal(t, 2, r.running)
		require.Equal(t, 4, settled(2))
		require.Empty(t, r.queue)
	})
}

// TestEachTestWaitsForItsTurn shows that each test calls parallel, and that the tests in longest
// exist.
func TestEachTestWaitsForItsTurn(t *testing.T) {
	parallel(t)
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	known := map[string]bool{}
	test, unbounded := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`), regexp.MustCompile(`(?m)^\tt\.Parallel\(\)`)
	for _, name := range files {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, found := range test.FindAllSubmatch(source, -1) {
			known[string(found[1])] = true
		}
		require.True(t, name == "turn_test.go" || !unbounded.Match(source), "%s: call parallel(t) instead of t.Parallel()", name)
	}
	for _, name := range longest {
		require.Contains(t, known, name)
	}
}
