package app

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// TestStripsFrames removes the text of an account from a segment. It keeps the facts that records
// of the account, or the account, were deleted.
func TestStripsFrames(t *testing.T) {
	t.Parallel()
	const did = "did:plc:gggggggggggggggggggggggg"
	at := time.UnixMicro(1_770_000_000_000_000)
	frame := func(kind, body string, minute int) string {
		return fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":%q,%q:%s}`, did, at.Add(time.Duration(minute)*time.Minute).UnixMicro(), kind, kind, body)
	}
	commit := func(operation, collection, record string, minute int) string {
		return frame("commit", fmt.Sprintf(`{"rev":"3lhxcxyzaaaa2","operation":%q,"collection":%q,"rkey":"self"%s}`, operation, collection, record), minute)
	}
	const written = `,"record":{"text":"x"},"cid":"bafyreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"`
	m := archive.Manifest{Wire: jetstream.WireName, FirstAt: at, LastAt: at}
	strip, err := New(Config{}, nil).strip(m)
	require.NoError(t, err)
	until := archive.Forgetting{did: {DID: did, Until: at.Add(5 * time.Minute)}}
	for record, stays := range map[string]bool{
		commit("create", "app.bsky.feed.post", written, 4):                                                               false,
		commit("update", "not.stored.here", written, 5):                                                                  false,
		commit("create", "app.bsky.feed.post", written, 6):                                                               true,
		commit("delete", "app.bsky.feed.post", "", 4):                                                                    true,
		frame("identity", `{"did":"`+did+`","seq":1,"handle":"a.example","time":"2026-02-02T02:40:00Z"}`, 1):             false,
		frame("account", `{"active":false,"status":"deleted","did":"`+did+`","seq":1,"time":"2026-02-02T02:40:00Z"}`, 5): true,
		frame("commit", `{"rev":7}`, 4):                                                                                  false, // an unreadable event of the account
		"nonsense":                                                                                                       true,
	} {
		rest := strip(m, []byte(record), until.Goes)
		require.Equal(t, stays, len(rest) == 1, "%s: %s", record, rest)
	}
	require.Len(t, strip(m, []byte(commit("create", "c.d.e", written, 1)), func(s archive.Said) bool {
		require.Equal(t, archive.Said{Author: did, At: at.Add(time.Minute), Collection: "c.d.e", Key: "self", Revision: "3lhxcxyzaaaa2"}, s)
		return false
	}), 1)
}

