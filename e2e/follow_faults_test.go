package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/simnet"
)

// followings are what happens to those who are followed.
func followFaults() []fault {
	return []fault{
		{"followed and unfollowed, in SQL", func(c *chaos) {
			c.followSomebody(1)
			c.unfollow(c.byHand[0])
		}},
		{"followed and unfollowed on the network", (*chaos).followOnTheNetwork},
		{"accounts hidden, and shown again", func(c *chaos) {
			for _, did := range c.scripted[3:] {
				c.show(did)
				require.NoError(c.t, c.net.Deactivate(did))
			}
			c.recover("accounts were hidden")
			for _, did := range c.scripted[3:] {
				require.NoError(c.t, c.net.Reactivate(did))
			}
		}},
		{"the AppView fails while somebody is followed", func(c *chaos) {
			failed := func() int { return c.net.CallsFired()[simnet.Unavailable] + c.net.CallsFired()[simnet.Severed] }
			before := failed()
			for _, kind := range []simnet.CallFaultKind{simnet.Unavailable, simnet.Severed} {
				require.NoError(c.t, c.net.FailCalls(simnet.CallFault{Kind: kind, Count: 1}))
			}
			c.followSomebody(1)
			require.Equal(c.t, 2, failed()-before)
		}},
	}
}

// settleIn waits until the first follows are followed and their feeds read, and
// follows some more.
func (c *chaos) settleIn() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		left, err := tryCount(c.pool, `SELECT count(*) FROM river_job WHERE kind IN ('sync_follows', 'backfill_account') AND finalized_at IS NULL`)
		return err == nil && left == 0
	}, 5*time.Minute, 20*time.Millisecond, "the first follows are not settled")
	c.followSomebody(2)
}

// follow adds a watch, as a person does in psql.
func (c *chaos) follow(target, kind string) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), `INSERT INTO watches (target, kind) VALUES ($1, $2)`, target, kind)
	require.NoError(c.t, err)
}

// followSomebody follows accounts that have never been followed, and waits until
// their feeds have been read.
func (c *chaos) followSomebody(many int) {
	c.t.Helper()
	var dids []string
	for range many {
		did := c.stranger()
		c.follow(did, "account")
		dids = append(dids, did)
	}
	c.byHand = append(c.byHand, dids...)
	c.read(dids...)
}

// read waits until those who are new are followed, and their feeds read.
func (c *chaos) read(dids ...string) {
	c.t.Helper()
	for _, did := range dids {
		require.Eventually(c.t, func() bool {
			read, err := tryCount(c.pool, fmt.Sprintf(`SELECT count(*) FROM watch_members AS w JOIN accounts AS a USING (did) WHERE w.did = '%s' AND (a.feed_read_at IS NOT NULL OR a.feed_problem <> '')`, did))
			return err == nil && read > 0
		}, 5*time.Minute, 20*time.Millisecond, "nobody reads the feed of %s", did)
	}
}

// stranger is an active account that nobody here has ever followed, and that has
// posted. Chance hides it no more.
func (c *chaos) stranger() string {
	c.t.Helper()
	hub := c.net.Hub().DID
	for _, a := range c.net.Accounts() {
		if a.Status != "" || a.DID == hub || c.known[a.DID] || slices.Contains(c.net.Follows(hub), a.DID) || len(current(c.net, []string{a.DID})) < 2 {
			continue
		}
		require.NoError(c.t, c.net.Deactivate(a.DID))
		require.NoError(c.t, c.net.Reactivate(a.DID))
		c.known[a.DID] = true
		return a.DID
	}
	require.Fail(c.t, "everybody is followed already")
	return ""
}

func (c *chaos) unfollow(did string) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), `DELETE FROM watches WHERE target = $1`, did)
	require.NoError(c.t, err)
	c.byHand = slices.DeleteFunc(c.byHand, func(other string) bool { return other == did })
}

