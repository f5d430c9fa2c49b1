package lexicons

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestDependentsOfOthersAreNotRead parks many records that wait for one target, in tables that were
// empty when they were analyzed. A query for the dependents of other targets, or for what is stored
// of other records, reads none of those rows.
func TestDependentsOfOthersAreNotRead(t *testing.T) {
	const many, others = 2000, 20
	pool := schematest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`ANALYZE parked, record_refs`)
	exec(`
INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey) SELECT 'a.b.c', 'did:plc:a', n, 'a.b.c', 'did:plc:b', 'target'
FROM generate_series(1, $1::int) AS n`, many)
	refs := `INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared, read)
		SELECT 'a.b.c', 'did:plc:a', n, '', 'at-uri', '', 'a.b.c', 'did:plc:b', 'target', true, true FROM generate_series(1, $1::int) AS n`
	exec(refs, many)
	keys := make([]schema.Key, others)
	for i := range keys {
		keys[i] = schema.Key{Collection: "a.b.c", DID: "did:plc:c", Rkey: serialTID(i + 1)}
	}
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			exec(`ANALYZE parked, record_refs`)
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			require.NoError(t, verdict.UseIndexes(t.Context(), tx))
			for range 7 { // from the sixth time on, the plan may be a generic one
				found, err := verdict.HaveDependents(t.Context(), tx, keys)
				require.NoError(t, err)
				require.Empty(t, found)
				_, err = verdict.ReadBefore(t.Context(), tx, keys)
				require.NoError(t, err)
				require.NoError(t, verdict.Store(t.Context(), tx,
					[]*verdict.Judgment{{Key: keys[0], CID: "cid", Hash: "hash", Verdict: "unknown", State: verdict.Projected}}))
			}
			var read int
			require.NoError(t, tx.QueryRow(t.Context(), `
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))
FROM pg_stat_xact_user_tables
WHERE relname IN ('parked', 'record_refs')`).Scan(&read))
			require.Less(t, read, many)
			return nil
		}))
	}
	found, err := verdict.HaveDependents(t.Context(), pool, []schema.Key{{Collection: "a.b.c", DID: "did:plc:b", Rkey: "target"}})
	require.NoError(t, err)
	require.Len(t, found, 1)
}
