package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// relayFaults are the faults that only a relay can have.
func (r round) relayFaults() []fault {
	all := []fault{
		{"relay: #sync", func(c *chaos) {
			did := c.doubted()
			require.NoError(c.t, c.net.SyncRepo(did))
			c.says(did, "after a sync")
		}},
		{"relay: hides the account of the last event, after SIGKILL of the consumers", func(c *chaos) {
			c.hide(c.killConsumers, c.relaunchConsumers)
		}},
		{"relay: hides the account of the last event, while it restarts", func(c *chaos) { c.hide(c.refuse, c.accept) }},
		{"an account changes its key while nobody reads", (*chaos).rotateUnread},
		{"the directory fails, after SIGKILL of the consumers", (*chaos).failDirectory},
	}
	for _, f := range simnet.Forgeries() {
		all = append(all, fault{"relay: forgery, " + string(f), func(c *chaos) { c.forge(f) }})
	}
	if !r.follows { // only chains show what is missing
		return all
	}
	return append(all,
		fault{"relay: leaves out commits", func(c *chaos) {
			c.leaveOut(func(did string, out bool) { require.NoError(c.t, c.net.Withhold(did, out)) })
		}},
		fault{"relay: drops the operations of commits", func(c *chaos) { c.curtail(simnet.CurtailOps) }},
		fault{"relay: drops the operations of commits, and adapts prevData", func(c *chaos) { c.curtail(simnet.CurtailPrev) }},
	)
}

func (c *chaos) killConsumers() {
	for _, name := range fleet()[:2] {
		c.kill(name)
	}
}

func (c *chaos) relaunchConsumers() { c.relaunchAll(fleet()[:2]...) }

// doubted returns an active account. From now on, some of its commits cannot be verified.
func (c *chaos) doubted() (did string) {
	did = c.scripted[2+c.random.IntN(len(c.scripted)-2)]
	c.show(did)
	if !slices.Contains(c.doubts, did) {
		c.doubts = append(c.doubts, did)
	}
	return did
}

// says adds a post with a link.
func (c *chaos) says(did, text string) *simnet.Entry {
	c.t.Helper()
	e, err := c.net.PostNow(did, text, "https://forgotten.example/"+strings.ReplaceAll(text, " ", "-"))
	require.NoError(c.t, err)
	return e
}

// changes edits a post, deletes another, and adds a third.
func (c *chaos) changes(did string, edited, gone *simnet.Entry) {
	c.t.Helper()
	_, err := c.net.EditPost(uriOf(edited), "another", "https://forgotten.example/edited")
	require.NoError(c.t, err)
	require.NoError(c.t, c.net.DeleteRecord(uriOf(gone)))
	c.says(did, "with the changes")
}

// hide stops reading the stream after an event of an account that the relay then takes down: from
// then on the relay omits the event. The next connection must resume by another event, without
// reading anything twice.
func (c *chaos) hide(leave, back func()) {
	c.t.Helper()
	hub := c.net.Hub().DID // random events are by other accounts
	c.stop()
	last := c.says(hub, "soon hidden")
	eventually.True(c.t, func() bool { return c.position() >= c.number(last) }, 20*time.Millisecond, "the end of the stream is not committed")
	leave()
	before, repeated := c.net.Fired()[simnet.Hidden], map[*process]int{}
	for _, name := range fleet() {
		repeated[c.member(name)] = c.member(name).mismatches()
	}
	c.net.HideFromRelay(hub, true)
	c.stop = c.events()
	back()
	eventually.True(c.t, func() bool { return c.net.Fired()[simnet.Hidden] > before }, 20*time.Millisecond,
		"no client requests the hidden event")
	c.progress(2)
	for _, name := range fleet() {
		require.Equal(c.t, repeated[c.member(name)], c.member(name).mismatches(), "the resume of %s needed the hidden event", name)
	}
	c.net.HideFromRelay(hub, false)
}

// mismatches is the number of the process's resumes that did not find the expected event.
func (p *process) mismatches() int { return strings.Count(p.stderr.String(), "resume_mismatch") }

// forge has the relay send a forgery between valid commits of its account.
func (c *chaos) forge(f simnet.Forgery) {
	c.t.Helper()
	did := c.doubted()
	c.says(did, "before a forgery")
	if f == simnet.FormerKey {
		require.NoError(c.t, c.net.RotateKey(did))
	}
	before := c.net.Fired()[simnet.Fault(f)]
	require.NoError(c.t, c.net.Forge(f, did))
	c.says(did, "after a forgery")
	eventually.True(c.t, func() bool { return c.net.Fired()[simnet.Fault(f)] > before }, 20*time.Millisecond, "%s reaches no client", f)
}

