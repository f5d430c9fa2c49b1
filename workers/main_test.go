package workers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// The short names of what tests use most.
var (
	execute   = workertest.Execute
	strs      = workertest.Strings
	count     = workertest.Count
	becomes   = workertest.Becomes
	schedules = workertest.Schedules
)

// readPosts is the job of a projection of posts that makes nothing of them.
type readPosts struct{ jobs.Batch }

func (readPosts) Kind() string { return "read_posts" }

type postReader struct {
	river.WorkerDefaults[readPosts]
	pool *pgxpool.Pool
}

// Work fails if a test has renamed a table.
func (w postReader) Work(ctx context.Context, _ *river.Job[readPosts]) error {
	_, err := w.pool.Exec(ctx, `SELECT FROM chains LIMIT 1`)
	return err
}

// posted returns the projection of posts that makes nothing of them.
func posted() schema.Projection {
	return schema.Projection{
		Name: "posted", Collections: []string{schema.PostCollection}, Job: func(b jobs.Batch) river.JobArgs { return readPosts{b} },
	}
}

// withPosts adds the worker of that projection.
func withPosts(cfg Config) Config {
	cfg.Features = append(cfg.Features, func(b Bundle) error {
		Add(b, postReader{pool: b.Pool})
		return nil
	})
	return cfg
}

// running starts a client, which stops with the test.
func running(t testing.TB, client *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, client.Start(ctx))
	t.Cleanup(func() {
		cancel()
		<-client.Stopped()
	})
}

// unreachable is the client of an API that nobody serves.
func unreachable(t testing.TB) *bluesky.Client {
	t.Helper()
	api, err := bluesky.New(bluesky.Config{AppView: "http://127.0.0.1:1", Directory: "http://127.0.0.1:1",
		Logger: slog.New(slog.DiscardHandler), Retries: []time.Duration{time.Millisecond}})
	require.NoError(t, err)
	return api
}

func postKey(did, rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
}

// author writes records like the consumer.
type author struct {
	t     testing.TB
	pool  *pgxpool.Pool
	lease schema.Lease
}

func newAuthor(t *testing.T, pool *pgxpool.Pool) author {
	registered(t, pool) // ends leases
	return newAuthorOf(t, pool)
}

func (a author) apply(b schema.Batch) {
	a.t.Helper()
	require.NoError(a.t, pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		b.Projections = schema.NewProjections(posted())
		_, err := b.Apply(a.t.Context(), tx, a.lease)
		return err
	}))
}

// newAuthorOf returns an author on a database with registered projections.
func newAuthorOf(t *testing.T, pool *pgxpool.Pool) author {
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "me", time.Hour)
	require.NoError(t, err)
	require.True(t, ok)
	return author{t, pool, lease}
}
