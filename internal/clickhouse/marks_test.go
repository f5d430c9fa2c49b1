package clickhouse

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/testing/schematest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// TestIndexAgainRaisesTheGeneration shows that the generation of every segment is raised, so that
// ClickHouse does not drop blocks that it has stored before.
func TestIndexAgainRaisesTheGeneration(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Now()
	m := archive.NewManifest(7, "s", "w", archive.Sum{
		Records: 1, SHA256: strings.Repeat("aa", 32), Content: strings.Repeat("aa", 8),
	}, now, now)
	require.NoError(t, catalog.RestoreSegment(t.Context(), pool, m, "dir:/a", now))
	for want := range 3 {
		_, generation, err := unindexedSegment(t.Context(), pool, 7)
		require.NoError(t, err)
		require.Equal(t, want, generation)
		n, err := indexAgain(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, int64(1), n)
	}
}

// TestRewrittenSegmentIsIndexedAgain shows that an attempt with the rows of the previous version can no longer mark the
// segment.
func TestRewrittenSegmentIsIndexedAgain(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Now()
	sum := archive.Sum{Records: 2, SHA256: strings.Repeat("aa", 32), Content: strings.Repeat("aa", 8)}
	m := archive.NewManifest(7, "s", "w", sum, now, now)
	require.NoError(t, catalog.RestoreSegment(t.Context(), pool, m, "dir:/a", now))
	of := marks{DB: pool}
	begun, err := of.Begin(t.Context(), 7, 0)
	require.NoError(t, err)
	require.True(t, begun)
	require.NoError(t, of.Indexed(t.Context(), 7, 1))
	_, _, err = unindexedSegment(t.Context(), pool, 7)
	require.ErrorContains(t, err, "no rows")
	sum.Records, sum.Content = 1, strings.Repeat("bb", 8)
	require.NoError(t, catalog.ReplaceSegment(t.Context(), pool, m.Rewrite(sum, now)))
	require.NoError(t, of.Indexed(t.Context(), 7, 1), "the attempt from before ends late")
	again, _, err := unindexedSegment(t.Context(), pool, 7)
	require.NoError(t, err)
	require.Equal(t, 1, again.Rewritten)
	attempt, _, err := of.Begun(t.Context(), 7)
	require.NoError(t, err)
	require.Equal(t, 2, attempt)
}
