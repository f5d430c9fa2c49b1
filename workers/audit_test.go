package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// TestAuditWhenDue shows that a job runs an audit, and that another job runs
// none until the next audit is due.
func TestAuditWhenDue(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	few := simnet.Config{Seed: 21, Accounts: 300, Follows: 25, History: 4000, HistorySpan: 3 * time.Hour}
	r := newRigOn(t, few, func(c *Config) { c.Audits = 24 * time.Hour })
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, r.net.Hub().DID)
	r.becomes(len(r.followed()), `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	work := func(done int) {
		_, err := r.client.Insert(t.Context(), jobs.Audit{}, nil)
		require.NoError(t, err)
		r.becomes(done, `SELECT count(*) FROM river_job WHERE kind = 'audit' AND state = 'completed'`)
	}
	work(1)
	last, err := schema.LastAudit(t.Context(), r.pool)
	require.NoError(t, err)
	require.Equal(t, auditAccounts, last.Accounts)
	var faults string
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT coalesce(json_agg(f), '[]') FROM audit_faults AS f`).Scan(&faults))
	require.InDelta(t, 1, *last.Score, 0, faults)
	require.True(t, last.Repaired)
	work(2)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM audits`), "no second audit was due")
	r.execute(`UPDATE audits SET ended_at = ended_at - interval '1 day'`)
	work(3)
	require.Equal(t, 2, r.count(`SELECT count(*) FROM audits`))
}

// TestAuditConfirmsFaults shows that a difference that a second comparison does
// not find was in flight, and is no fault.
func TestAuditConfirmsFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	now := time.Now()
	x := &accountAudit{Auditor: &Auditor{Shared: Shared{Pool: r.pool, Bluesky: r.api}}, did: did, from: now.Add(-24 * time.Hour),
		to: now.Add(-inFlight)}
	r.execute(`CREATE TABLE aside AS SELECT * FROM posts WHERE rkey = (SELECT min(rkey) FROM posts WHERE rkey ~ '^3')`)
	r.execute(`DELETE FROM posts WHERE rkey IN (SELECT rkey FROM aside)`)
	require.NoError(t, x.compareOnce(t.Context()))
	require.Len(t, x.faults, 1)
	require.NoError(t, x.confirm(t.Context()))
	require.Len(t, x.faults, 1, "it is still missing")
	r.execute(`INSERT INTO posts SELECT * FROM aside`)
	r.execute(`DELETE FROM posts WHERE rkey IN (SELECT max(rkey) FROM posts WHERE rkey ~ '^3' AND rkey < $1)`, tidAt(x.to))
	require.NoError(t, x.confirm(t.Context()))
	require.Empty(t, x.faults, "a difference that only the second comparison finds may be in flight")
}

// TestRepairHasARevision shows that a repair never overwrites a later revision
// from the stream.
func TestRepairHasARevision(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const did, rev, snooze = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", "3lzzzzzzzzz22", "3m22222222222"
	key := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: "3lyyyyyyyyy22"}
	write := schema.Write{Key: key, CID: "mended", CreatedAt: time.Now(), Record: []byte(`{}`)}
	mend := func(rev string) int {
		tx, err := r.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) // the transaction is committed
		w := write
		w.Rev = rev
		written, err := schema.RepairRecords(t.Context(), tx, []schema.Write{w})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		return len(written)
	}
	r.execute(`INSERT INTO posts (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, $4, 'stream', now(), '{}')`,
		key.Collection, did, key.Rkey, snooze)
	require.Zero(t, mend(rev), "the repair must not replace the stream's newer revision")
	require.Equal(t, 1, mend(snooze), "a record stored at the same revision is replaced")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND cid = 'mended' AND rev = $2`, did, snooze))
	r.execute(`DELETE FROM posts WHERE did = $1`, did)
	r.execute(`INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ($1, $2, $3, $4, now())`, key.Collection, did, key.Rkey,
		snooze)
	require.Zero(t, mend(rev), "the repair must not restore a record that was deleted later")
	require.Equal(t, 1, mend(snooze))
}
