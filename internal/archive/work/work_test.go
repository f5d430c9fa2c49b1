package work

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/workers"
)

// TestAddedWorkersFillTheStore starts a process with the archive's workers: it adds their jobs by itself, and
// works them until every row is in the store.
func TestAddedWorkersFillTheStore(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(20)
	cfg := a.archive
	cfg.Age = time.Millisecond
	client, err := workers.New(workers.Config{Shared: workers.Shared{Pool: a.pool, Logger: slog.New(slog.DiscardHandler)},
		ID: t.Name(), Features: []func(workers.Bundle) error{func(b workers.Bundle) error { return Add(b, cfg) }}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, client.Start(ctx))
	eventually.True(t, func() bool { return a.count(`SELECT count(*) FROM archive_open`) == 0 }, 20*time.Millisecond)
	stop()
	<-client.Stopped()
	require.Equal(t, 1, a.count(`SELECT count(*) FROM archive_snapshots WHERE name = 'watches'`))
	require.Positive(t, a.count(`SELECT count(*) FROM segments WHERE synced_at IS NOT NULL AND stream = 's'`))
}
