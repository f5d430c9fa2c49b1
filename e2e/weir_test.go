package e2e

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestChaos runs a fleet of processes that store a simulated network while faults are injected. It
// then compares the tables with the fold of the network's log. Each round has its own network,
// database and fleet. Every second round follows accounts, and two of four read a relay. A fault
// that cannot be shown to have happened fails the test.
//
// An even seed reads the whole network, an odd one follows accounts. If the seed modulo four is one
// or two, the round reads a relay; else, if it is four or more modulo eight, subscribeEvents of
// Jetstream. A seed repeats the plan and the network, but not the timing.
func TestChaos(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	began, s := time.Now(), seed(t)
	var all chaosReport
	for until := began.Add(*chaosLength); len(all) == 0 || time.Now().Before(until); s++ {
		read := roundOf(s)
		good := t.Run(fmt.Sprintf("round %d of %s", len(all)+1, read), func(t *testing.T) {
			c := newChaos(t, s, read)
			c.play(c.plan())
			all = append(all, c.compare())
			all.publish(t, time.Since(began))
			c.require()
		})
		require.True(t, good, "-seed %d repeats this round", s)
	}
}

// TestFollowedRound is a short round of followed accounts: accounts are followed and unfollowed,
// the server forgets events, and a worker is killed. The seed decides whether it reads Jetstream, which
// service of it, or a relay. A relay then leaves out commits.
func TestFollowedRound(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	s := seed(t)
	plan := []string{
		"followed and unfollowed, in SQL", "short retention, after SIGKILL of the consumers", "SIGKILL of a worker",
		"accounts deleted while nobody reads, and the listings lag",
	}
	read := round{follows: true, relay: s&4 != 0, events: s&12 == 8}
	if read.relay {
		plan = append(plan, "relay: leaves out commits", "relay: forgery, other-key")
	}
	if read.events {
		plan = append(plan, "subscribeEvents: consumer-too-slow")
	}
	t.Logf("reads %s", read)
	c := newChaos(t, s, read)
	c.play(c.planned(plan...))
	c.compare()
	c.require()
}

// seed is the flag, or a new seed.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := cmp.Or(*chaosSeed, uint64(time.Now().UnixMicro())&^3) // the new seed reads Jetstream first
	t.Logf("-seed %d repeats this plan", s)
	return s
}
