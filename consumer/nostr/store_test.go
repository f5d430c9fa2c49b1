package nostr_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
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
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)}, Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
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

// TestRefusedRequestLeavesOneDeadLetter, however many events it names: each would have the
// whole frame. The operator's retry refuses it again, and then it is still one.
func TestRefusedRequestLeavesOneDeadLetter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	var tags [][]string
	for i := range 500 {
		tags = append(tags, []string{"e", fmt.Sprintf("%064x", i)})
	}
	e := signed(t, time.Now().Unix(), 5, "forged", tags...)
	e.Sig[40] ^= 1
	wires := map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)}
	retry := consumer.Retry{Wires: wires, Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: func(string) bool { return true }}}
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

// TestRefusedEventStaysADeadLetter when it is retried, even if too many were refused for others to
// leave any. What a stream or a backfill brings then leaves none.
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
	wires := map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)}
	retry := consumer.Retry{Wires: wires, Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: func(string) bool { return true }}}
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

// TestManyDeletionsAreNotOneTransaction: it would take longer than a transaction may, each time.
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
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)},
		Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: func(string) bool { return true }}}
	_, err := retry.Store(t.Context(), nostr.WireName, frames, time.Now())
	require.NoError(t, err)
	require.Equal(t, 4*1500, n.count(`SELECT count(*) FROM tombstones`))
	require.Equal(t, 2, n.count(`SELECT count(DISTINCT xmin::text) FROM tombstones`))
}

// TestRequestIsArchivedOnce although some of what it deletes was deleted before: an excerpt for each
// of the other events would have the whole request.
func TestRequestIsArchivedOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	var tags [][]string
	for i := range 300 {
		tags = append(tags, []string{"e", fmt.Sprintf("%064x", i)})
	}
	frames := [][]byte{signed(t, time.Now().Unix(), 5, "", tags[0]).AppendNotepack(nil), signed(t, time.Now().Unix(), 5, strings.Repeat("x", 10_000), tags...).AppendNotepack(nil)}
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)},
		Config: consumer.Config{Archive: consumer.ScopeStored, Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: func(string) bool { return true }}}
	for range 2 {
		for _, frame := range frames {
			_, err := retry.Store(t.Context(), nostr.WireName, [][]byte{frame}, time.Now())
			require.NoError(t, err)
		}
	}
	require.Equal(t, 2, n.count(`SELECT sum(records) FROM archive_open`))
	require.Less(t, n.count(`SELECT sum(raw_bytes) FROM archive_open`), 2*(len(frames[0])+len(frames[1])))
}

// TestErasureByAnOutdatedProgramErasesNothing: it does not know the tables of a projection that
// another program has registered meanwhile.
func TestErasureByAnOutdatedProgramErasesNothing(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 12, Authors: 1, Relays: []simnet.NostrRelay{{Page: 100}}})
	retry := consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(stored(), n.verify, nil)}, Config: consumer.Config{Pool: n.pool, Logger: slog.New(slog.DiscardHandler),
		Wanted: func(string) bool { return true }, Enqueue: func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }}}
	_, err := retry.Store(t.Context(), nostr.WireName, [][]byte{signed(t, 1_700_000_000, 1, "").AppendNotepack(nil)}, time.Now())
	require.NoError(t, err)
	_, err = n.pool.Exec(t.Context(), `INSERT INTO projections (name, collections, kind, queue, tables) VALUES ('later', '{nostr.1}', 'k', 'q', '{}')`)
	require.NoError(t, err)
	_, err = retry.Store(t.Context(), nostr.WireName, [][]byte{signed(t, 1_700_000_001, 62, "", []string{"relay", "ALL_RELAYS"}).AppendNotepack(nil)}, time.Now())
	require.ErrorAs(t, err, new(*schema.OutdatedError))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records`))
}
