package schema_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestNumbersOfTwoDatabases lets an archive have two segments of one number, because two
// databases have archived to it. It can be read, and the next segment has another number.
func TestNumbersOfTwoDatabases(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Now()
	manifest := func(sha string) archive.Manifest {
		return archive.NewManifest(7, "s", "w", archive.Sum{Records: 1, SHA256: strings.Repeat(sha, 32), Content: strings.Repeat(sha, 8)}, now)
	}
	for range 2 {
		require.NoError(t, schema.RestoreSegment(t.Context(), pool, manifest("aa"), "dir:/a", now))
		require.NoError(t, schema.RestoreSegment(t.Context(), pool, manifest("bb"), "dir:/a", now))
	}
	all, err := schema.Segments(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, all, 1)
	next, err := schema.NextSegment(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, int64(8), next)
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return schema.StoreSegment(t.Context(), tx, manifest("cc"), nil)
	}), "segment 7 exists", "no rows are assigned to the segment of another database")
}
