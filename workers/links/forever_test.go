package links

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// TestPostsAreKeptForEver shows that WEIR_RETENTION=0 keeps posts and other
// records. Deleted accounts are still purged, and shares and Weir's own rows
// expire.
func TestPostsAreKeptForEver(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a := newAuthor(t, pool)
	w := expirer(t, pool, Retention{}, workers.Retention{Forever: true}, collection.Entry{Pattern: schema.PostCollection},
		collection.Entry{Pattern: "app.example.*"})
	now := time.Now().Truncate(time.Second)
	old := now.Add(-1000 * day)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, old, 0))
	_, err := pool.Exec(t.Context(), `INSERT INTO watches (target, kind) VALUES ('x.example', 'follows')`)
	require.NoError(t, err)
	for _, did := range []string{"did:plc:a", "did:plc:gone", "did:plc:unwatched"} {
		key, other := postKey(did, "1"), schema.Key{Collection: "app.example.other", DID: did, Rkey: "1"}
		a.apply(schema.Batch{
			Writes: []schema.Write{
				{Key: key, Rev: "1", CreatedAt: old, Record: []byte(`{}`)},
				{Key: other, Rev: "1", CreatedAt: old, Record: []byte(`{}`)},
			},
			Deletions:   []schema.Deletion{{Key: postKey(did, "deleted"), Rev: "1", At: old}},
			DeadLetters: []schema.DeadLetter{{Stage: schema.StageCommit, Raw: []byte(did)}},
		})
		require.NoError(t, setShares(t.Context(), pool, key, []ranking.Share{{
			Key: key, Link: link.Link{Identity: did, URL: did}, How: "post", SharedAt: old,
		}}, old))
		_, err := pool.Exec(t.Context(), `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at)
			VALUES ($1, $2, $3, '', $2, $2)`, did, old, old.Add(1e9))
		require.NoError(t, err)
	}
	_, err = pool.Exec(t.Context(), `UPDATE records SET indexed_at = created_at`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `UPDATE dead_letters SET last_seen = $1`, old)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO purge_queue VALUES ('did:plc:unwatched', $1)`, old)
	require.NoError(t, err)
	a.apply(schema.Batch{Statuses: []schema.Status{{DID: "did:plc:gone", Status: "deleted", At: now}}})
	for range 2 {
		require.NoError(t, w.Work(t.Context(), &river.Job[jobs.Expire]{JobRow: &rivertype.JobRow{}}))
		rows, err := pool.Query(t.Context(), `
			SELECT collection || ' ' || did || ' ' || rkey FROM records
			UNION ALL SELECT 'tombstone ' || did FROM tombstones
			UNION ALL SELECT 'letter ' || convert_from(raw, 'UTF8') FROM dead_letters
			UNION ALL SELECT 'gap ' || stream FROM gaps
			UNION ALL SELECT 'link ' || url FROM links
			UNION ALL SELECT 'share ' || did FROM shares
			ORDER BY 1`)
		require.NoError(t, err)
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{"app.bsky.feed.post did:plc:a 1", "app.bsky.feed.post did:plc:unwatched 1", "app.example.other did:plc:a 1",
			"app.example.other did:plc:unwatched 1", "link did:plc:a", "link did:plc:gone",
			"link did:plc:unwatched"}, left, "shares expire, and then their links")
		partitions, err := schema.ExpiredPartitions(t.Context(), pool, "posts", now)
		require.NoError(t, err)
		require.NotEmpty(t, partitions, "they stay")
	}
}