// TestStripsSnapshots removes the names of an account from a snapshot, and keeps its row.
func TestStripsSnapshots(t *testing.T) {
	t.Parallel()
	at := time.Now()
	m := archive.Manifest{Wire: catalog.WireSnapshot, FirstAt: at, LastAt: at}
	strip, err := New(Config{}, nil).strip(m)
	require.NoError(t, err)
	until := archive.Forgetting{"did:plc:g": {DID: "did:plc:g", Until: at}, "did:plc:b": {DID: "did:plc:b", Until: at.Add(-time.Second)}}
	rest := strip(m, []byte(`{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":"g.example","display_name":"G","avatar":"https://g.example/a","status":"hidden"},`+
		`{"did":"did:plc:s","handle":"s.example"},{"did":"did:plc:b","display_name":"came back"}]}`), until.Goes)
	require.Len(t, rest, 1)
	require.JSONEq(t, `{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":null,"display_name":null,"avatar":null,"status":"hidden"},`+
		`{"did":"did:plc:s","handle":"s.example"},{"did":"did:plc:b","display_name":"came back"}]}`, string(rest[0]))
	for _, one := range []string{`"handle":"g.example"`, `"display_name":"G"`, `"avatar":"a"`} {
		rest := strip(m, []byte(`{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g",`+one+`}]}`), until.Goes)
		require.Len(t, rest, 1)
		require.JSONEq(t, `{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":null,"display_name":null,"avatar":null}]}`, string(rest[0]), one)
	}
	members := []byte(`{"table":"watch_members","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":"x"}]}`)
	require.Equal(t, [][]byte{members}, strip(m, members, until.Goes))
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
	strip, err := New(Config{}, nil).strip(m)
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
		return forgotten.Goes(s) || s.Collection == "nostr.1" && (s.Key == wanted || s.Key == too) || s.Collection == "nostr.30023" && s.Key == "a page" || s.Collection == protocol.AnyKind && s.Key == byID
	}
	all := [][]string{{"relay", "ALL_RELAYS"}}
	for name, one := range map[string]struct {
		secret byte
		event  protocol.Event
		stays  bool
	}{
		"a note from before":              {vanished, protocol.Event{CreatedAt: until - 1, Kind: 1, Content: "x"}, false},
		"a note of that second":           {vanished, protocol.Event{CreatedAt: until, Kind: 1, Content: "x"}, false},
		"a note from after":               {vanished, protocol.Event{CreatedAt: until + 1, Kind: 1, Content: "x"}, true},
		"its profile":                     {vanished, protocol.Event{CreatedAt: until, Kind: 0, Content: "{}"}, false},
		"a kind that nobody stores":       {vanished, protocol.Event{CreatedAt: until, Kind: 21234, Content: "x"}, false},
		"an expired note":                 {vanished, protocol.Event{CreatedAt: until, Kind: 1, Content: "x", Tags: [][]string{{"expiration", "1600000000"}}}, false},
		"an encrypted message":            {vanished, protocol.Event{CreatedAt: until, Kind: 1059, Content: "x"}, false},
		"its request for a deletion":      {vanished, protocol.Event{CreatedAt: until, Kind: protocol.KindDeletion, Tags: [][]string{{"e", wanted}}}, false},
		"the demand":                      {vanished, protocol.Event{CreatedAt: until, Kind: protocol.KindVanish, Tags: all}, true},
		"somebody else's note":            {other, protocol.Event{CreatedAt: until, Kind: 1, Content: "x"}, true},
		"a deleted note":                  {other, protocol.Event{CreatedAt: until, Kind: 1, Content: "deleted"}, false},
		"a deleted note that expired":     {other, expired, false},
		"deleted by its id alone":         {other, reaction, false},
		"an address that is that id":      {other, protocol.Event{CreatedAt: until, Kind: 30023, Tags: [][]string{{"d", byID}}}, true},
		"the same key of another kind":    {other, protocol.Event{CreatedAt: until, Kind: 30024, Tags: [][]string{{"d", "a page"}}}, true},
		"a deleted address":               {other, protocol.Event{CreatedAt: until, Kind: 30023, Tags: [][]string{{"d", "a page"}}}, false},
		"somebody's request for deletion": {other, protocol.Event{CreatedAt: until, Kind: protocol.KindDeletion, Tags: [][]string{{"e", wanted}}}, true},
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
	f.Add(byte(2), []byte(`{"did":"did:plc:gggggggggggggggggggggggg","time_us":1,"kind":"identity","identity":{"did":"did:plc:gggggggggggggggggggggggg","handle":"a.example","seq":1,"time":"2026-02-02T02:40:00Z"}}`))
	f.Add(byte(2), []byte(`{"$type":"message","payload":{"$type":"network.bsky.jetstream.subscribeEvents#identity","seq":1,`+
		`"did":"did:plc:gggggggggggggggggggggggg","time":"2026-02-02T02:40:00.000001Z","identity":{"did":"did:plc:gggggggggggggggggggggggg"}}}`))
	f.Add(byte(3), []byte("\xa2"))
	f.Fuzz(func(t *testing.T, which byte, record []byte) {
		m := archive.Manifest{Wire: wires[int(which)%len(wires)], FirstAt: time.Unix(9, 0), LastAt: time.Unix(9, 0)}
		strip, err := New(Config{}, nil).strip(m)
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
