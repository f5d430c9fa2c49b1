package links

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// aboutNothing is a post that shares nothing.
const aboutNothing = `{"$type":"app.bsky.feed.post","text":"nothing to see here."}`

func plain(rkey, rev string) schema.Write {
	return schema.Write{Key: postKey("did:plc:a", rkey), Rev: rev, CID: "c", CreatedAt: time.Unix(100, 0), Record: []byte(aboutNothing)}
}

// named returns the posts and reposts that jobs name, and whether the jobs are marked as fresh.
func (a author) named() []string {
	a.t.Helper()
	return strs(a.t, a.pool, `SELECT concat_ws(' ', n.name, j.args ->> 'fresh') FROM river_job AS j
		CROSS JOIN LATERAL jsonb_array_elements_text(coalesce(j.args -> 'posts', '[]') || coalesce(j.args -> 'reposts', '[]')) AS n (name)
		WHERE j.kind = 'process_posts' ORDER BY j.id, n.name`)
}

func (a author) forget() {
	a.t.Helper()
	_, err := a.pool.Exec(a.t.Context(), `DELETE FROM river_job`)
	require.NoError(a.t, err)
}

// TestJobsOmitNewPostsThatShareNothing shows that new posts without links are omitted. An edit is
// named whatever it contains, because the earlier revision may have shared something.
func TestJobsOmitNewPostsThatShareNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	p := registered(t, pool)
	a := newAuthor(t, pool)
	linking, repost := plain("2", "1"), plain("3", "1")
	linking.Record = []byte(`{"$type":"app.bsky.feed.post","text":"see https://x.example/"}`)
	repost.Collection = repostCollection
	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{plain("1", "1"), linking, repost}}))
	require.Equal(t, []string{"did:plc:a/2 true", "did:plc:a/3 true"}, a.named())
	a.forget()

	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{plain("4", "1"), plain("5", "1")}}))
	require.Empty(t, a.named())
	require.Empty(t, strs(t, pool, `SELECT kind FROM river_job`), "a job would name nothing")

	expired := plain("7", "2")
	expired.Edit = true // its first revision is no longer stored
	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{
		plain("1", "1"), plain("2", "2"), plain("4", "2"), plain("6", "1"), expired,
	}}))
	require.Equal(t, []string{"did:plc:a/2", "did:plc:a/4", "did:plc:a/7"}, a.named())
	a.forget()

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		queue, err := workers.Queue(pool, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return p.Enqueue(queue, "")(t.Context(), tx, schema.NotFresh([]schema.Key{postKey("did:plc:a", "1")}), time.Time{})
	}))
	require.Equal(t, []string{"did:plc:a/1"}, a.named(), "a repair, a listing or a retry names every record")
}

// works runs the jobs of the last commits.
func (a author) works(w *ProcessPosts) {
	a.t.Helper()
	for _, name := range a.named() {
		name, fresh, _ := strings.Cut(name, " ")
		require.NoError(a.t, w.Work(a.t.Context(), &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now(), Attempt: 1},
			Args: ProcessPostsArgs{Posts: []string{name}, Fresh: fresh == "true"}}))
	}
	a.forget()
}

// TestEditThatDropsTheLinkEndsTheShare follows such an edit through the commits and their jobs.
func TestEditThatDropsTheLinkEndsTheShare(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	p := registered(t, pool)
	a, w := newAuthor(t, pool), worker(pool)
	linking := plain("1", "1")
	linking.Record = []byte(`{"$type":"app.bsky.feed.post","text":"see https://x.example/"}`)
	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{linking}}))
	a.works(w)
	require.Equal(t, []string{"1 https://x.example/"}, shares(t, pool))
	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{plain("1", "2")}}))
	a.works(w)
	require.Empty(t, shares(t, pool))
}

// TestFreshRecordThatChangesIsReplaced edits a new post after its job has read it, and has another
// job project the first revision in between.
func TestFreshRecordThatChangesIsReplaced(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	const x, y = "https://x.example/", "https://y.example/"
	a.post("1", "1", x)
	meanwhile := true
	w.find = func(did string, record []byte) (link.Post, error) {
		if meanwhile {
			meanwhile = false
			require.NoError(t, work(t.Context(), worker(pool), "1"))
			require.Equal(t, []string{"1 " + x}, shares(t, pool))
			a.post("1", "2", y)
		}
		return link.InPost(did, record)
	}
	require.NoError(t, w.Work(t.Context(), &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now(), Attempt: 1},
		Args: ProcessPostsArgs{Posts: []string{"did:plc:a/1"}, Fresh: true}}))
	require.Equal(t, []string{"1 " + y}, shares(t, pool))
}

// TestSecondAttemptIsNotFresh retries the job of a post that was edited after the first attempt.
func TestSecondAttemptIsNotFresh(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	a.post("1", "1", "https://x.example/")
	for attempt := 1; attempt <= 2; attempt++ {
		require.NoError(t, w.Work(t.Context(), &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now(), Attempt: attempt},
			Args: ProcessPostsArgs{Posts: []string{"did:plc:a/1"}, Fresh: true}}))
		a.post("1", "2")
	}
	require.Empty(t, shares(t, pool))
}

// TestFreshQuoteOfAPostThatIsEdited has another job project a quote after the quote's own job has
// begun. Then the quoted post is edited. The share that the other job wrote no longer counts, and
// is deleted when the subject is checked.
func TestFreshQuoteOfAPostThatIsEdited(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	const later = "https://later.example/"
	c.posts("a/1", "", c.news)
	c.project("a/1")
	c.posts("b/2", "a/1")
	w := worker(c.pool)
	w.find = func(did string, record []byte) (link.Post, error) {
		w.find = link.InPost
		c.project("b/2")
		require.Equal(t, []string{"a/1 post " + c.news, "b/2 quote " + c.news}, c.sharing())
		c.posts("a/1", "", later)
		c.project("a/1")
		return link.InPost(did, record)
	}
	job := c.job("b/2")
	job.Args.Fresh = true
	require.NoError(t, w.Work(t.Context(), job))
	require.Equal(t, []string{"a/1 post " + later, "b/2 quote " + later}, c.sharing())
	c.check(c.checks())
	require.Equal(t, []string{"a/1 post " + later, "b/2 quote " + later}, c.sharing())
	require.Equal(t, []string{"2"}, c.rows(`SELECT count(*)::text FROM shares`))
}
