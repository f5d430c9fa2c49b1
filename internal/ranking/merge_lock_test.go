package ranking_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestNobodyWaitsForWhoWaitsToMerge shows that a long merge blocks other merges, but not writers
// that share the links that those merges are about to add or merge.
func TestNobodyWaitsForWhoWaitsToMerge(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) SELECT 'l' || n, 'l', 's', now() FROM generate_series(1, 3) AS n`)
	long, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer long.Rollback(t.Context()) // nothing is left to roll back
	require.NoError(t, ranking.MergeLinks(t.Context(), long, ranking.Merge{Link: 1, Into: 2, Why: ranking.ByHand, Now: noon()}))
	target := ranking.Share{Link: link.Link{Identity: "target", URL: "https://paper.example/a", Site: "paper.example"}}
	resolved := make(chan error, 1)
	go func() {
		resolved <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return ranking.ResolveShortLink(t.Context(), tx, ranking.ShortLink{ID: 3}, target.Link, noon())
		})
	}()
	eventually.True(t, func() bool {
		return column(t, pool, `SELECT count(*)::text FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)[0] == "1"
	}, 10*time.Millisecond)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '1s'`); err != nil {
			return err
		}
		_, err := ranking.EnsureLinks(t.Context(), tx, []ranking.Share{target}, noon())
		return err
	}))
	require.NoError(t, long.Commit(t.Context()))
	require.NoError(t, <-resolved)
	require.Equal(t, []string{"l1 l2", "l3 target"}, column(t, pool,
		`SELECT m.identity || ' ' || l.identity FROM links AS m JOIN links AS l ON l.id = m.merged_into ORDER BY 1`))
}

// waitsForLock waits until a statement waits for a lock of tx.
func waitsForLock(t *testing.T, pool *pgxpool.Pool, tx pgx.Tx) {
	t.Helper()
	eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 10*time.Millisecond)
}

// TestLinkExpiresWhileItIsMerged shows that the merge then reports that there is no such link. A
// foreign key error would mean that the data cannot be stored, which ends a job.
func TestLinkExpiresWhileItIsMerged(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) SELECT 'l' || n, 'l', 's', now() FROM generate_series(1, 4) AS n`)
	for expired, m := range map[int]ranking.Merge{1: {Link: 1, Into: 2}, 3: {Link: 4, Into: 3}} {
		expires, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer expires.Rollback(t.Context()) // nothing is left to roll back
		execute(t, expires, `DELETE FROM links WHERE id = $1`, expired)
		m.Why, m.Now = ranking.ByHand, noon()
		merged := make(chan error, 1)
		go func() {
			merged <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return ranking.MergeLinks(t.Context(), tx, m) })
		}()
		waitsForLock(t, pool, expires)
		require.NoError(t, expires.Commit(t.Context()))
		require.ErrorIs(t, <-merged, ranking.ErrLink)
	}
}

// TestLinkExpiresWhileItIsAdded shows that the worker gets a transient error, and not that its data
// cannot be stored.
func TestLinkExpiresWhileItIsAdded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	all := []ranking.Share{{Link: link.Link{Identity: "bit.ly/x", URL: "https://bit.ly/x", Site: "bit.ly", Short: true}}}
	_, err := ranking.EnsureLinks(t.Context(), pool, all, noon())
	require.NoError(t, err)
	expires, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer expires.Rollback(t.Context()) // nothing is left to roll back
	execute(t, expires, `DELETE FROM links`)
	added := make(chan error, 1)
	go func() {
		all[0].Card.Title = "T"
		_, err := ranking.EnsureLinks(t.Context(), pool, all, noon())
		added <- err
	}()
	waitsForLock(t, pool, expires)
	require.NoError(t, expires.Commit(t.Context()))
	require.ErrorIs(t, <-added, schema.ErrBusy)
	_, err = ranking.EnsureLinks(t.Context(), pool, all, noon())
	require.NoError(t, err)
}

