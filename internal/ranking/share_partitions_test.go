package ranking_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

const day = 24 * time.Hour

func tid(at time.Time) string { return syntax.NewTID(at.UnixMicro(), 0).String() }

// TestRkeyAloneDecidesTheDay shows that the rkey of a share decides its partition. The default
// partition and the one ahead hold the rest, and hand over rows whose day is created.
func TestRkeyAloneDecidesTheDay(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	early := tid(now.Add(time.Hour))
	share(t, pool, "did:early", early, "u", now, link.Card{})
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, now, 7*day))
	for did, rkey := range map[string]string{
		"did:now": tid(now), "did:past": tid(now.Add(-30 * day)), "did:soon": tid(now.Add(2 * day)),
		"did:future": tid(now.Add(4*day + time.Hour)), "did:self": "self",
	} {
		share(t, pool, did, rkey, "u", now.Add(-100*day), link.Card{})
	}
	const where = `SELECT did || ' ' || tableoid::regclass FROM shares ORDER BY did`
	want := []string{
		"did:early shares_20260704_00", "did:future shares_ahead", "did:now shares_20260704_00", "did:past shares_default",
		"did:self shares_default", "did:soon shares_20260706_00",
	}
	require.Equal(t, want, column(t, pool, where))
	for d := range 5 {
		require.NoError(t, ranking.EnsureDays(t.Context(), pool, now.Add(time.Duration(d)*day), 7*day))
	}
	want[1] = "did:future shares_20260708_00"
	require.Equal(t, want, column(t, pool, where))
	require.Equal(t, []string{"2026-07-03 2026-07-11"}, column(t, pool,
		`SELECT min(begins)::date || ' ' || max(ends)::date FROM partitions WHERE parent = 'shares' AND NOT ahead`))
	require.Equal(t, []string{"16"}, column(t, pool, `SELECT count(*)::text FROM pg_trigger
		WHERE tgrelid = 'links'::regclass`),
		"only the triggers of the foreign keys of shares, claims, merges, short links and cards: a dropped day must leave none")
	for _, sql := range []string{
		`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) VALUES ('d', 'c', $1, 0, 0, 'post', now())`,
		`UPDATE shares SET link_id = 0 WHERE rkey = $1`, `WITH k AS (SELECT $1::text) DELETE FROM links`,
	} {
		_, err := pool.Exec(t.Context(), sql, early)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, sql)
		require.Equal(t, "23503", refused.Code, "%s: %v", sql, err)
	}
}

