package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestBulkStoresWhatIsKnownToo stores frames in bulk that are new, stored, deleted and rejected: the
// assumption that records are new changes nothing but the speed. Storing them again changes nothing.
func TestBulkStoresWhatIsKnownToo(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	transactions := 0
	store := func(bulk bool, frames ...string) int {
		t.Helper()
		wire := jetstream.Wire(nil)
		r := consumer.Retry{Bulk: bulk, Wires: map[string]consumer.Wire{wire.Name: wire}, Storage: consumer.Storage{
			Pool: pool, Logger: slog.New(slog.DiscardHandler),
			Wanted:  func(collection string) bool { return collection == schema.PostCollection },
			Enqueue: func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { transactions++; return nil },
		}}
		raw := make([][]byte, len(frames))
		for i, f := range frames {
			raw[i] = []byte(f)
		}
		written, err := r.Store(t.Context(), wire.Name, raw, time.Now())
		require.NoError(t, err)
		return written
	}
	var frames []string
	for i := range 1500 {
		frames = append(frames, line(i, fmt.Sprintf(`{"text":"post %d"}`, i)))
	}
	deleted := strings.Replace(strings.Replace(frames[3], `"create"`, `"delete"`, 1), `"record":{"text":"post 3"}`, `"none":0`, 1)
	require.NotEqual(t, frames[3], deleted)
	store(false, deleted, frames[10], frames[700])
	transactions = 0
	require.Equal(t, 1497, store(true, frames...))
	require.Equal(t, 1, transactions, "one transaction")
	all := stored(t, pool)
	require.Len(t, all, 1499)
	require.False(t, slices.ContainsFunc(all, func(post string) bool { return strings.HasSuffix(post, " post 3") }), "it is deleted")
	require.Zero(t, store(true, frames...))
	require.Equal(t, all, stored(t, pool))

	require.Equal(t, 2, store(true, line(2001, `{"text":"before"}`), refusable(2000), line(2002, `{"text":"after"}`)), "the batch is split")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Len(t, stored(t, pool), 1501)
}