// TestMergeTheOtherWayRound shows that such a merge is refused: it would otherwise report success.
func TestMergeTheOtherWayRound(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) SELECT 'l' || n, 'l', 's', now() FROM generate_series(1, 3) AS n`)
	merge := func(link, into int64) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return ranking.MergeLinks(t.Context(), tx, ranking.Merge{Link: link, Into: into, Why: ranking.ByHand, Now: noon()})
		})
	}
	require.NoError(t, merge(1, 2))
	require.NoError(t, merge(1, 2))
	var merged *ranking.MergedError
	require.ErrorAs(t, merge(2, 1), &merged)
	require.Equal(t, ranking.MergedError{Link: 1, Into: 2}, *merged)
	require.NoError(t, merge(3, 1))
	require.NoError(t, merge(3, 1))
}

// TestLinkIsKeptForTheSharesOfAMergedOne covers sharers that were counted before the merge, and
// whose day was dropped after it.
func TestLinkIsKeptForTheSharesOfAMergedOne(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, now, 7*24*time.Hour))
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) SELECT 'l' || n, 'l', 's', now() FROM generate_series(1, 2) AS n`)
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT n::text, 'c', $1, 1, 1, 'post', $2 FROM generate_series(1, 5) AS n`, tid(now), now)
	part := column(t, pool, `SELECT tableoid::regclass::text FROM shares LIMIT 1`)[0]
	rule := ranking.LinkRule{Now: now, Sharers: 5, Keep: 24 * time.Hour}
	_, _, err := ranking.CountLeaving(t.Context(), pool, rule, part, 0, 10)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.MergeLinks(t.Context(), tx, ranking.Merge{Link: 1, Into: 2, Why: ranking.ByHand, Now: now})
	}))
	_, err = ranking.DropDay(t.Context(), pool, part)
	require.NoError(t, err)
	marked, err := ranking.MarkKept(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Equal(t, 1, marked)
	require.Equal(t, []string{"2 5"}, column(t, pool, `SELECT id || ' ' || kept_sharers FROM links WHERE kept_at IS NOT NULL`))
}

// TestOriginalIsMergedWhileItsCopyIsWritten covers a copy that shares the link into which its
// original's link is being merged. The copy counts until the merge is done, and not afterwards.
func TestOriginalIsMergedWhileItsCopyIsWritten(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("a.example/1", "")
	p.posts("a.example/2", "")
	original := schema.Key{Collection: schema.PostCollection, DID: "did:plc:original", Rkey: "1"}
	s := shareOf("a.example/1")
	s.Key, s.SharedAt = original, p.now
	require.NoError(t, pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{original}, []ranking.Share{s}, p.now)
	}))
	p.counts()

	bridge, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	defer bridge.Rollback(t.Context()) // nothing is left to roll back
	s = shareOf("a.example/2")
	s.Key, s.SharedAt = schema.Key{Collection: ranking.NoteCollection, DID: "did:nostr:copy", Rkey: "1"}, p.now
	q := &pgx.Batch{}
	(&ranking.Replacement{
		Records: []schema.Key{s.Key}, Shares: []ranking.Share{s}, Copies: []ranking.BridgedCopy{{Record: s.Key, Of: original}},
	}).Queue(q, p.now)
	_, err = ranking.EnsureLinks(t.Context(), p.pool, []ranking.Share{s}, p.now)
	require.NoError(t, err)
	require.NoError(t, ranking.WriteShares(t.Context(), bridge, q))

	merges, err := p.pool.Begin(t.Context())
	require.NoError(t, err)
	defer merges.Rollback(t.Context()) // nothing is left to roll back
	merged := make(chan error, 1)
	m := ranking.Merge{Link: p.id("a.example/1"), Into: p.id("a.example/2"), Why: ranking.ByHand, Now: p.now}
	go func() { merged <- ranking.MergeLinks(t.Context(), merges, m) }()
	waitsForLock(t, p.pool, bridge)
	require.NoError(t, bridge.Commit(t.Context()))
	require.NoError(t, <-merged)
	p.counts()
	require.Equal(t, []string{"a.example/1 2  ", "a.example/2 2  "}, p.shown())
	require.NoError(t, merges.Commit(t.Context()))
	p.counts()
	require.Equal(t, []string{"a.example/2 2  "}, p.shown())
}
