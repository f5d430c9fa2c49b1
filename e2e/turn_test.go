package e2e

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"testing"

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

// turns decides when tests begin: the longest first, whatever the order in which package testing
// resumes them.
type turns struct {
	mu    sync.Mutex
	free  int
	queue []*turn
}

// turn is a test that waits.
type turn struct {
	rank  int // the lowest begins first
	begin chan struct{}
}

var running = &turns{free: atOnce * runtime.GOMAXPROCS(0)}

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

// admit lets as many tests of the queue begin as there are free places.
func (r *turns) admit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.free > 0 && len(r.queue) > 0 {
		r.free--
		close(r.queue[0].begin)
		r.queue = r.queue[1:]
	}
}

func (r *turns) leave() {
	r.mu.Lock()
	r.free++
	r.mu.Unlock()
	r.admit()
}

// TestLongestBeginFirst shows that the longest tests in the queue begin first, and no more at once
// than there are free places.
func TestLongestBeginFirst(t *testing.T) {
	parallel(t)
	r := &turns{free: 2}
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
	require.Zero(t, r.free)
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
