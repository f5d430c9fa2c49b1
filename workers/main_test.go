package workers

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

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