// rotateUnread changes the key of an account while its commits are not read. They are signed with a
// key that is no longer in its DID document.
func (c *chaos) rotateUnread() {
	c.t.Helper()
	did := c.doubted()
	edited, gone := c.says(did, "soon another"), c.says(did, "soon gone")
	eventually.True(c.t, func() bool { // a record that is not stored yet leaves no tombstone
		stored, err := tryCount(c.pool, fmt.Sprintf(`SELECT count(*) FROM records WHERE did = '%s' AND rkey = '%s'`, did, gone.Rkey))
		return err == nil && stored == 1
	}, 20*time.Millisecond, "what %s writes is not stored", did)
	c.killConsumers()
	c.changes(did, edited, gone)
	require.NoError(c.t, c.net.RotateKey(did))
	c.says(did, "with a new key")
	c.relaunchConsumers()
}

// failDirectory has the directory refuse the first keys that a new consumer needs.
func (c *chaos) failDirectory() {
	c.t.Helper()
	refused := func() int { return c.net.CallsFired()[simnet.Unavailable] }
	before := refused()
	c.killConsumers()
	require.NoError(c.t, c.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "plc", Count: 5}))
	c.relaunchConsumers()
	eventually.True(c.t, func() bool { return refused() >= before+5 }, 20*time.Millisecond, "no process requests keys from the directory")
}

func (c *chaos) curtail(how simnet.Curtailed) {
	c.t.Helper()
	c.leaveOut(func(did string, out bool) {
		if !out {
			how = ""
		}
		require.NoError(c.t, c.net.Curtail(did, how))
	})
}

// leaveOut has the relay omit what an account writes. The account's next commit shows that.
func (c *chaos) leaveOut(set func(did string, out bool)) {
	c.t.Helper()
	did := c.doubted()
	edited, gone := c.says(did, "soon another"), c.says(did, "soon gone")
	eventually.True(c.t, func() bool {
		known, err := tryCount(c.pool, fmt.Sprintf(`SELECT count(*) FROM chains WHERE did = '%s' AND rev >= '%s'`, did, gone.Rev))
		return err == nil && known == 1
	}, 20*time.Millisecond, "the chain of %s does not reach its last commit", did)
	set(did, true)
	c.changes(did, edited, gone)
	set(did, false)
	c.says(did, "shows what is missing")
}

// verifyAll waits until the events that waited for a key are stored. It makes their retries due.
func (c *chaos) verifyAll() {
	c.t.Helper()
	c.waitCommitted()
	began := time.Now()
	eventually.True(c.t, func() bool {
		const hour = `
			UPDATE dead_letters SET last_seen = last_seen - interval '1 hour'
			WHERE class = 'retryable' AND state = 'open' AND last_seen > now() - interval '1 hour'`
		_, err := c.pool.Exec(context.Background(), hour)
		waiting, countErr := tryCount(c.pool, `SELECT count(*) FROM dead_letters WHERE class = 'retryable' AND state IN ('open', 'retrying')`)
		return err == nil && countErr == nil && waiting == 0
	}, 100*time.Millisecond, "what waits for a key is not retried")
	c.t.Logf("nothing waits for a key after %s", time.Since(began).Round(10*time.Millisecond))
}

// dueResyncs makes waiting resyncs due. Most of them wait for an hour.
const dueResyncs = `
WITH due AS (UPDATE resyncs SET due_at = now() WHERE desynchronized_at IS NOT NULL AND due_at > now())
UPDATE river_job SET scheduled_at = now() WHERE kind = 'resync_repo' AND state = 'scheduled' AND scheduled_at > now()`

// synchronize makes waiting resyncs due until none is left. Accounts that are hidden, or were when
// the stream last mentioned them, stay desynchronized.
func (c *chaos) synchronize() {
	c.t.Helper()
	began := time.Now()
	var left []string
	if !ends(c.t, time.Second, func() (int, error) {
		if _, err := c.pool.Exec(context.Background(), dueResyncs); err != nil {
			return 0, err
		}
		rows, err := c.pool.Query(context.Background(), `
SELECT did FROM resyncs AS r
WHERE desynchronized_at IS NOT NULL AND NOT EXISTS (SELECT FROM accounts AS a
    WHERE a.did = r.did AND a.status NOT IN ('active', 'deleted'))`)
		if err != nil {
			return 0, err
		}
		left, err = pgx.CollectRows(rows, pgx.RowTo[string])
		left = slices.DeleteFunc(left, func(did string) bool {
			a, _ := c.net.Account(did)
			return a.Status != "" && a.Status != "deleted"
		})
		return len(left), err
	}) {
		c.problems = append(c.problems, fmt.Sprintf("resyncs: accounts stay desynchronized: %s", left))
		return
	}
	c.t.Logf("synchronized after %s", time.Since(began).Round(10*time.Millisecond))
}
