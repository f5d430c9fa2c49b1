package bluesky_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// FuzzAuthorFeed checks that the result of any response can be stored, and agrees
// with another JSON decoder.
func FuzzAuthorFeed(f *testing.F) {
	for _, record := range []string{`{"text":"\u0000"}`, `{"a":[1e300,{"b":"\ud800"}]}`, `{"\ud83d\ude00":null}`, `{"a":1,"a":2}`} {
		f.Add([]byte(`{"cursor":"c","feed":[` + item(alice, "3abc", record, "") + `]}`))
	}
	f.Add([]byte(`{"feed":[` + item(bob, "3abc", `{}`,
		`,"reason":{"$type":"app.bsky.feed.defs#reasonRepost","indexedAt":"2026-07-05T00:00:00Z"}`) + `]}`))
	var body atomic.Pointer[[]byte]
	base, _ := serve(f, func(w http.ResponseWriter, _ *http.Request, _ int) { _, _ = w.Write(*body.Load()) })
	c := newClient(f, base, noRetries)
	f.Fuzz(func(t *testing.T, answer []byte) {
		body.Store(&answer)
		page, next, err := c.AuthorFeed(t.Context(), alice, "", 50)
		if err != nil {
			require.Equal(t, bluesky.Transient, failure(t, err).Class)
			return
		}
		require.NotContains(t, next, "\x00")
		for _, p := range page {
			require.True(t, jsontext.Value(p.Record).IsValid(), "%s", p.Record)
			var record map[string]any
			require.NoError(t, json.Unmarshal(p.Record, &record))
			require.NotContains(t, strings.ReplaceAll(string(p.Record), `\\`, ""), `\u0000`)
			require.True(t, p.DID == alice || p.Repost)
			require.False(t, p.IndexedAt.IsZero())
		}
	})
}
