package recovery

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/archive/frames"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// nostrSource returns the archive at a store, with events of Nostr too.
func nostrSource(store archive.Store) Source {
	s := sourceAt(store)
	repositories := s.Wires
	s.Wires = func(wanted func(string) bool) (map[string]consumer.Wire, error) {
		wires, err := repositories(wanted)
		wires[nostr.WireName] = nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil)
		return wires, err
	}
	return s
}

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
		return []byte(`{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","time_us":1725911162329308,"kind":"commit","commit":{"rev":"3l3qo2vutsw2b",` +
			`"operation":"delete","collection":"app.bsky.feed.post","rkey":"` + key + `"}}`)
	}
	year := now.AddDate(-1, 0, 0)
	sealed, record := note("sealed")
	seals("nostr:relay.example", nostr.WireName, year, record)
	seals("main", jetstream.Wire(nil).Name, year, post("old"))
	seals("main", jetstream.Wire(nil).Name, now, post("recent"))
	seals(catalog.StreamSnapshots, catalog.WireSnapshot, now, []byte(`{"table":"watches","part":0}`))
	pool := schematest.New(t)
	open, record := note("open")
	_, err = pool.Exec(t.Context(), `
INSERT INTO archive_open (stream, wire, records, raw_bytes, blob)
VALUES ('nostr:relay.example', $1, 1, 1, $2)`,
		nostr.WireName, archive.PackRow(archive.AppendRecord(nil, record)))
	require.NoError(t, err)

	var progress []int
	r := Rebuild{Source: nostrSource(store), Pool: pool, Scope: frames.ScopeStored, Remember: 8 * 24 * time.Hour,
		Progress: func(done, all int, _ archive.Manifest) { progress = append(progress, done, all) }}
	for range 2 {
		require.NoError(t, r.Seen(t.Context()))
	}
	require.Equal(t, []int{1, 2, 2, 2, 1, 2, 2, 2}, progress)
	seen, err := schema.SeenIDs(t.Context(), pool, [][16]byte{[16]byte(sealed.ID[:16]), [16]byte(open.ID[:16])})
	require.NoError(t, err)
	require.Len(t, seen, 2)
	known := func(key string) bool {
		id := archive.NewID("did:plc:eygmaihciaxprqvxpfvl6flk", "app.bsky.feed.post", key, "3l3qo2vutsw2b", "delete")
		found, err := schema.One(t.Context(), pool, "look", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM archived_ids WHERE id = $1)`,
			[16]byte(id))
		require.NoError(t, err)
		return found
	}
	require.True(t, known("recent"))
	require.False(t, known("old"))
}

// signedBy returns an event in its archived form.
func signedBy(t testing.TB, secret byte, e protocol.Event) (record []byte, id string) {
	t.Helper()
	require.NoError(t, e.Sign([32]byte{31: secret}))
	return e.AppendNotepack(nil), hex.EncodeToString(e.ID[:])
}

// TestStripsNostr removes everything that an author wrote up to the date of a request to vanish, of
// any kind and in any form, and single deleted events. The request itself is kept, and so are the
// deletion requests of authors who did not vanish.
func TestStripsNostr(t *testing.T) {
	t.Parallel()
	const until = 1_700_000_000
	m := archive.Manifest{Wire: nostr.WireName, FirstAt: time.Unix(until+5, 0), LastAt: time.Unix(until+9, 0)}
	strip, err := nostrSource(nil).Strip(m)
	require.NoError(t, err)
	const vanished, other = 7, 8
	var key protocol.Event
	require.NoError(t, key.Sign([32]byte{31: vanished}))
	did := protocol.DID(key.PubKey)
	_, wanted := signedBy(t, other, protocol.Event{CreatedAt: until, Kind: 1, Content: "deleted"})
	expired := protocol.Event{CreatedAt: until, Kind: 1, Content: "deleted", Tags: [][]string{{"expiration", "1600000000"}}}
	_, too := signedBy(t, other, expired)
	reaction := protocol.Event{CreatedAt: until, Kind: 7, Content: "deleted"}
	_, byID := signedBy(t, other, reaction)
	goes := func(s archive.Said) bool {
		forgotten := archive.Forgetting{did: {DID: did, Until: time.Unix(until, 0), Reason: archive.ReasonErased}}
		return forgotten.Goes(s) || s.Collection == "nostr.1" && (s.Key == wanted || s.Key == too) || s.Collection == "nostr.30023" &&
			s.Key == "a page" || s.Collection == protocol.AnyKind && s.Key == byID
	}
	all := [][]string{{"relay", "ALL_RELAYS"}}
	for name, one := range map[string]struct {
		secret byte
		event  protocol.Event
		stays  bool
	}{
		"a note from before":        {vanished, protocol.Event{CreatedAt: until - 1, Kind: 1, Content: "x"}, false},
		"a note of that second":     {vanished, protocol.Event{CreatedAt: until, Kind: 1, Content: "x"}, false},
		"a note from after":         {vanished, protocol.Event{CreatedAt: until + 1, Kind: 1, Content: "x"}, true},
		"its profile":               {vanished, protocol.Event{CreatedAt: until, Kind: 0, Content: "{}"}, false},
		"a kind that nobody stores": {vanished, protocol.Event{CreatedAt: until, Kind: 21234, Content: "x"}, false},
		"an expired note": {
			vanished, protocol.Event{CreatedAt: until, Kind: 1, Content: "x", Tags: [][]string{{"expiration", "1600000000"}}}, false,
		},
		"an encrypted message": {vanished, protocol.Event{CreatedAt: until, Kind: 1059, Content: "x"}, false},
		"its request for a deletion": {
			vanished, protocol.Event{CreatedAt: until, Kind: protocol.KindDeletion, Tags: [][]string{{"e", wanted}}}, false,
		},
		"the demand":                   {vanished, protocol.Event{CreatedAt: until, Kind: protocol.KindVanish, Tags: all}, true},
		"somebody else's note":         {other, protocol.Event{CreatedAt: until, Kind: 1, Content: "x"}, true},
		"a deleted note":               {other, protocol.Event{CreatedAt: until, Kind: 1, Content: "deleted"}, false},
		"a deleted note that expired":  {other, expired, false},
		"deleted by its id alone":      {other, reaction, false},
		"an address that is that id":   {other, protocol.Event{CreatedAt: until, Kind: 30023, Tags: [][]string{{"d", byID}}}, true},
		"the same key of another kind": {other, protocol.Event{CreatedAt: until, Kind: 30024, Tags: [][]string{{"d", "a page"}}}, true},
		"a deleted address":            {other, protocol.Event{CreatedAt: until, Kind: 30023, Tags: [][]string{{"d", "a page"}}}, false},
		"somebody's request for deletion": {
			other, protocol.Event{CreatedAt: until, Kind: protocol.KindDeletion, Tags: [][]string{{"e", wanted}}}, true,
		},
	} {
		record, _ := signedBy(t, one.secret, one.event)
		rest := strip(m, record, goes)
		if one.stays {
			require.Equal(t, [][]byte{record}, rest, name)
			continue
		}
		require.Empty(t, rest, name)
	}
	record, _ := signedBy(t, vanished, protocol.Event{CreatedAt: until, Kind: 1, Content: "x"})
	damaged := record[:len(record)-1]
	require.Equal(t, [][]byte{damaged}, strip(m, damaged, goes), "a damaged record must be kept: its author is unknown")
}

// FuzzStrip checks that no record of an archive breaks the removal, that a record is unchanged if
// nothing is removed, and that a second removal changes nothing.
func FuzzStrip(f *testing.F) {
	wires := []string{catalog.WireSnapshot, nostr.WireName, jetstream.WireName, firehose.Wire(nil, nil).Name}
	note, _ := signedBy(f, 7, protocol.Event{CreatedAt: 1, Kind: 1, Content: "x"})
	f.Add(byte(0), []byte(`{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":"g.example"},7,{"did":3}]}`))
	f.Add(byte(1), note)
	f.Add(byte(2), []byte(`{"did":"did:plc:gggggggggggggggggggggggg","time_us":1,"kind":"identity",`+
		`"identity":{"did":"did:plc:gggggggggggggggggggggggg","handle":"a.example","seq":1,"time":"2026-02-02T02:40:00Z"}}`))
	f.Add(byte(2), []byte(`{"$type":"message","payload":{"$type":"network.bsky.jetstream.subscribeEvents#identity","seq":1,`+
		`"did":"did:plc:gggggggggggggggggggggggg","time":"2026-02-02T02:40:00.000001Z","identity":{"did":"did:plc:gggggggggggggggggggggggg"}}}`))
	f.Add(byte(3), []byte("\xa2"))
	f.Fuzz(func(t *testing.T, which byte, record []byte) {
		m := archive.Manifest{Wire: wires[int(which)%len(wires)], FirstAt: time.Unix(9, 0), LastAt: time.Unix(9, 0)}
		strip, err := nostrSource(nil).Strip(m)
		if err != nil {
			return
		}
		asked := 0
		require.Equal(t, [][]byte{record}, strip(m, record, func(archive.Said) bool { asked++; return false }))
		for _, rest := range strip(m, record, func(archive.Said) bool { return true }) {
			again := strip(m, rest, func(archive.Said) bool { return true })
			require.Equal(t, [][]byte{rest}, again)
			require.True(t, asked > 0 || bytes.Equal(record, rest))
		}
	})
}
