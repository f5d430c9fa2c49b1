package links

import (
	"fmt"
	"github.com/weir-social/weir/schema"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// BenchmarkViralPost measures how many reposts of one post are projected per second. The rate must
// not fall as their number grows.
func BenchmarkViralPost(b *testing.B) {
	pool := schematest.New(b)
	_, _ = schema.NewProjections(Projection()).Register(b.Context(), pool)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(b.Context(), sql, args...)
		require.NoError(b, err)
	}
	exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('app.bsky.feed.post', 'did:plc:a', '1', '1', '', now(), '{"text":"https://news.example/1"}')`)
	w := worker(pool)
	job := func(args ProcessPostsArgs) {
		require.NoError(b, w.Work(b.Context(), &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now()}, Args: args}))
	}
	job(ProcessPostsArgs{Posts: []string{"did:plc:a/1"}})
	const each, jobSize = 20_000, 500
	for part := range 5 {
		exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
			SELECT 'app.bsky.feed.repost', 'did:plc:b' || i, 'r', '1', '', now(),
				'{"subject":{"uri":"at://did:plc:a/app.bsky.feed.post/1","cid":"c"},"createdAt":"2026-07-04T12:00:00Z"}'
			FROM generate_series($1::int, $2::int) AS i`, part*each, part*each+each-1)
		began := time.Now()
		for at := part * each; at < (part+1)*each; at += jobSize {
			names := make([]string, jobSize)
			for i := range names {
				names[i] = fmt.Sprintf("did:plc:b%d/r", at+i)
			}
			job(ProcessPostsArgs{Posts: []string{}, Reposts: names})
		}
		b.ReportMetric(each/time.Since(began).Seconds(), fmt.Sprintf("shares/s-from-%dk", part*each/1000))
	}
	began := time.Now()
	exec(`DELETE FROM subjects`)
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms/deletion")
}
