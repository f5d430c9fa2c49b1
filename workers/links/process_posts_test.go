package links

import (
	"context"
	"errors"
	"fmt"
	"github.com/weir-social/weir/internal/testing/workertest"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// author writes posts like the consumer.
type author struct {
	t     testing.TB
	pool  *pgxpool.Pool
	lease schema.Lease
}

func newAuthor(t *testing.T, pool *pgxpool.Pool) author {
	registered(t, pool) // ends leases
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "me", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	return author{t, pool, lease}
}

func (a author) apply(b schema.Batch) {
	a.t.Helper()
	require.NoError(a.t, pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		b.Projections = schema.NewProjections(Projection())
		_, err := b.Apply(a.t.Context(), tx, a.lease)
		return err
	}))
}

// post writes a revision of a post that links to the urls.
func (a author) post(rkey, rev string, urls ...string) {
	a.t.Helper()
	facets := ""
	for i, u := range urls {
		if i > 0 {
			facets += ","
		}
		facets += fmt.Sprintf(`{"index":{"byteStart":0,"byteEnd":1},"features":[{"$type":"app.bsky.richtext.facet#link","uri":%q}]}`, u)
	}
	a.apply(schema.Batch{Writes: []schema.Write{{Key: postKey("did:plc:a", rkey), Rev: rev, CID: "c", CreatedAt: time.Unix(100, 0),
		Record: []byte(`{"$type":"app.bsky.feed.post","text":"x","createdAt":"2026-07-04T12:00:00Z","facets":[` + facets + `]}`)}}})
}

func (a author) delete(rkey, rev string) {
	a.t.Helper()
	a.apply(schema.Batch{Deletions: []schema.Deletion{{Key: postKey("did:plc:a", rkey), Rev: rev, At: time.Unix(200, 0)}}})
}

func worker(pool *pgxpool.Pool) *ProcessPosts {
	return measured(pool, nil)
}

func measured(pool *pgxpool.Pool, r prometheus.Registerer) *ProcessPosts {
	return newProcessPosts(workers.NewBundle(workers.Config{Shared: workers.Shared{Pool: pool,
		Logger: slog.New(slog.DiscardHandler), Registerer: r}}))
}

func work(ctx context.Context, w *ProcessPosts, rkeys ...string) error {
	job := &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{CreatedAt: time.Now()}}
	for _, rkey := range rkeys {
		job.Args.Posts = append(job.Args.Posts, "did:plc:a/"+rkey)
	}
	return w.Work(ctx, job)
}

