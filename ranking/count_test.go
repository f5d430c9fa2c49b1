package ranking

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestCountsEqualAFoldAfterAnyHistory reads snapshots while the writers and the counter
// run.
func TestCountsEqualAFoldAfterAnyHistory(t *testing.T) {
	t.Parallel()
	const writers, least = 3, 10_000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	h := &history{pool: schematest.New(t)}
	h.clock.Store(time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC).UnixMicro())
	_, err := h.pool.Exec(t.Context(), `INSERT INTO links (url, site, first_seen) SELECT n::text, 'site' || n % 3 || '.example', now() FROM generate_series(1, $1::int) AS n`, historyLinks)
	require.NoError(t, err)

	var all sync.WaitGroup
	failed := make(chan error, writers+1)
	turns, counts := make(chan struct{}, 20), make(chan struct{}, 1)
	for n := range writers {
		all.Go(func() { failed <- h.write(t.Context(), source(uint64(n)), n, turns) })
	}
	all.Go(func() { failed <- h.count(t.Context(), source(100), counts) })

	r := source(200)
	rounds := map[string]int{}
	for h.steps.Load() < least {
		give(turns, cap(turns))
		give(counts, r.IntN(4))
		queries := []Query{randomQuery(r, h.now()), randomQuery(r, h.now()), randomQuery(r, h.now())}
		counted, recounted, pending := h.compare(t, queries)
		rounds["counted"] += counted
		rounds["recounted"] += recounted
		if pending {
			rounds["corrected"] += counted
		}
	}
	close(turns)
	close(counts)
	all.Wait()
	for range writers + 1 {
		require.NoError(t, <-failed)
	}
	t.Logf("%d steps; rankings: %v", h.steps.Load(), rounds)
	for _, what := range []string{"counted", "recounted", "corrected"} {
		require.Greater(t, rounds[what], 5, what)
	}
	h.finish(t)
}

// give gives up to n turns, without waiting for them to be taken.
func give(turns chan<- struct{}, n int) {
	for range n {
		select {
		case turns <- struct{}{}:
		default:
			return
		}
	}
}

