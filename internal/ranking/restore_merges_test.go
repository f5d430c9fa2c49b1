package ranking_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// archivedMerges returns the rows of link_merges as the archive stores them.
func archivedMerges(t *testing.T, pool *pgxpool.Pool) []json.RawMessage {
	t.Helper()
	rows, err := schema.All(t.Context(), pool, "read the merges", pgx.RowTo[json.RawMessage], ranking.MergesSnapshot().Read)
	require.NoError(t, err)
	return rows
}

// TestAnyMergesAreRestored merges and splits links at random. It restores this in a database that
// lacks some of the links and has other ids for the rest.
func TestAnyMergesAreRestored(t *testing.T) {
	t.Parallel()
	pool, second := schematest.New(t), schematest.New(t)
	const add = `INSERT INTO links (identity, url, site, first_seen)
		SELECT n::text, 'https://' || n || '.example/', n || '.example', now() FROM generate_series($1::int, $2::int, $3::int) AS n`
	_, err := pool.Exec(t.Context(), add, 1, 20, 1)
	require.NoError(t, err)
	_, err = second.Exec(t.Context(), add, 15, 1, -1)
	require.NoError(t, err)
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 200 {
		now := time.Unix(int64(step), 0)
		link, into := 1+random.Int64N(20), 1+random.Int64N(20)
		pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { // some are refused
			if random.IntN(3) == 0 {
				return ranking.SplitLink(t.Context(), tx, link, now)
			}
			return ranking.MergeLinks(t.Context(), tx, ranking.Merge{
				Link: link, Into: into, Why: []string{ranking.Redirected, ranking.ByHand}[random.IntN(2)], Now: now,
			})
		})
	}
	merged := func(pool *pgxpool.Pool) (text string) {
		require.NoError(t, pool.QueryRow(t.Context(), `
SELECT string_agg(concat_ws(' ', l.identity, i.identity, m.why, m.merged_at, m.split_at, c.identity), E'\n' ORDER BY l.identity)
FROM link_merges AS m JOIN links AS l ON l.id = m.link_id JOIN links AS i ON i.id = m.into_id
JOIN links AS c ON c.id = l.counts_as`).Scan(&text))
		return text
	}
	want, archived := merged(pool), archivedMerges(t, pool)
	require.NotEmpty(t, want)
	for range 2 {
		require.NoError(t, ranking.MergesSnapshot().Restore(t.Context(), second, archived))
		require.Equal(t, want, merged(second))
	}
}
