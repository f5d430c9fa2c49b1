package ranking_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestReaderFindsTheSharesThatAPartitionTakes has a reader begin while a partition is created and wait for it. It then
// looks for its rows in the new partition.
func TestReaderFindsTheSharesThatAPartitionTakes(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	noon := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	keys := []schema.Key{{
		Collection: schema.PostCollection, DID: "did:plc:a",
		Rkey: column(t, pool, `SELECT tid_floor('2026-07-04 12:00:00+00')`)[0],
	}}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, keys, []ranking.Share{{
			Key: keys[0], Link: link.Link{Identity: "x", URL: "x", Site: "site.example"}, How: "post", SharedAt: noon,
		}}, noon)
	}))
	found := make(chan error, 1)
	n := 0
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT ensure_partition('shares', $1, '6 hours')`, noon); err != nil {
			return err
		}
		go func() {
			shared, err := ranking.RecordsWithShares(t.Context(), pool, keys)
			n = len(shared)
			found <- err
		}()
		eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 10*time.Millisecond)
		return nil
	}))
	require.NoError(t, <-found)
	require.Equal(t, 1, n)
}
