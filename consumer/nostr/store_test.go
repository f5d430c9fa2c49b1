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
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// TestWhatIsAskedForIsStored shows that requested events are stored although they were seen before,
// once, and only if their author signed them. So the past of a purged account can be read again.
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
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)},
		Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
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
	require.Positive(t, n.count(`SELECT count(*) FROM dead_letters WHERE stage = 'verify'`), "the forged event must leave a dead letter")
	retry.Follows = func(string) bool { return false }
	_, err = n.pool.Exec(t.Context(), `DELETE FROM records`)
	require.NoError(t, err)
	written, err := retry.Store(t.Context(), nostr.WireName, frames, time.Now())
	require.NoError(t, err)
	require.Zero(t, written, "an event of an unfollowed author must not be stored")
}

// TestRefusedRequestLeavesOneDeadLetter shows that a refused deletion request leaves a single
// dead letter, however many events it names, because that contains the whole frame. A manual
// retry refuses it again and still leaves one.
func TestRefusedRequestLeavesOneDeadLetter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	var tags [][]string
	for i := range 500 {
		tags = append(tags, []string{"e", fmt.Sprintf("%064x", i)})
	}
	e := signed(t, time.Now().Unix(), 5, "forged", tags...)
	e.Sig[40] ^= 1
	wires := map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)}
	retry := consumer.Retry{Wires: wires, Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: wants}}
	frame := e.AppendNotepack(nil)
	for range 2 {
		written, err := retry.Store(t.Context(), nostr.WireName, [][]byte{frame}, time.Now())
		require.NoError(t, err)
		require.Zero(t, written)
		require.Equal(t, 1, n.count(`SELECT count(*) FROM dead_letters`))
	}
	_, err := schema.RetryDeadLetters(t.Context(), n.pool, schema.DeadLetterFilter{})
	require.NoError(t, err)
	letters, err := schema.DeadLettersToRetry(t.Context(), n.pool, 10, 1<<30)
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, frame, letters[0].Raw)
	require.NoError(t, retry.Run(t.Context(), letters))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM dead_letters`))
	require.Zero(t, n.count(`SELECT count(*) FROM dead_letters WHERE state = 'retrying'`))
	require.Zero(t, n.count(`SELECT count(*) FROM tombstones`))
}

// TestRefusedEventStaysADeadLetter shows that a retried event that is refused stays a dead letter,
// even if the limit of dead letters is reached. Refused events of a stream or a backfill then leave
// none.
func TestRefusedEventStaysADeadLetter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	n.verify = nostr.NewVerifier(nostr.VerifierConfig{Refused: 1})
	for i := range 3 {
		n.Write(time.Now().Unix(), 1, nil, fmt.Sprint(i, "\xff"))
	}
	stop := n.run(nil)
	n.read()
	stop()
	require.Equal(t, 1, n.count(`SELECT count(*) FROM dead_letters`))
	wires := map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)}
	retry := consumer.Retry{Wires: wires, Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: wants}}
	_, err := retry.Store(t.Context(), nostr.WireName, [][]byte{[]byte(`["EVENT","page1",{}]`)}, time.Now())
	require.NoError(t, err)
	require.Equal(t, 1, n.count(`SELECT count(*) FROM dead_letters`))
	_, err = schema.RetryDeadLetters(t.Context(), n.pool, schema.DeadLetterFilter{})
	require.NoError(t, err)
	letters, err := schema.DeadLettersToRetry(t.Context(), n.pool, 10, 1<<30)
	require.NoError(t, err)
	require.NoError(t, retry.Run(t.Context(), letters))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM dead_letters WHERE state = 'open' AND count > 1`))
}

// TestManyDeletionsAreNotOneTransaction shows that they are committed in parts: one transaction
// would exceed the time limit at every attempt.
func TestManyDeletionsAreNotOneTransaction(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	var frames [][]byte
	for request := range 4 {
		var tags [][]string
		for i := range 1500 {
			tags = append(tags, []string{"e", fmt.Sprintf("%032x%032x", request, i)})
		}
		frames = append(frames, signed(t, time.Now().Unix(), 5, "", tags...).AppendNotepack(nil))
	}
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)},
		Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: wants}}
	_, err := retry.Store(t.Context(), nostr.WireName, frames, time.Now())
	require.NoError(t, err)
	require.Equal(t, 4*1500, n.count(`SELECT count(*) FROM tombstones`))
	require.Equal(t, 2, n.count(`SELECT count(DISTINCT xmin::text) FROM tombstones`))
}

// TestErasureByAnOutdatedProgramErasesNothing erases with a program that lacks a projection
// registered meanwhile, so it does not know that projection's tables.
func TestErasureByAnOutdatedProgramErasesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)},
		Storage: consumer.Storage{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
			Wanted: wants, Enqueue: func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }}}
	_, err := retry.Store(t.Context(), nostr.WireName, [][]byte{signed(t, 1_700_000_000, 1, "").AppendNotepack(nil)}, time.Now())
	require.NoError(t, err)
	_, err = n.pool.Exec(t.Context(), `
INSERT INTO projections (name, collections, kind, queue, tables)
VALUES ('later', '{nostr.1}', 'k', 'q', '{}')`)
	require.NoError(t, err)
	_, err = retry.Store(t.Context(), nostr.WireName,
		[][]byte{signed(t, 1_700_000_001, 62, "", []string{"relay", "ALL_RELAYS"}).AppendNotepack(nil)}, time.Now())
	require.ErrorAs(t, err, new(*schema.OutdatedError))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records`))
}
