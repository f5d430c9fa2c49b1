package ranking_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestScatteredSharesDoNotKeepTheirIndexesLarge also checks that what a killed rebuild
// left behind is removed.
func TestScatteredSharesDoNotKeepTheirIndexesLarge(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (url, site, first_seen) SELECT n::text, 's', $1::timestamptz FROM generate_series(1, 20000) AS n`, noon())
	execute(t, pool, `INSERT INTO shares SELECT 'did:plc:' || id, 'c', 'r', id, 'post', first_seen + id * interval '1 second' FROM links`)
	execute(t, pool, `VACUUM ANALYZE shares`)
	size := func() (bytes int64) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT pg_relation_size('shares_window') + pg_relation_size('shares_link')`).Scan(&bytes))
		return bytes
	}
	full := size()
	rebuilt, err := ranking.RebuildShareIndexes(t.Context(), pool, 0)
	require.NoError(t, err)
	require.Empty(t, rebuilt, "full pages are no bloat")

	execute(t, pool, `DELETE FROM shares WHERE link_id % 50 <> 0`)
	execute(t, pool, `VACUUM ANALYZE shares`)
	require.Greater(t, size(), full*9/10, "vacuum cannot free them")
	rebuilt, err = ranking.RebuildShareIndexes(t.Context(), pool, 1<<30)
	require.NoError(t, err)
	require.Empty(t, rebuilt, "a small index is left alone")

	other, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer other.Release()
	execute(t, other, `SELECT pg_advisory_lock($1)`, int64(0x7765697269))
	_, err = ranking.RebuildShareIndexes(t.Context(), pool, 0)
	require.ErrorIs(t, err, schema.ErrBusy)
	execute(t, other, `SELECT pg_advisory_unlock($1)`, int64(0x7765697269))

	execute(t, pool, `CREATE INDEX shares_window_ccnew ON shares (shared_at)`)
	rebuilt, err = ranking.RebuildShareIndexes(t.Context(), pool, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"shares_link", "shares_window"}, rebuilt)
	require.Less(t, size(), full/5)
	require.Equal(t, []string{"shares_link", "shares_pkey", "shares_sharer", "shares_window"},
		column(t, pool, `SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'shares'::regclass AND indisvalid ORDER BY 1`))
	rebuilt, err = ranking.RebuildShareIndexes(t.Context(), pool, 0)
	require.NoError(t, err)
	require.Empty(t, rebuilt)
}
