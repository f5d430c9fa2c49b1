package frames_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/archive/frames"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// network is a simulated network of Nostr with one author, and the database that its relays are read into.
type network struct {
	*simnet.Nostr
	t      *testing.T
	pool   *pgxpool.Pool
	verify *nostr.Verifier
}

func newNetwork(t *testing.T, relays int) *network {
	t.Helper()
	cfg := simnet.NostrConfig{Seed: 3, Authors: 1, Now: time.Now().Add(-time.Hour)}
	for range relays {
		cfg.Relays = append(cfg.Relays, simnet.NostrRelay{Page: 100})
	}
	net, err := simnet.NewNostr(cfg)
	require.NoError(t, err)
	t.Cleanup(net.Stop)
	return &network{net, t, schematest.New(t), nostr.NewVerifier(nostr.VerifierConfig{})}
}

// reads reads every kind of all relays, until their past is read. Nothing is stored.
func (n *network) reads(hook consumer.FrameHook) {
	n.t.Helper()
	for relay, url := range n.URLs() {
		source, err := nostr.New(nostr.Config{
			Verifier: n.verify, Config: socket.Config{Endpoints: []string{url}, MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond},
		})
		require.NoError(n.t, err)
		require.NoError(n.t, source.SetFilter(n.t.Context(), consumer.Filter{Everyone: true}))
		c, err := consumer.New(consumer.Config{
			Storage: consumer.Storage{Pool: n.pool, Frames: hook, Logger: slog.New(slog.DiscardHandler), Enqueue: enqueuesNothing,
				Wanted: func(string) bool { return false }},
			Stream: "nostr-" + strconv.Itoa(relay), Leasing: consumer.Leasing{Owner: n.t.Name()}, Source: source,
			Resuming: consumer.Resuming{Start: consumer.Cursor{Kind: consumer.CursorSeq}},
			Batching: consumer.Batching{BatchInterval: 10 * time.Millisecond},
		})
		require.NoError(n.t, err)
		ctx, stop := context.WithCancel(n.t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		defer func() {
			stop()
			require.NoError(n.t, <-done)
		}()
	}
	eventually.True(n.t, func() bool {
		return n.count(`SELECT count(*) FROM streams WHERE cursor_kind = 'time'`) == len(n.URLs())
	}, 5*time.Millisecond)
}

func (n *network) retry(hook consumer.FrameHook, wanted func(string) bool) consumer.Retry {
	return consumer.Retry{Wires: map[string]consumer.Wire{nostr.WireName: nostr.Wire(n.verify, nil)},
		Storage: consumer.Storage{Frames: hook, Pool: n.pool, Logger: slog.New(slog.DiscardHandler), Wanted: wanted, Enqueue: enqueuesNothing}}
}

func (n *network) count(sql string) (count int) {
	n.t.Helper()
	require.NoError(n.t, n.pool.QueryRow(n.t.Context(), sql).Scan(&count))
	return count
}

func signed(t *testing.T, createdAt int64, kind int, content string, tags ...[]string) *protocol.Event {
	t.Helper()
	e := &protocol.Event{CreatedAt: createdAt, Kind: kind, Content: content, Tags: append([][]string{}, tags...)}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	return e
}

// TestUnstoredKindsAreArchivedOnce archives everything of two relays. An event of a kind that is not
// stored is archived and recorded as seen once, only if its author signed it. One that is ephemeral,
// or that will expire, is not archived.
func TestUnstoredKindsAreArchivedOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, 2)
	now := time.Now().Unix()
	for _, kind := range []int{7, 1999, 10002, 30078, 45, 65535} {
		n.Write(now, kind, nil, "kept")
	}
	n.Write(now, 7, [][]string{{"expiration", "99999999999"}}, "expires")
	n.Write(now, 21234, nil, "ephemeral")
	n.Put(0, n.Forge(0, now, 7, nil, "forged"))
	n.reads(&frames.Hook{Scope: frames.ScopeEverything})
	require.Equal(t, 6, n.count(`SELECT sum(records) FROM archive_open`))
	require.Equal(t, 6, n.count(`SELECT count(*) FROM seen`))
	require.Zero(t, n.count(`SELECT count(*) FROM records`))
	for _, asked := range n.Requests(0) {
		require.Nil(t, asked.Kinds)
	}

	// Stored later, it is not archived again, even if the archive's ids are of a time that is forgotten.
	_, err := n.pool.Exec(t.Context(), `DELETE FROM archived_ids`)
	require.NoError(t, err)
	retry := n.retry(&frames.Hook{Scope: frames.ScopeEverything}, func(string) bool { return true })
	var events [][]byte
	key, _ := protocol.ParseKey(n.Key(0))
	reader := nostr.NewReader(nostr.ReaderConfig{Relays: n.URLs()})
	require.NoError(t, reader.Stored(t.Context(), n.URLs()[1], func(page []*protocol.Event) error {
		for _, e := range page {
			events = append(events, e.AppendNotepack(nil))
		}
		return nil
	}, nostr.Query{Every: true, Authors: [][32]byte{key}, Most: 100}))
	written, err := retry.Store(t.Context(), nostr.WireName, events, time.Now())
	require.NoError(t, err)
	require.Equal(t, 7, written)
	require.Equal(t, 7, n.count(`SELECT sum(records) FROM archive_open`), "one new event: the one that expires")
}

// TestRequestIsArchivedOnce archives a deletion request of which some events were deleted before.
// An excerpt for each of the other events would contain the whole request.
func TestRequestIsArchivedOnce(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, 1)
	var tags [][]string
	for i := range 300 {
		tags = append(tags, []string{"e", fmt.Sprintf("%064x", i)})
	}
	requests := [][]byte{signed(t, time.Now().Unix(), 5, "", tags[0]).AppendNotepack(nil),
		signed(t, time.Now().Unix(), 5, strings.Repeat("x", 10_000), tags...).AppendNotepack(nil)}
	retry := n.retry(&frames.Hook{Scope: frames.ScopeStored}, func(collection string) bool { return collection == "nostr.1" })
	for range 2 {
		for _, frame := range requests {
			_, err := retry.Store(t.Context(), nostr.WireName, [][]byte{frame}, time.Now())
			require.NoError(t, err)
		}
	}
	require.Equal(t, 2, n.count(`SELECT sum(records) FROM archive_open`))
	require.Less(t, n.count(`SELECT sum(raw_bytes) FROM archive_open`), 2*(len(requests[0])+len(requests[1])))
}
