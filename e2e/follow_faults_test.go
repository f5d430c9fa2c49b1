package e2e

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// followFaults follow, unfollow and hide accounts.
func followFaults() []fault {
	return []fault{
		{"followed and unfollowed, in SQL", func(c *chaos) {
			c.followSomebody(1)
			c.unfollow(c.byHand[0])
		}},
		{"followed and unfollowed on the network", (*chaos).followOnTheNetwork},
		{"accounts hidden, then shown again", func(c *chaos) {
			for _, did := range c.scripted[3:] {
				c.show(did)
				require.NoError(c.t, c.net.Deactivate(did))
			}
			c.recover("accounts were hidden")
			for _, did := range c.scripted[3:] {
				require.NoError(c.t, c.net.Reactivate(did))
			}
		}},
		{"accounts deleted while nobody reads, and the listings lag", (*chaos).deleteInAPause},
		{"the AppView fails while accounts are followed", func(c *chaos) {
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

// deleteInAPause deletes a followed account while no consumer runs. A listing that lags shows it as active, before
// and after the consumers read of the deletion.
func (c *chaos) deleteInAPause() {
	c.t.Helper()
	did := c.byHand[len(c.byHand)-1]
	c.kill("consume 1")
	c.kill("consume 2")
	c.net.LagListings()
	require.NoError(c.t, c.net.Delete(did))
	c.sync()
	c.relaunch("consume 1")
	c.relaunch("consume 2")
	c.recover("an account was deleted while nobody read")
	c.sync()
	c.net.CatchUpListings()
	c.waitCommitted()
	gone := func() (int, error) {
		return tryCount(c.pool, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND status <> 'deleted'`, did))
	}
	finishes(c.t, 20*time.Millisecond, gone, "the account is not deleted")
	c.unfollow(did)
}

// settleIn waits until the first accounts are followed and their feeds are read, then follows two
// more.
func (c *chaos) settleIn() {
	c.t.Helper()
	finishes(c.t, 20*time.Millisecond, func() (int, error) {
		return tryCount(c.pool, `SELECT count(*) FROM river_job WHERE kind IN ('sync_follows', 'backfill_account') AND finalized_at IS NULL`)
	}, "the first follow syncs and backfills do not end")
	c.followSomebody(2)
}

// follow adds a watch in SQL.
func (c *chaos) follow(target, kind string) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), `INSERT INTO watches (target, kind) VALUES ($1, $2)`, target, kind)
	require.NoError(c.t, err)
}

// followSomebody follows accounts that were never followed before, and waits
// until their feeds have been read.
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

// read waits until new accounts are followed and their feeds are read.
func (c *chaos) read(dids ...string) {
	c.t.Helper()
	for _, did := range dids {
		eventually.True(c.t, func() bool {
			read, err := tryCount(c.pool, fmt.Sprintf(`
				SELECT count(*) FROM watch_members AS w JOIN accounts AS a USING (did)
				WHERE w.did = '%s' AND (a.feed_read_at IS NOT NULL OR a.feed_problem <> '')`, did))
			return err == nil && read > 0
		}, 20*time.Millisecond, "the feed of %s is not read", did)
	}
}

// stranger returns an active account that was never followed here and that has posted. The
// simulation no longer hides it at random.
func (c *chaos) stranger() string {
	c.t.Helper()
	hub := c.net.Hub().DID
	for _, a := range c.net.Accounts() {
		if a.Status != "" || a.DID == hub || c.known[a.DID] || slices.Contains(c.net.Follows(hub), a.DID) ||
			len(current(c.net, []string{a.DID})) < 2 {
			continue
		}
		leaveAlone(c.t, c.net, a.DID)
		c.known[a.DID] = true
		return a.DID
	}
	require.Fail(c.t, "every account is followed already")
	return ""
}

func (c *chaos) unfollow(did string) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), `DELETE FROM watches WHERE target = $1`, did)
	require.NoError(c.t, err)
	c.byHand = slices.DeleteFunc(c.byHand, func(other string) bool { return other == did })
}

// followOnTheNetwork has the hub follow one account and unfollow another.
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
	leaveAlone(c.t, c.net, leaves) // it stays as it is if it is hidden
	require.NoError(c.t, c.net.Follow(hub, did))
	require.NoError(c.t, c.net.Unfollow(hub, leaves))
	c.sync()
	c.read(did)
	require.NotContains(c.t, watched(c.t, c.pool), leaves)
}

// sync enqueues a sync of every watch, and waits until it is done.
func (c *chaos) sync() {
	c.t.Helper()
	var asked time.Time
	require.NoError(c.t, c.pool.QueryRow(context.Background(), `
		WITH asked AS (SELECT enqueue_job('sync_follows', 'network', '{"watch": 0}')) SELECT clock_timestamp() FROM asked`).Scan(&asked))
	eventually.True(c.t, func() bool {
		left, err := tryCount(c.pool, fmt.Sprintf(`
			SELECT count(*) FROM watches WHERE (synced_at IS NULL OR synced_at < to_timestamp(%d / 1000000.0)) AND problem = ''`, asked.UnixMicro()))
		return err == nil && left == 0
	}, 20*time.Millisecond, "the listings are not read")
}

// anHourLater waits until the round has settled, before and after a sync an hour later. Followed
// accounts that are deactivated or suspended return; deleted ones and those taken down stay hidden.
// A sync corrects the status changes lost in a hole once the stream has reported nothing about an
// account for an hour, so the statuses are made two hours older first. Feeds that could not be read
// are read again.
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
	c.t.Logf("at rest after %s, and after a sync an hour later in %s", settled.Sub(began).Round(10*time.Millisecond),
		time.Since(settled).Round(10*time.Millisecond))
}

// settle waits until every gap is closed and every due job has ended. It makes failed jobs due, and
// enqueues due fetches at once instead of waiting up to a minute. Gaps and jobs that do not end are
// reported as a problem.
func (c *chaos) settle() {
	c.t.Helper()
	var left string
	if !ends(c.t, 100*time.Millisecond, func() (int, error) {
		const due = `UPDATE river_job SET scheduled_at = now() WHERE state = 'retryable' AND scheduled_at > now()`
		if _, err := c.pool.Exec(context.Background(), due); err != nil {
			return 0, err
		}
		const fetch = `SELECT enqueue_job('check_subjects', 'network', '{}') WHERE EXISTS (SELECT FROM subjects WHERE fetch_at <= now())
			AND NOT EXISTS (SELECT FROM river_job WHERE kind = 'check_subjects' AND finalized_at IS NULL)`
		if _, err := c.pool.Exec(context.Background(), fetch); err != nil {
			return 0, err
		}
		const sql = `
SELECT (SELECT count(*) FROM gaps WHERE closed_at IS NULL)
     + (SELECT count(*) FROM river_job WHERE finalized_at IS NULL AND NOT 'periodic' = ANY (tags)), concat_ws('; ',
    (SELECT 'subjects: ' || count(*) FROM subjects WHERE fetch_at <= now() OR fetch_at > now() + interval '16 minutes' HAVING count(*) > 0),
    (SELECT 'changed subjects: ' || count(*) FROM changed_subjects HAVING count(*) > 0),
    (SELECT 'gaps: ' || string_agg(concat_ws(' ', id, problem), ', ') FROM gaps WHERE closed_at IS NULL),
    (SELECT 'jobs: ' || string_agg(concat_ws(' ', kind, state, errors[array_length(errors, 1)] ->> 'error'), ', ') FROM river_job
     WHERE finalized_at IS NULL AND NOT (state = 'scheduled' AND scheduled_at > now() + interval '10 s')))`
		var many int
		err := c.pool.QueryRow(context.Background(), sql).Scan(&many, &left)
		if left == "" {
			return 0, err
		}
		return max(many, 1), err
	}) {
		c.problems = append(c.problems, fmt.Sprintf("gaps or jobs do not end: %.1000s", left))
	}
}

// followed are the accounts that Weir must follow now.
func (c *chaos) followed() []string {
	return append(c.net.Follows(c.net.Hub().DID), c.byHand...)
}
