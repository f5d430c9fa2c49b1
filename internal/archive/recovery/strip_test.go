package recovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
)

// TestStripsFrames removes the text of an account from a segment. It keeps the facts that records
// of the account, or the account, were deleted.
func TestStripsFrames(t *testing.T) {
	t.Parallel()
	const did = "did:plc:gggggggggggggggggggggggg"
	at := time.UnixMicro(1_770_000_000_000_000)
	frame := func(kind, body string, minute int) string {
		return fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":%q,%q:%s}`, did, at.Add(time.Duration(minute)*time.Minute).UnixMicro(), kind, kind,
			body)
	}
	commit := func(operation, collection, record string, minute int) string {
		return frame("commit", fmt.Sprintf(`{"rev":"3lhxcxyzaaaa2","operation":%q,"collection":%q,`+
			`"rkey":"self"%s}`, operation, collection, record), minute)
	}
	const written = `,"record":{"text":"x"},"cid":"bafyreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"`
	m := archive.Manifest{Wire: jetstream.WireName, FirstAt: at, LastAt: at}
	strip, err := sourceAt(nil).Strip(m)
	require.NoError(t, err)
	until := archive.Forgetting{did: {DID: did, Until: at.Add(5 * time.Minute)}}
	for record, stays := range map[string]bool{
		commit("create", "app.bsky.feed.post", written, 4):                                                               false,
		commit("update", "not.stored.here", written, 5):                                                                  false,
		commit("create", "app.bsky.feed.post", written, 6):                                                               true,
		commit("delete", "app.bsky.feed.post", "", 4):                                                                    true,
		frame("identity", `{"did":"`+did+`","seq":1,"handle":"a.example","time":"2026-02-02T02:40:00Z"}`, 1):             false,
		frame("account", `{"active":false,"status":"deleted","did":"`+did+`","seq":1,"time":"2026-02-02T02:40:00Z"}`, 5): true,
		// an unreadable event of the account
		frame("commit", `{"rev":7}`, 4): false,
		"nonsense":                      true,
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
	strip, err := sourceAt(nil).Strip(m)
	require.NoError(t, err)
	until := archive.Forgetting{"did:plc:g": {DID: "did:plc:g", Until: at}, "did:plc:b": {DID: "did:plc:b", Until: at.Add(-time.Second)}}
	rest := strip(m, []byte(`{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":"g.example","display_name":"G",`+
		`"avatar":"https://g.example/a","status":"hidden"},`+
		`{"did":"did:plc:s","handle":"s.example"},{"did":"did:plc:b","display_name":"came back"}]}`), until.Goes)
	require.Len(t, rest, 1)
	require.JSONEq(t, `{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":null,"display_name":null,`+
		`"avatar":null,"status":"hidden"},`+
		`{"did":"did:plc:s","handle":"s.example"},{"did":"did:plc:b","display_name":"came back"}]}`, string(rest[0]))
	for _, one := range []string{`"handle":"g.example"`, `"display_name":"G"`, `"avatar":"a"`} {
		rest := strip(m, []byte(`{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g",`+one+`}]}`), until.Goes)
		require.Len(t, rest, 1)
		require.JSONEq(t, `{"table":"accounts","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":null,"display_name":null,`+
			`"avatar":null}]}`, string(rest[0]), one)
	}
	members := []byte(`{"table":"watch_members","part":0,"last":true,"rows":[{"did":"did:plc:g","handle":"x"}]}`)
	require.Equal(t, [][]byte{members}, strip(m, members, until.Goes))
}
