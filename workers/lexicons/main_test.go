package lexicons

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
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

// settings are those of the workers and of the feature.
type settings struct {
	workers.Config
	Lexicons Config
}

// start starts workers with the feature, until the test ends.
func (s *settings) start(ctx context.Context, t testing.TB, got *workers.Bundle) *workers.Client {
	t.Helper()
	s.Features = []func(workers.Bundle) error{func(b workers.Bundle) error {
		*got = b
		Add(b, s.Lexicons)
		return nil
	}}
	client, err := workers.New(s.Config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(ctx)
	require.NoError(t, client.Start(ctx))
	t.Cleanup(func() {
		cancel()
		<-client.Stopped()
	})
	return client
}

// author writes records like the consumer.
type author struct {
	t     testing.TB
	pool  *pgxpool.Pool
	lease schema.Lease
}

// commit stores a batch like the consumer.
func (a author) commit(p schema.Projections, b schema.Batch) (err error) {
	a.t.Helper()
	queue, err := workers.Queue(a.pool, slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	b.Projections, b.Careful = p, true
	return pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		written, err := b.Apply(a.t.Context(), tx, a.lease)
		if err != nil {
			return err
		}
		return p.Enqueue(queue, "s")(a.t.Context(), tx, append(b.Stored(written), schema.NotFresh(p.Deleted(b.Deletions))...), time.Now())
	})
}