func shares(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT s.rkey || ' ' || l.url FROM shares s JOIN links l ON l.id = s.link_id ORDER BY 1`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

func TestSharesFollowThePost(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	const x, y = "https://x.example/", "https://y.example/"
	a.post("1", "1", x)
	a.post("2", "1")
	for range 2 { // the second run changes nothing
		require.NoError(t, work(t.Context(), w, "1", "2", "2", "nowhere"))
		require.Equal(t, []string{"1 " + x}, shares(t, pool))
	}
	a.post("1", "2", y, x)
	a.post("2", "2", x)
	require.NoError(t, work(t.Context(), w, "1", "2"))
	require.Equal(t, []string{"1 " + x, "1 " + y, "2 " + x}, shares(t, pool))
	a.post("1", "3", y)
	a.post("2", "3")
	require.NoError(t, work(t.Context(), w, "1", "2"))
	require.Equal(t, []string{"1 " + y}, shares(t, pool))
	a.delete("1", "4")
	require.Empty(t, shares(t, pool), "gone with the deletion, before any job")
	require.NoError(t, work(t.Context(), w, "1", "2"))
	require.Empty(t, shares(t, pool))
}

// TestGiftFollowsThePost shows that a gift link is stored and deleted with the share that gives it.
// The link is the same.
func TestGiftFollowsThePost(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	gifts := func() (all []string) {
		rows, err := pool.Query(t.Context(), `SELECT l.url || ' ' || coalesce(s.gift, 'none') FROM shares AS s
			JOIN links AS l ON l.id = s.link_id ORDER BY s.rkey`)
		require.NoError(t, err)
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}
	const story = "https://www.nytimes.com/story.html"
	a.post("1", "1", story+"?smid=x", story+"?unlocked_article_code=a")
	a.post("2", "1", story)
	require.NoError(t, work(t.Context(), w, "1", "2"))
	require.Equal(t, []string{story + " " + story + "?unlocked_article_code=a", story + " none"}, gifts())
	a.post("1", "2", story)
	a.post("2", "2", story+"?unlocked_article_code=b&smid=y")
	require.NoError(t, work(t.Context(), w, "1", "2"))
	require.Equal(t, []string{story + " none", story + " " + story + "?unlocked_article_code=b"}, gifts())
	a.delete("2", "3")
	require.Equal(t, []string{story + " none"}, gifts())
}

// TestLateWorkerWritesWhatIsStoredNow has a worker read a post. Before it writes, the post is
// edited and the edit's job completes. Without the second check of the revision, the older links
// would be written last and stay.
func TestLateWorkerWritesWhatIsStoredNow(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, late := newAuthor(t, pool), worker(pool)
	a.post("1", "1", "https://old.example/")
	read, goOn := make(chan bool), make(chan bool)
	late.find = func(did string, record []byte) (link.Post, error) {
		if read != nil {
			read <- true
			<-goOn
			read = nil
		}
		return link.InPost(did, record)
	}
	var g errgroup.Group
	g.Go(func() error { return work(t.Context(), late, "1") })
	<-read
	a.post("1", "2", "https://new.example/")
	require.NoError(t, work(t.Context(), worker(pool), "1"))
	goOn <- true
	require.NoError(t, g.Wait())
	require.Equal(t, []string{"1 https://new.example/"}, shares(t, pool))
}

// TestEditWaitsForTheWorkerThatWrites stops the worker between its check of the post and its write.
// Without the row lock the edit would be stored, its own job would find nothing to do, and the
// older links would be written last.
func TestEditWaitsForTheWorkerThatWrites(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(author){
		"edit":     func(a author) { a.post("1", "2") },
		"deletion": func(a author) { a.delete("1", "2") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			a := newAuthor(t, pool)
			a.post("1", "1", "https://old.example/")
			hold, err := pool.Begin(t.Context())
			require.NoError(t, err)
			_, err = hold.Exec(t.Context(), `LOCK TABLE links IN ACCESS EXCLUSIVE MODE`)
			require.NoError(t, err)
			waiting := func() (n int) {
				require.NoError(t, pool.QueryRow(t.Context(), `
					SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
				return n
			}
			var g errgroup.Group
			g.Go(func() error { return work(t.Context(), worker(pool), "1") })
			eventually.True(t, func() bool { return waiting() == 1 }, 10*time.Millisecond)
			edited := make(chan error, 1)
			go func() {
				edit(a)
				edited <- work(t.Context(), worker(pool), "1")
			}()
			eventually.True(t, func() bool { return waiting() == 2 || len(edited) == 1 }, 10*time.Millisecond)
			require.NoError(t, hold.Rollback(t.Context()))
			require.NoError(t, g.Wait())
			require.NoError(t, <-edited)
			require.Empty(t, shares(t, pool))
		})
	}
}

