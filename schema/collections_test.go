package schema_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestStoredCollectionsAreListed lists them in pages, and of one account.
func TestStoredCollectionsAreListed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	names, err := schema.OtherCollections(t.Context(), pool, "", 10)
	require.NoError(t, err)
	require.Empty(t, names)
	execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT c, d, r::text, '1', 'c', now(), '{}' FROM unnest(ARRAY['a.b.c', 'pub.layers.note', 'pub.layers.x.y', 'pub.layersx.z',
		    'app.bsky.feed.post']) AS c, unnest(ARRAY['did:1', 'did:2']) AS d, generate_series(1, 3) AS r
		WHERE d = 'did:1' OR c <> 'pub.layers.note'`)
	var all []string
	for after := ""; ; {
		names, err := schema.OtherCollections(t.Context(), pool, after, 3)
		require.NoError(t, err)
		if len(names) == 0 {
			break
		}
		all, after = append(all, names...), names[len(names)-1]
	}
	require.Equal(t, []string{"a.b.c", "pub.layers.note", "pub.layers.x.y", "pub.layersx.z"}, all)
	for did, want := range map[string][]string{"did:1": {"pub.layers.note", "pub.layers.x.y"}, "did:2": {"pub.layers.x.y"}} {
		of, err := schema.OtherCollectionsOf(t.Context(), pool, did, "pub.layers.", "pub.layers/", 10)
		require.NoError(t, err)
		require.Equal(t, want, of)
	}
}

// TestExpiryFindsWhatIsDueByAnIndex covers thousands of records that are kept,
// and a collection that is kept for ever.
func TestExpiryFindsWhatIsDueByAnIndex(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, indexed_at, record)
		SELECT c, 'did:1', n::text, '1', 'c', now(), now() - CASE WHEN n % 100 = 0 THEN interval '2 days' ELSE interval '0' END, '{}'
		FROM unnest(ARRAY['a.b.ever', 'a.b.day']) AS c, generate_series(1, 3000) AS n`)
	execute(t, pool, `ANALYZE records_other`)
	plan := fmt.Sprint(column(t, pool, `
		EXPLAIN SELECT ctid FROM records_other WHERE collection = 'a.b.day' AND indexed_at <= now() - interval '1 day' ORDER BY indexed_at
		LIMIT 10`))
	require.Contains(t, plan, "records_other_indexed_at")
	before := time.Now().Add(-day)
	for _, want := range []int{20, 10, 0} {
		n, err := schema.ExpireRecords(t.Context(), pool, []schema.ExpiryRule{{Collection: "a.b.day", Before: before}}, 20)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	require.Equal(t, []string{"3000"}, column(t, pool, `SELECT count(*)::text FROM records WHERE collection = 'a.b.ever'`))
}
