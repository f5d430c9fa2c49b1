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

// atOnce is how many tests run at once for each core. Their processes wait for each other and for
// the network. A higher number does not shorten the run: many tests generate events by the clock,
// and processes without processor time reach their time limits and wait for retries.
const atOnce = 3

// longest are the tests that take most time, the longest first. Such a test must start early, or it
// prolongs the whole run.
var longest = []string{
	"TestChaos", "TestFollowedRound", "TestWeekOfTwoNetworks", "TestKillInExpiry", "TestChainShowsWhatARelayLeavesOut", "TestKilledServeRefusesForgeries",
	"TestKilledServeReadsRelay", "TestKilledArchive", "TestRotationReadLateLosesNothing", "TestRollingRestart", "TestSoak", "TestTrace",
}

// busy is how many threads for each core run or wait for one, above which only one test
// runs for each core. More would not end sooner, and would exceed their time limits.
const busy = 6

// turns lets tests begin: the longest first, whatever the order in which package testing
// wakes them.
type turns struct {
	mu      sync.Mutex
	free    int
	running int
	queue   []*turn

	calm     int            // how many tests begin at once; further ones begin one by one, unless the machine is busy
	runnable func() float64 // returns how many threads run or wait for a core
	load     float64        // mean of runnable over ten seconds
	most     float64        // the load of a busy machine
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
	most := float64(busy * cores)
	return &turns{free: atOnce * cores, calm: cores, runnable: runnable, load: most + 1, most: most}
}

// runnable returns how many threads of the machine run or wait for a core; 0 where the kernel
// does not report it.
func runnable() float64 {
	text, err := os.ReadFile("/proc/loadavg") // 0.42 0.37 0.30 2/345 6789
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 4 {
		return 0
	}
	count, _, _ := strings.Cut(fields[3], "/")
	n, err := strconv.ParseFloat(count, 64)
	if err != nil {
		return 0
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

// admit lets those of the queue begin that need not know how busy the machine is.
func (r *turns) admit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.running < r.calm && len(r.queue) > 0 {
		r.next()
	}
	if len(r.queue) > 0 && !r.ticking {
		r.ticking = true
		time.AfterFunc(2*time.Second, r.tick)
	}
}

// tick lets one more begin if there is room for it and the machine is not busy.
func (r *turns) tick() {
	r.mu.Lock()
	r.ticking = false
	r.load += (r.runnable() - r.load) / 5
	if r.free > 0 && len(r.queue) > 0 && r.load <= r.most {
		r.next()
	}
	r.mu.Unlock()
	r.admit()
}

func (r *turns) next() {
	r.free--
	r.running++
	close(r.queue[0].begin)
	r.queue = r.queue[1:]
}

func (r *turns) leave() {
	r.mu.Lock()
	r.free++
	r.running--
	r.mu.Unlock()
	r.admit()
}

// TestLongestBeginFirst shows that the longest tests in the queue begin first, and no more at once
// than there are free places.
func TestLongestBeginFirst(t *testing.T) {
	parallel(t)
	r := newTurns(2, runnable)
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

// TestBusyMachineRunsFewerTests: one for each core, and the others one by one once it is less
// busy.
func TestBusyMachineRunsFewerTests(t *testing.T) {
	parallel(t)
	synctest.Test(t, func(t *testing.T) {
		load := 13.0
		r := newTurns(2, func() float64 { return load })
		for range 10 {
			r.enter("TestOne")
		}
		r.admit()
		require.Equal(t, 2, r.running)
		time.Sleep(time.Minute)
		require.Equal(t, 2, r.running)
		r.leave()
		require.Equal(t, 2, r.running)
		load = 11
		time.Sleep(time.Minute)
		require.Equal(t, 6, r.running)
		require.Zero(t, r.free)
		require.Len(t, r.queue, 3)
		for range 6 {
			r.leave()
		}
		require.Len(t, r.queue, 1)
		require.Equal(t, 2, r.running)
		r.leave()
		require.Empty(t, r.queue)
		time.Sleep(2 * time.Second) // the last tick
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