// followOnTheNetwork has the hub follow somebody, and somebody no more.
func (c *chaos) followOnTheNetwork() {
	c.t.Helper()
	hub, did := c.net.Hub().DID, c.stranger()
	leaves := ""
	for _, other := range c.net.Follows(hub) {
		if a, _ := c.net.Account(other); a.Status == "" && !slices.Contains(c.scripted, other) {
			leaves = other
		}
		c.known[other] = true
	}
	require.NoError(c.t, c.net.Follow(hub, did))
	require.NoError(c.t, c.net.Unfollow(hub, leaves))
	c.sync()
	c.read(did)
	if a, _ := c.net.Account(leaves); a.Status == "" { // else nobody can tell
		require.NotContains(c.t, watched(c.t, c.pool), leaves)
	}
}

// sync has every listing read again, and waits for it.
func (c *chaos) sync() {
	c.t.Helper()
	var asked time.Time
	require.NoError(c.t, c.pool.QueryRow(context.Background(), `WITH asked AS (SELECT enqueue_job('sync_follows', 'network', '{"watch": 0}')) SELECT clock_timestamp() FROM asked`).Scan(&asked))
	require.Eventually(c.t, func() bool {
		left, err := tryCount(c.pool, fmt.Sprintf(`SELECT count(*) FROM watches WHERE (synced_at IS NULL OR synced_at < to_timestamp(%d / 1000000.0)) AND problem = ''`, asked.UnixMicro()))
		return err == nil && left == 0
	}, 5*time.Minute, 20*time.Millisecond, "the listings are not read")
}

// anHourLater lets everything come to rest. Whoever hides comes back, but for
// those whom others hide. What a hole has swallowed of the accounts' statuses, a
// sync finds out when the stream has told nothing of them for an hour: that time
// is taken off what the stream has told. Whoever could not be read then is read
// again.
func (c *chaos) anHourLater() {
	c.t.Helper()
	for _, did := range c.followed() {
		if a, _ := c.net.Account(did); a.Status == "deactivated" || a.Status == "suspended" {
			require.NoError(c.t, c.net.Reactivate(did))
		}
	}
	c.waitCommitted()
	began := time.Now()
	c.settle()
	settled := time.Now()
	_, err := c.pool.Exec(context.Background(), `UPDATE accounts SET status_at = status_at - interval '2 hours' WHERE status_at IS NOT NULL`)
	require.NoError(c.t, err)
	_, err = c.pool.Exec(context.Background(), `UPDATE accounts SET reread_at = now() WHERE reread_at IS NOT NULL`)
	require.NoError(c.t, err)
	c.sync()
	c.settle()
	c.t.Logf("at rest after %s, and after a sync an hour later in %s", settled.Sub(began).Round(10*time.Millisecond), time.Since(settled).Round(10*time.Millisecond))
}

// settle waits until every gap is closed and every job done, but for those that
// wait for a time to come. What does not end is for the judge to say.
func (c *chaos) settle() {
	c.t.Helper()
	var left string
	for until := time.Now().Add(8 * time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		const sql = `
SELECT concat_ws('; ',
    (SELECT 'gaps: ' || string_agg(concat_ws(' ', id, problem), ', ') FROM gaps WHERE closed_at IS NULL),
    (SELECT 'jobs: ' || string_agg(concat_ws(' ', kind, state, errors[array_length(errors, 1)] ->> 'error'), ', ') FROM river_job
     WHERE finalized_at IS NULL AND NOT (state = 'scheduled' AND scheduled_at > now() + interval '10 s')))`
		if err := c.pool.QueryRow(context.Background(), sql).Scan(&left); err == nil && left == "" {
			return
		}
	}
	c.problems = append(c.problems, fmt.Sprintf("it does not come to rest: %.1000s", left))
}

// followed are the accounts that Weir must follow now.
func (c *chaos) followed() []string {
	return append(c.net.Follows(c.net.Hub().DID), c.byHand...)
}
