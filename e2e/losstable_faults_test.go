//go:build losstable

package e2e

import (
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// lossFault is a fault that all of them meet at the same moment. relay says why only a relay can have it.
type lossFault struct {
	name  string
	do    func(*lossRun)
	relay string
}

// Why only a relay can have a fault. The table has the first letters.
const (
	lossSync       = "a: Jetstream passes on no #sync."
	lossOperations = "b: The simulated Jetstream has the operations that its relay hides from others."
	lossSigned     = "c: Jetstream's events have no signatures, and it passes on none of these commits."
)

// lossFaults lists the faults in the order in which they happen; before the last one, a backlog is read. They were
// listed before the first run, and none was left out since.
func lossFaults() []lossFault {
	const sync, operations, signed = lossSync, lossOperations, lossSigned
	all := []lossFault{
		{name: "SIGKILL of every process, five times", do: func(r *lossRun) { r.times(5, func() { r.kill(); r.live(20); r.start() }) }},
		{name: "a connection that stays open and is silent for 100 s", do: func(r *lossRun) { r.fault(simnet.Stall); r.liveAt(20, 2000) }},
		{name: "edits, deletions and posts written again, while every process is dead", do: func(r *lossRun) {
			r.unread(func() { r.changes(r.victim()); r.live(200) })
		}},
		{name: "a post deleted before a SIGKILL, and written again after it", do: func(r *lossRun) {
			gone := r.before[r.victim()][0]
			require.NoError(r.t, r.net.DeleteRecord(uriOf(gone)))
			r.live(100)
			r.unread(func() { r.again(gone) })
		}},
		{name: "connections cut, five times", do: func(r *lossRun) { r.times(5, func() { r.fault(simnet.Cut) }) }},
		{name: "SIGSTOP of every process for 15 s", do: (*lossRun).pause},
		{name: "crash of Postgres, three times", do: func(r *lossRun) {
			r.times(3, func() {
				r.each(func(c *contender) { require.NoError(r.t, c.server.Crash(r.t.Context())) })
				r.live(100)
				r.each(func(c *contender) { require.NoError(r.t, c.server.Resume(r.t.Context())) })
			})
		}},
		{name: "the server renumbers its events, twice", do: func(r *lossRun) { r.times(2, func() { r.fault(simnet.Renumber) }) }},
		{name: "the server renumbers its events while every process is dead", do: func(r *lossRun) {
			r.unread(func() { r.live(100); r.fault(simnet.Renumber) })
		}},
		{name: "the server forgets what nobody has read", do: func(r *lossRun) {
			r.unread(func() { r.changes(r.victim()); r.live(400); r.fault(simnet.TooOld) })
		}},
		{name: "events again, and old revisions after newer ones", do: func(r *lossRun) {
			r.times(3, func() { r.fault(simnet.Duplicate); r.fault(simnet.Stale) })
		}},
		{name: "accounts hidden and shown again, and deleted, while every process is dead", do: (*lossRun).statuses},
		{name: "the server leaves out commits", do: func(r *lossRun) { r.withhold(r.victim()) }},
		{name: "the server leaves out commits, and sends a #sync", relay: sync, do: func(r *lossRun) {
			did := r.victim()
			r.withhold(did)
			require.NoError(r.t, r.net.SyncRepo(did))
		}},
		{name: "a relay leaves out the operations of commits", relay: operations, do: func(r *lossRun) { r.curtail(simnet.CurtailOps) }},
		{name: "a relay leaves out the operations of commits, and adapts `prevData`", relay: operations, do: func(r *lossRun) {
			r.curtail(simnet.CurtailPrev)
		}},
		{name: "an account changes its key while every process is dead", relay: signed, do: func(r *lossRun) {
			did := r.victim()
			r.unread(func() { r.changes(did); require.NoError(r.t, r.net.RotateKey(did)) })
		}},
	}
	for _, forgery := range simnet.Forgeries() {
		all = append(all, lossFault{name: "a relay forges a commit: " + string(forgery), relay: signed, do: func(r *lossRun) {
			r.forge(forgery)
		}})
	}
	return append(all,
		lossFault{name: "the directory fails after a SIGKILL", relay: signed, do: func(r *lossRun) {
			r.unread(func() {
				r.changes(r.victim())
				require.NoError(r.t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "plc", Count: 10}))
			})
		}},
		lossFault{name: "a frame that cannot be decoded, which the server has in its backlog", do: func(r *lossRun) {
			r.times(2, func() { r.fault(simnet.Garbage) })
		}},
	)
}

// times repeats a fault while events happen.
func (r *lossRun) times(times int, do func()) {
	for range times {
		r.live(300)
		do()
	}
	r.live(300)
}

// unread kills every process, and starts them after what happens meanwhile.
func (r *lossRun) unread(do func()) {
	r.live(300)
	r.kill()
	do()
	r.start()
	r.live(300)
}

func (r *lossRun) pause() {
	r.live(300)
	signal := func(s syscall.Signal) {
		r.each(func(c *contender) {
			for _, m := range c.members {
				m.signal(s)
			}
		})
	}
	signal(syscall.SIGSTOP)
	r.live(int(lossRate * 15 * time.Second / time.Second))
	signal(syscall.SIGCONT)
	r.live(300)
}

func (r *lossRun) statuses() {
	did := r.victim()
	deleted := r.followed[lossScripted+r.random.IntN(lossFollowed-lossScripted)]
	r.unread(func() {
		r.changes(did)
		require.NoError(r.t, r.net.Deactivate(did))
		r.live(100)
		require.NoError(r.t, r.net.Reactivate(did))
		if a, _ := r.net.Account(deleted); a.Status != "deleted" {
			require.NoError(r.t, r.net.Delete(deleted))
		}
	})
}

func (r *lossRun) withhold(did string) {
	require.NoError(r.t, r.net.Withhold(did, true))
	r.changes(did)
	require.NoError(r.t, r.net.Withhold(did, false))
	r.live(100)
}

func (r *lossRun) curtail(how simnet.Curtailed) {
	did := r.victim()
	require.NoError(r.t, r.net.Curtail(did, how))
	r.changes(did)
	require.NoError(r.t, r.net.Curtail(did, ""))
	r.live(100)
}

func (r *lossRun) forge(forgery simnet.Forgery) {
	did := r.victim()
	if forgery == simnet.FormerKey {
		require.NoError(r.t, r.net.RotateKey(did))
		r.says(did, "with a new key")
	}
	r.live(100)
	require.NoError(r.t, r.net.Forge(forgery, did))
	r.live(100)
}
