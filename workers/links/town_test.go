package links

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// town is a database in which accounts post, repost and quote. Account "a" is did:plc:a,
// and a record is named "a/1", or "a/r1" if it is a repost.
type town struct {
	author
	w    *ProcessPosts
	news string
	revs int
}

func newTown(t *testing.T) *town {
	t.Helper()
	pool := schematest.New(t)
	return &town{author: newAuthor(t, pool), w: worker(pool), news: "https://news.example/1"}
}

func (c *town) key(name string) schema.Key {
	who, rkey, _ := strings.Cut(name, "/")
	key := postKey("did:plc:"+who, rkey)
	if strings.HasPrefix(rkey, "r") {
		key.Collection = repostCollection
	}
	return key
}

func (c *town) uri(name string) string {
	return c.key(name).URI()
}

// write stores a revision of a record.
func (c *town) write(name string, record any) {
	c.t.Helper()
	c.revs++
	raw, err := json.Marshal(record)
	require.NoError(c.t, err)
	c.apply(schema.Batch{Writes: []schema.Write{{
		Key: c.key(name), Rev: fmt.Sprintf("%05d", c.revs), CID: "c", CreatedAt: time.Now().Add(-time.Minute), Record: raw,
	}}})
}

// posts stores a post that contains links and may quote another.
func (c *town) posts(name, quoted string, urls ...string) {
	c.t.Helper()
	record := map[string]any{"text": strings.Join(urls, " ")}
	if quoted != "" {
		record["embed"] = map[string]any{"$type": "app.bsky.embed.record", "record": map[string]string{"uri": c.uri(quoted), "cid": "c"}}
	}
	c.write(name, record)
}

func (c *town) reposts(name, subject string) {
	c.t.Helper()
	c.write(name, map[string]any{"subject": map[string]string{"uri": c.uri(subject), "cid": "c"}})
}

func (c *town) deletes(name string) {
	c.t.Helper()
	c.revs++
	c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: c.key(name), Rev: fmt.Sprintf("%05d", c.revs), At: time.Now()}}})
}

// job returns the job of a batch with these records.
func (c *town) job(names ...string) *river.Job[ProcessPostsArgs] {
	var records []jobs.Record
	for _, name := range names {
		records = append(records, jobs.Record(c.key(name)))
	}
	args, _ := Projection().Job(jobs.Batch{Records: records}).(ProcessPostsArgs)
	return &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now()}, Args: args}
}

// working returns the context in which a worker may enqueue jobs.
func (c *town) working(ctx context.Context) context.Context {
	c.t.Helper()
	queue, err := workers.Queue(c.pool, slog.New(slog.DiscardHandler))
	require.NoError(c.t, err)
	return rivertest.WorkContext(ctx, queue)
}

// afterTransaction returns a context in which a worker calls a function after the transaction with
// this number.
func afterTransaction(ctx context.Context, number int, do func()) context.Context {
	return crashpoint.On(ctx, number, "projection: after its transaction", func(context.Context) { do() })
}

// killed works a job whose process dies after its first transaction.
func (c *town) killed(name string) {
	c.t.Helper()
	ctx := crashpoint.Kill(c.t.Context(), 1, "projection: after its transaction")
	require.ErrorIs(c.t, c.w.Work(ctx, c.job(name)), context.Canceled)
}

// enqueued processes the jobs that other jobs enqueued for records, and returns how many.
func (c *town) enqueued() (n int) {
	c.t.Helper()
	for _, raw := range c.rows(`WITH d AS (DELETE FROM river_job WHERE kind = 'process_posts' RETURNING *) SELECT args::text FROM d
		ORDER BY id`) {
		job := c.job()
		require.NoError(c.t, json.Unmarshal([]byte(raw), &job.Args))
		require.NoError(c.t, c.w.Work(c.t.Context(), job))
		n++
	}
	return n
}

// project processes records, one job each.
func (c *town) project(names ...string) {
	c.t.Helper()
	for _, name := range names {
		require.NoError(c.t, c.w.Work(c.t.Context(), c.job(name)))
	}
}

// counts returns the number of sharers of a link in the ranking.
func (c *town) counts(url string) int {
	c.t.Helper()
	page, err := ranking.Trending(c.t.Context(), c.pool, ranking.Query{Window: time.Hour, Limit: 1000})
	require.NoError(c.t, err)
	for _, l := range page.Links {
		if l.URL == url {
			return l.Sharers
		}
	}
	return 0
}

func (c *town) rows(sql string) []string {
	c.t.Helper()
	all, err := schema.All(c.t.Context(), c.pool, "read", pgx.RowTo[string], sql)
	require.NoError(c.t, err)
	return all
}

func (c *town) execute(sql string, args ...any) {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), sql, args...)
	require.NoError(c.t, err)
}

// sharing returns the shares that count, as "a/1 post https://…".
func (c *town) sharing() []string {
	c.t.Helper()
	return c.rows(`SELECT replace(s.did, 'did:plc:', '') || '/' || s.rkey || ' ' || s.how || ' ' || l.url FROM shares AS s
		JOIN links AS l ON l.id = s.link_id
		WHERE s.subject_did IS NULL
			OR s.link_id = ANY (SELECT unnest(u.links) FROM subjects AS u WHERE u.did = s.subject_did AND u.rkey = s.subject_rkey) ORDER BY 1`)
}

// waiting returns the waiting records, as "a/r1 for b/1".
func (c *town) waiting() []string {
	c.t.Helper()
	return c.rows(`SELECT replace(did || '/' || rkey || ' for ' || for_did || '/' || for_rkey, 'did:plc:', '') FROM waiting ORDER BY 1`)
}

// checks returns the worker of check_subjects.
func (c *town) checks() *CheckSubjects {
	return &CheckSubjects{pool: c.pool, log: slog.New(slog.DiscardHandler), links: c.w, stored: collection.Of(collection.Entry{
		Pattern: "app.bsky.feed.*", Retention: 48 * time.Hour,
	}),
		patience: time.Minute, calls: subjectCalls, waitAtMost: waitingRows, now: time.Now}
}

func (c *town) check(w *CheckSubjects) {
	c.t.Helper()
	require.NoError(c.t, w.Work(c.t.Context(), &river.Job[CheckSubjectsArgs]{JobRow: &rivertype.JobRow{}}))
}