// TestDaysAreMadeBesideWriters covers a worker that has locked links and writes shares next. It
// neither waits for long nor deadlocks.
func TestDaysAreMadeBesideWriters(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon(), 7*day))
	worker, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer worker.Rollback(context.Background()) // committed, or the test has failed
	execute(t, worker, `INSERT INTO links (identity, url, site, first_seen) VALUES ('u', 'u', 's', now())`)
	for _, next := range []string{`SELECT`, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'd', 'c', 'r', id, id, 'post', now() FROM links`} {
		execute(t, worker, next)
		require.ErrorIs(t, ranking.EnsureDays(t.Context(), pool, noon().Add(day), 7*day), schema.ErrBusy)
	}
	require.NoError(t, worker.Commit(t.Context()))
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon().Add(day), 7*day))
}

// TestStatementsOfALeavingPartitionSeeItsRows shows that these statements take effect only if the
// partition is dropped.
func TestStatementsOfALeavingPartitionSeeItsRows(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon(), 7*day))
	share(t, pool, "did:1", tid(noon()), "u", noon(), link.Card{})
	execute(t, pool, `CREATE TABLE gone (did text)`)
	drop := func() (bool, error) {
		return schema.DropPartition(t.Context(), pool, "shares_20260704_00", func(q *pgx.Batch) {
			q.Queue(`INSERT INTO gone SELECT did FROM shares_20260704_00`)
		})
	}
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer reader.Rollback(context.Background()) // finished, or the test has failed
	execute(t, reader, `SELECT FROM shares`)
	_, err = drop()
	require.ErrorIs(t, err, schema.ErrBusy)
	require.Empty(t, column(t, pool, `SELECT did FROM gone`))
	require.NoError(t, reader.Rollback(t.Context()))
	dropped, err := drop()
	require.NoError(t, err)
	require.True(t, dropped)
	require.Equal(t, []string{"did:1"}, column(t, pool, `SELECT did FROM gone`))
}

func TestSharesAreCompleteSinceTheOldestDay(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	since := func() time.Time {
		at, err := ranking.CompleteSince(t.Context(), pool)
		require.NoError(t, err)
		return at.UTC()
	}
	execute(t, pool, `UPDATE weir_migration SET applied_at = $1`, noon())
	require.Equal(t, noon(), since())
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon(), 7*day))
	require.Equal(t, noon(), since(), "a backfill may have stored older shares, but not all")
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon().Add(2*day), 7*day))
	for d := range 2 {
		_, err := ranking.DropDay(t.Context(), pool, fmt.Sprintf("shares_2026070%d_%s", 3+d, []string{"12", "00"}[d]))
		require.NoError(t, err)
	}
	require.Equal(t, time.Date(2026, 7, 5, 0, 0, 0, 0, time.UTC), since())
}

// TestKeptLinkIsMarkedThoughItsDayIsMadeAgain creates the day again before expiry gets to it.
func TestKeptLinkIsMarkedThoughItsDayIsMadeAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, noon(), 7*day))
	for i := range 5 {
		share(t, pool, fmt.Sprint("did:", i), tid(noon()), "u", noon(), link.Card{})
	}
	const part = "shares_20260704_00"
	last, links, err := ranking.CountLeaving(t.Context(), pool, ranking.LinkRule{Now: noon(), Sharers: 5}, part, 0, 10)
	require.NoError(t, err)
	require.Equal(t, 1, links)
	require.Positive(t, last)
	marked, err := ranking.MarkKept(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Zero(t, marked, "the link must not be marked before its day is dropped")
	dropped, err := ranking.DropDay(t.Context(), pool, part)
	require.NoError(t, err)
	require.True(t, dropped)
	execute(t, pool, `SELECT ensure_partition('shares', $1, '1 day')`, noon())
	marked, err = ranking.MarkKept(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Equal(t, 1, marked)
	require.Equal(t, []string{"5"}, column(t, pool, `SELECT kept_sharers::text FROM links`))
}

// TestShareRelationsAreCounted shows that a partition has as many indexes as ShareRelations
// states.
func TestShareRelationsAreCounted(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, time.Now(), 7*day))
	const relations = `SELECT DISTINCT 1 + (SELECT count(*) FROM pg_index WHERE indrelid = to_regclass(part)) FROM partitions
		WHERE parent = 'shares' AND NOT ahead`
	require.Equal(t, []string{fmt.Sprint(ranking.ShareRelations(7*day) / schema.PartitionsOver(7*day, day))},
		column(t, pool, `SELECT n::text FROM (`+relations+`) AS r (n)`))
}

// TestLinkInUseStaysDue covers another transaction that uses a link while links expire. The link
// stays due and expires later, instead of beginning its grace again. An entry of a link that no
// longer exists is deleted.
func TestLinkInUseStaysDue(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO links (identity, url, site, first_seen) SELECT u, u, 's', now()
		FROM unnest(ARRAY['https://a.example/', 'https://b.example/']) AS u`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO unshared_links (link_id, since) SELECT id, $1::timestamptz FROM links UNION ALL
		SELECT 7777, $1::timestamptz`, noon().Add(-2*day))
	require.NoError(t, err)
	rule := ranking.LinkRule{Now: noon(), Sharers: 5, Keep: day, Grace: day}
	using, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer using.Rollback(context.Background()) // rolled back below, or the test has failed
	_, err = using.Exec(t.Context(), `SELECT FROM links WHERE url = 'https://a.example/' FOR KEY SHARE`)
	require.NoError(t, err)
	expired := func() ranking.Expired {
		t.Helper()
		done, err := ranking.ExpireLinks(t.Context(), pool, rule, 100)
		require.NoError(t, err)
		return done
	}
	require.Equal(t, ranking.Expired{Examined: 2, Deleted: 1}, expired())
	require.Equal(t, []string{"https://a.example/ 2026-07-02"}, column(t, pool,
		`SELECT l.url || ' ' || u.since::date FROM unshared_links AS u JOIN links AS l ON l.id = u.link_id`))
	require.Equal(t, ranking.Expired{}, expired(), "a link in use does not keep an expiry from ending")
	require.NoError(t, using.Rollback(t.Context()))
	require.Equal(t, ranking.Expired{Examined: 1, Deleted: 1}, expired())
	require.Equal(t, []string{"0 0"}, column(t, pool, `SELECT (SELECT count(*) FROM unshared_links) || ' ' || (SELECT count(*) FROM links)`))
}
