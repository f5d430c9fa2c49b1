package nostr_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/nostr"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/simnet"
)

// TestWhatIsAskedForIsStored although it was seen, once, and only if its author signed it: so the
// past of an account that was purged comes back.
func TestWhatIsAskedForIsStored(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 11, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	for i := range 5 {
		n.Write(time.Now().Unix()-int64(i), 1, nil, fmt.Sprint("note ", i))
	}
	forged := n.Forge(0, time.Now().Unix(), 1, nil, "forged")
	stop := n.run(nil)
	n.read()
	n.holds()
	stop()
	_, err := n.pool.Exec(t.Context(), `DELETE FROM records`)
	require.NoError(t, err)
	require.Equal(t, 5, n.count(`SELECT count(*) FROM seen`))

	n.Put(0, forged)
	key, _ := protocol.ParseKey(n.Key(0))
	reader := nostr.NewReader(nostr.ReaderConfig{Relays: n.URLs()})
	var frames [][]byte
	require.NoError(t, reader.Stored(t.Context(), n.URLs()[0], func(page []*protocol.Event) error {
		for _, e := range page {
			frames = append(frames, e.AppendNotepack(nil))
		}
		return nil
	}, nostr.Query{Kinds: []int{1}, Authors: [][32]byte{key}, Most: 100}))
	var enqueued int
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify)}, Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
		Wanted: func(collection string) bool { return collection == "nostr.1" },
		Enqueue: func(_ context.Context, _ pgx.Tx, written []schema.Stored, _ time.Time) error {
			enqueued += len(written)
			return nil
		}}}
	for _, want := range []int{5, 0} {
		written, err := retry.Store(t.Context(), nostr.WireName, frames, time.Now())
		require.NoError(t, err)
		require.Equal(t, want, written)
	}
	n.holds()
	require.Equal(t, 5, enqueued)
	require.Positive(t, n.count(`SELECT count(*) FROM dead_letters WHERE stage = 'verify'`), "the forged one")
	retry.Follows = func(string) bool { return false }
	_, err = n.pool.Exec(t.Context(), `DELETE FROM records`)
	require.NoError(t, err)
	written, err := retry.Store(t.Context(), nostr.WireName, frames, time.Now())
	require.NoError(t, err)
	require.Zero(t, written, "nobody follows the author")
}