// TestAnyOrderOfJobsAndEditsEndsTheSame has an author edit and delete while workers project the
// same posts, repeatedly and concurrently.
func TestAnyOrderOfJobsAndEditsEndsTheSame(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a := newAuthor(t, pool)
	const posts, edits, crowd = 4, 40, 4
	work1 := make(chan string, posts*edits*2)
	var g errgroup.Group
	for range crowd {
		w := worker(pool)
		g.Go(func() error {
			for rkey := range work1 {
				if err := work(t.Context(), w, rkey, "0"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	want := map[string]string{}
	random := rand.New(rand.NewPCG(3, 4))
	for rev := range edits {
		for i := range posts {
			rkey, revision := fmt.Sprint(i), fmt.Sprintf("%04d", rev)
			switch url := fmt.Sprintf("https://x.example/%d", random.IntN(5)); random.IntN(4) {
			case 0:
				a.delete(rkey, revision)
				delete(want, rkey)
				continue // a deletion enqueues nothing
			case 1:
				a.post(rkey, revision)
				delete(want, rkey)
			default:
				a.post(rkey, revision, url)
				want[rkey] = rkey + " " + url
			}
			work1 <- rkey
		}
	}
	close(work1)
	require.NoError(t, g.Wait())
	expected := []string{}
	for _, line := range want {
		expected = append(expected, line)
	}
	slices.Sort(expected)
	require.ElementsMatch(t, expected, shares(t, pool))
}

// TestOnePostThatFailsIsDeadLettered shows that a panic, an error and a link that the database
// refuses each dead-letter their post, and that the rest of the job completes.
func TestOnePostThatFailsIsDeadLettered(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	registry := prometheus.NewRegistry()
	a, w := newAuthor(t, pool), measured(pool, registry)
	for _, rkey := range []string{"error", "good", "panic", "refused"} {
		a.post(rkey, "1", "https://"+rkey+".example/")
	}
	w.find = func(did string, record []byte) (link.Post, error) {
		post, err := link.InPost(did, record)
		require.NoError(t, err)
		switch post.Links[0].URL {
		case "https://error.example/":
			return link.Post{}, errors.New("unreadable")
		case "https://panic.example/":
			panic("out of range")
		case "https://refused.example/":
			post.Links[0].URL += string(make([]byte, 10)) // NULs
		}
		return post, nil
	}
	require.NoError(t, work(t.Context(), w, "error", "good", "panic", "refused"))
	require.Equal(t, []string{"good https://good.example/"}, shares(t, pool))
	rows, err := pool.Query(t.Context(), `SELECT rkey FROM dead_letters WHERE stage = 'process' AND octet_length(cause) > 0 ORDER BY rkey`)
	require.NoError(t, err)
	deadLettered, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"error", "panic", "refused"}, deadLettered)
	require.Equal(t, map[string]float64{"unreadable app.bsky.feed.post links process": 1,
		"panicked app.bsky.feed.post links process": 1, "refused app.bsky.feed.post links process": 1},
		workertest.Samples(t, registry, "weir_projector_dead_lettered_total", func(m *dto.Metric) float64 { return m.GetCounter().GetValue() }))
}

// TestJobIsProcessedThroughTheQueue shows that a job is enqueued in the transaction that writes,
// processed by River, and completed.
func TestJobIsProcessedThroughTheQueue(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a := newAuthor(t, pool)
	log := slog.New(slog.DiscardHandler)
	client := client(t, workers.Config{Shared: workers.Shared{Pool: pool, Projections: registered(t, pool)}, ID: "test"}, Config{})
	done, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed)
	defer cancel()
	require.NoError(t, client.Start(t.Context()))
	queue, err := workers.Queue(pool, log)
	require.NoError(t, err)

	a.post("1", "1", "https://x.example/")
	written := []schema.Key{postKey("did:plc:a", "1"), {Collection: "app.bsky.feed.like", DID: "did:plc:a", Rkey: "2"}}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return registered(t, pool).Enqueue(queue, "")(t.Context(), tx, schema.NotFresh(written), time.Time{})
	}))
	event := <-done
	for event.Job.Kind != (ProcessPostsArgs{}).Kind() { // a periodic job
		event = <-done
	}
	require.Equal(t, river.EventKindJobCompleted, event.Kind)
	require.JSONEq(t, `{"posts":["did:plc:a/1"]}`, string(event.Job.EncodedArgs))
	require.Equal(t, []string{"1 https://x.example/"}, shares(t, pool))
	require.NoError(t, client.Stop(context.WithoutCancel(t.Context())))
}

// TestTagsOfLinks shows the tags of the jobs of links: River UI filters by them.
func TestTagsOfLinks(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"stream-jetstream"}, ProcessPostsArgs{Stream: "jetstream"}.InsertOpts().Tags)
	for _, args := range []river.JobArgsWithInsertOpts{
		CheckSubjectsArgs{}, ResolveLinksArgs{}, CheckCountsArgs{}, ReadProfilesArgs{}, VerifyHandlesArgs{},
	} {
		require.Equal(t, []string{"periodic"}, args.InsertOpts().Tags, "%T", args)
	}
}