// check requires that no count differs from a recount.
func (h *history) check(t *testing.T) {
	t.Helper()
	done, err := Check(t.Context(), h.pool, func(d Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
	require.False(t, done.Pending)
}

// finish counts everything that is pending, and compares every window in every order.
func (h *history) finish(t *testing.T) {
	t.Helper()
	for {
		done, err := Count(t.Context(), h.pool, h.now())
		require.NoError(t, err)
		if !done.More && !done.Busy { // a killed counter holds its lock until the server notices
			break
		}
	}
	var queries []Query
	for _, w := range Windows() {
		for _, sort := range []Sort{Sharers, Speed, Newest} {
			for _, watch := range []string{"", "target0.example"} {
				queries = append(queries, Query{At: h.now(), Window: w.Length, Sort: sort, Watch: watch, Limit: 20})
			}
		}
	}
	h.check(t)
	_, recounted, pending := h.compare(t, queries)
	require.False(t, pending)
	require.Zero(t, recounted, "nothing is pending")
}

// TestWriterDoesTheSameForAPopularLinkOrAccount: an account that shares thousands of
// links is hidden, and a link that thousands share is shared once more. Each transaction
// writes one row for the counter and none that others use, and the next request knows.
func TestWriterDoesTheSameForAPopularLinkOrAccount(t *testing.T) {
	t.Parallel()
	const many = 4000
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(db schema.DB, sql string, args ...any) {
		_, err := db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	count := func() Counted {
		done, err := Count(t.Context(), pool, now)
		require.NoError(t, err)
		return done
	}
	exec(pool, `INSERT INTO links (url, site, first_seen) SELECT n::text, 's', $1 FROM generate_series(1, $2::int) AS n`, now, many)
	exec(pool, `INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) SELECT 'did:plc:busy', 'c', id::text, id, 'post', $1 FROM links`, now.Add(-time.Minute))
	exec(pool, `INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) SELECT 'did:plc:' || n, 'c', 'r', 1, 'post', $1 FROM generate_series(2, $2::int) AS n`, now.Add(-time.Minute), many)
	count()
	sharers := func() int {
		p, err := Trending(t.Context(), pool, Query{At: now, Window: time.Hour, Limit: 1})
		require.NoError(t, err)
		require.False(t, p.Recounted)
		require.Equal(t, "1", p.Links[0].URL)
		return p.Links[0].Sharers
	}
	require.Equal(t, many, sharers())

	// pending runs a statement on a new connection, and returns how many rows it writes for the counter.
	pending := func(sql string) (rows int) {
		conn, err := pgx.ConnectConfig(t.Context(), pool.Config().ConnConfig)
		require.NoError(t, err)
		defer conn.Close(t.Context()) //nolint:errcheck // the connection is no longer needed
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		exec(tx, sql)
		found, err := tx.Query(t.Context(), `SELECT relname::text, (n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_xact_user_tables WHERE n_tup_ins + n_tup_upd + n_tup_del > 0`)
		require.NoError(t, err)
		var table string
		var n int
		_, err = pgx.ForEachRow(found, []any{&table, &n}, func() error {
			require.NotContains(t, []string{"links", "sharers", "link_counts", "count_state"}, table)
			if table == "pending_counts" {
				rows = n
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		return rows
	}
	require.Equal(t, 1, pending(`INSERT INTO accounts (did, status) VALUES ('did:plc:busy', 'takendown')`))
	require.Equal(t, many-1, sharers(), "the request corrects thousands of links")
	require.Equal(t, many, count().Sharers)
	require.Equal(t, 1, pending(`UPDATE accounts SET status = 'active' WHERE did = 'did:plc:busy'`))
	require.Equal(t, many, sharers())
	require.Equal(t, 1, pending(`DELETE FROM shares WHERE did = 'did:plc:2'`))
	require.Equal(t, many-1, sharers())
	require.Equal(t, 0, pending(`UPDATE accounts SET handle = 'busy.example' WHERE did = 'did:plc:busy'`), "it counts as before")

	// A step of the counter reads neither of them from the first share on.
	count()
	exec(pool, `INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) VALUES ('did:plc:new', 'c', 'r', 1, 'post', $1)`, now)
	done := count()
	require.Equal(t, Counted{Pending: 1, Sharers: 1, Links: 1}, done)
	h := &history{pool: pool}
	h.check(t)
	h.compare(t, []Query{{At: now, Window: time.Hour, Sort: Sharers, Limit: 2 * many}, {At: now, Window: 24 * time.Hour, Sort: Speed, Limit: 2 * many}})
}

// TestDifferencesAreFound: a count that is wrong is reported, by its link, and a recount
// repairs it.
func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	differences := func() (lines []string, pending bool) {
		found := func(d Difference) { lines = append(lines, d.String()) }
		done, err := Check(t.Context(), pool, found)
		require.NoError(t, err)
		return lines, done.Pending
	}
	exec(`INSERT INTO links (url, site, first_seen) SELECT n::text, 's', $1 FROM generate_series(1, 3) AS n`, now)
	exec(`INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) SELECT 'did:plc:' || n, 'c', id::text, id, 'post', $1 FROM links, generate_series(1, 2) AS n`, now)
	_, pending := differences()
	require.True(t, pending, "nothing is counted yet")
	_, err := Count(t.Context(), pool, now)
	require.NoError(t, err)
	lines, pending := differences()
	require.False(t, pending)
	require.Empty(t, lines)

	exec(`UPDATE link_counts SET in_7d = 1, in_24h = 1, in_12h = 1, in_6h = 1, in_3h = 1, in_1h = 1 WHERE link_id = 1`)
	exec(`DELETE FROM sharers WHERE link_id = 2 AND did = 'did:plc:1'`)
	exec(`UPDATE sharers SET repost_at = at WHERE link_id = 3 AND did = 'did:plc:2'`)
	exec(`DELETE FROM link_counts WHERE link_id = 3`)
	lines, _ = differences()
	require.Len(t, lines, 5, "%v", lines)
	for i, begins := range []string{"link 2, sharer did:plc:1: kept nothing, recounted {", "link 3, sharer did:plc:2: kept {", "link 1: kept {", "link 2: kept {", "link 3: kept nothing, recounted {"} {
		require.True(t, strings.HasPrefix(lines[i], begins), "%s: expected %s", lines[i], begins)
	}
	sampled := map[int64]bool{}
	wrong, err := CheckSample(t.Context(), pool, 100, now, func(d Difference) { sampled[d.Link] = true })
	require.NoError(t, err)
	require.Equal(t, 5, wrong)
	counts, err := schema.ReadCounts(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, int64(5), counts.Wrong)
	require.Equal(t, map[int64]bool{1: true, 2: true, 3: true}, sampled)

	// A pending pair is left out: readers correct it.
	exec(`INSERT INTO pending_counts (link_id, did) VALUES (2, 'did:plc:1')`)
	lines, _ = differences()
	require.Len(t, lines, 4)
	require.NoError(t, CountEverything(t.Context(), pool))
	_, pending = differences()
	require.True(t, pending)
	_, err = Count(t.Context(), pool, now)
	require.NoError(t, err)
	lines, _ = differences()
	require.Empty(t, lines)
}
