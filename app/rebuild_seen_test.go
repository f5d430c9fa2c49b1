package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/collection"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestRebuildSeen restores the ids of archived events: all of Nostr, others as far back as a server
// may send them again, and those that are in no segment yet.
func TestRebuildSeen(t *testing.T) {
	t.Parallel()
	store, err := dir.New(t.TempDir())
	require.NoError(t, err)
	now := time.Now()
	number := int64(0)
	seals := func(stream, wire string, at time.Time, record []byte) {
		var file bytes.Buffer
		out, err := archive.NewWriter(&file)
		require.NoError(t, err)
		require.NoError(t, out.Add(record))
		sum, err := out.Close()
		require.NoError(t, err)
		number++
		m := archive.NewManifest(number, stream, wire, sum, at, at)
		m.LastAt = at
		require.NoError(t, store.Put(t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
		_, err = archive.PutManifest(t.Context(), store, m)
		require.NoError(t, err)
	}
	note := func(content string) (*protocol.Event, []byte) {
		e := &protocol.Event{Kind: 1, CreatedAt: 1_600_000_000, Content: content}
		require.NoError(t, e.Sign([32]byte{31: 9}))
		return e, e.AppendNotepack(nil)
	}
	post := func(key string) []byte {
		return []byte(`{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","time_us":1725911162329308,"kind":"commit","commit":{"rev":"3l3qo2vutsw2b","operation":"delete","collection":"app.bsky.feed.post","rkey":"` + key + `"}}`)
	}
	year := now.AddDate(-1, 0, 0)
	sealed, record := note("sealed")
	seals("nostr:relay.example", nostr.WireName, year, record)
	seals("main", jetstream.Wire(nil).Name, year, post("old"))
	seals("main", jetstream.Wire(nil).Name, now, post("recent"))
	seals(catalog.StreamSnapshots, catalog.WireSnapshot, now, []byte(`{"table":"watches","part":0}`))
	pool := schematest.New(t)
	open, record := note("open")
	_, err = pool.Exec(t.Context(), `INSERT INTO archive_open (stream, wire, records, raw_bytes, blob) VALUES ('nostr:relay.example', $1, 1, 1, $2)`,
		nostr.WireName, archive.PackRow(archive.AppendRecord(nil, record)))
	require.NoError(t, err)

	stored, err := collection.Parse([]string{"app.bsky.feed.post"}, 48*time.Hour)
	require.NoError(t, err)
	p := App{cfg: Config{Archive: store.String()}, pool: pool, stored: stored, signatures: &signatures{}, metrics: prometheus.NewRegistry()}
	var progress []int
	for range 2 {
		require.NoError(t, p.RebuildSeen(t.Context(), Rebuild{Progress: func(done, all int, _ archive.Manifest) { progress = append(progress, done, all) }}))
		p.metrics = prometheus.NewRegistry()
	}
	require.Equal(t, []int{1, 2, 2, 2, 1, 2, 2, 2}, progress)
	seen, err := schema.SeenIDs(t.Context(), pool, [][16]byte{[16]byte(sealed.ID[:16]), [16]byte(open.ID[:16])})
	require.NoError(t, err)
	require.Len(t, seen, 2)
	known := func(key string) bool {
		id := archive.NewID("did:plc:eygmaihciaxprqvxpfvl6flk", "app.bsky.feed.post", key, "3l3qo2vutsw2b", "delete")
		found, err := schema.One(t.Context(), pool, "look", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM archived_ids WHERE id = $1)`, [16]byte(id))
		require.NoError(t, err)
		return found
	}
	require.True(t, known("recent"))
	require.False(t, known("old"))
}
