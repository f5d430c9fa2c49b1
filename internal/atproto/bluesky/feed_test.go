package bluesky_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// item returns an item of a feed: a post of an account, and additional fields.
func item(did, rkey, record, besides string) string {
	return `{"post":{"uri":"at://` + did + `/app.bsky.feed.post/` + rkey + `","cid":"` + cid + `","author":{"did":"` + did +
		`"},"record":` + record + `,"indexedAt":"2026-07-04T12:00:00.123Z"}` + besides + `}`
}

func feed(t *testing.T, items ...string) ([]bluesky.FeedPost, float64) {
	t.Helper()
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"cursor":"c","feed":[`+strings.Join(items, ",")+`]}`)
	})
	metrics := prometheus.NewRegistry()
	page, next, err := newClient(t, base, func(cfg *bluesky.Config) { cfg.Registerer = metrics }).AuthorFeed(t.Context(), alice, "", 50)
	require.NoError(t, err)
	require.Equal(t, "c", next)
	return page, unreadable(t, metrics)
}

func unreadable(t *testing.T, metrics *prometheus.Registry) float64 {
	t.Helper()
	families, err := metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "weir_bluesky_unreadable_items_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}

func TestFeedItems(t *testing.T) {
	t.Parallel()
	page, left := feed(t,
		item(alice, "3pin", `{"text":"pinned"}`, `,"reason":{"$type":"app.bsky.feed.defs#reasonPin"}`),
		item(bob, "3rep", `{"text":"old"}`,
			`,"reason":{"$type":"app.bsky.feed.defs#reasonRepost","by":{"did":"`+alice+`"},"indexedAt":"2026-07-05T00:00:00Z"}`),
		item(alice, "3new", `{"text":"new"}`, `,"reply":{"parent":{}},"reason":null`),
		item(alice, "3odd", `{"text":"odd"}`, `,"reason":{"$type":"app.bsky.feed.defs#reasonTomorrow"}`),
	)
	indexed := time.Date(2026, 7, 4, 12, 0, 0, 123e6, time.UTC)
	require.Zero(t, left)
	require.Equal(t, []bluesky.FeedPost{
		{DID: alice, Rkey: "3pin", CID: cid, Record: []byte(`{"text":"pinned"}`), IndexedAt: indexed, Pinned: true},
		{DID: bob, Rkey: "3rep", CID: cid, Record: []byte(`{"text":"old"}`), IndexedAt: indexed, Repost: true,
			RepostedAt: time.Date(2026, 7, 5, 0, 0, 0, 0, time.UTC)},
		{DID: alice, Rkey: "3new", CID: cid, Record: []byte(`{"text":"new"}`), IndexedAt: indexed},
		{DID: alice, Rkey: "3odd", CID: cid, Record: []byte(`{"text":"odd"}`), IndexedAt: indexed},
	}, page)
}

func TestFeedRequest(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, `{"feed":[]}`) })
	c := newClient(t, base, nil)
	for requested, sent := range map[int]string{50: "50", 1000: "100", 0: "1"} {
		_, next, err := c.AuthorFeed(t.Context(), alice, "2026-07-04T12:00:00Z", requested)
		require.NoError(t, err)
		require.Empty(t, next)
		last := j.all()[len(j.all())-1]
		require.Equal(t, url.Values{"actor": {alice}, "filter": {"posts_with_replies"}, "limit": {sent}, "cursor": {"2026-07-04T12:00:00Z"}},
			last.query)
	}
}

func TestBrokenRecordIsRepairedOrOmitted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ record, want string }{
		"nul":               {`{"text":"a\u0000b"}`, `{"text":"a` + "\ufffd" + `b"}`},
		"nul in a name":     {`{"a\u0000":1}`, `{"a` + "\ufffd" + `":1}`},
		"lone surrogates":   {`{"text":"a\ud83db\udc00"}`, `{"text":"a` + "\ufffd" + `b` + "\ufffd" + `"}`},
		"a pair of them":    {`{"text":"\ud83d\ude00"}`, `{"text":"😀"}`},
		"an escaped escape": {`{"text":"\\u0000"}`, `{"text":"\\u0000"}`},
		"numbers as written": {
			`{"text":"\u0041","n":[1.50,1e5,-0,12345678901234567890123]}`, `{"text":"A","n":[1.50,1e5,-0,12345678901234567890123]}`,
		},
		"as it came": {`{ "text" : "<a href=\"x\">" }`, `{ "text" : "<a href=\"x\">" }`},
		"deep enough": {
			strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200), strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
		},

		"too deep":             {strings.Repeat(`{"a":`, 201) + "1" + strings.Repeat("}", 201), ""},
		"too long":             {`{"text":"` + strings.Repeat("x", 2<<20) + `"}`, ""},
		"same names":           {`{"a":1,"a":2}`, ""},
		"the same when mended": {`{"a\u0000":1,"a\ud800":2}`, ""},
		"some exponents":       {`{"n":[` + strings.Repeat("1e324,", 6000) + `1]}`, `{"n":[` + strings.Repeat("1e324,", 6000) + `1]}`},
		"absurd exponent":      {`{"n":1e99999}`, ""},
		"negative exponent":    {`{"n":1E-99999}`, ""},
		"endless exponent":     {`{"n":1e+99999999999999999999}`, ""},
		"many exponents":       {`{"n":[` + strings.Repeat("1e-324,", 6500) + `1]}`, ""}, // 2 MiB when Postgres returns them
		"endless number":       {`{"n":` + strings.Repeat("9", 140000) + `}`, ""},
		"no object":            {`["x"]`, ""},
		"null":                 {`null`, ""},
		"not utf-8":            {"{\"text\":\"\xff\"}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, left := feed(t, item(alice, "3bad", c.record, ""), item(alice, "3good", `{}`, ""))
			good := page[len(page)-1]
			require.Equal(t, "3good", good.Rkey)
			if c.want == "" {
				require.Len(t, page, 1)
				require.EqualValues(t, 1, left)
				return
			}
			require.Len(t, page, 2)
			require.Equal(t, c.want, string(page[0].Record))
			require.Zero(t, left)
		})
	}
}

func TestUnreadableItemIsOmittedAndCounted(t *testing.T) {
	t.Parallel()
	bad := []string{
		`null`, `7`, `[]`, `{}`, `{"post":null}`, `{"post":{}}`,
		item("alice.example", "3a", `{}`, ""),
		item("alice.example", "3a", `{}`, `,"reason":{"$type":"app.bsky.feed.defs#reasonRepost","indexedAt":"2026-07-05T00:00:00Z"}`),
		item(alice, "..", `{}`, ""),
		item(alice, "a b", `{}`, ""),
		item(bob, "3nope", `{}`, ""), // another account's post, not a repost
		item(bob, "3nope", `{}`, `,"reason":{"$type":"app.bsky.feed.defs#reasonRepost","indexedAt":"yesterday"}`),
		strings.Replace(item(alice, "3a", `{}`, ""), "app.bsky.feed.post", "app.bsky.feed.like", 1),
		strings.Replace(item(alice, "3a", `{}`, ""), cid, "", 1),
		strings.Replace(item(alice, "3a", `{}`, ""), "2026-07-04T12:00:00.123Z", "0000", 1),
		strings.Replace(item(alice, "3a", `{}`, ""), `"record":{},`, "", 1),
	}
	page, left := feed(t, append(bad, item(alice, "3good", `{}`, ""))...)
	require.Len(t, page, 1)
	require.Equal(t, "3good", page[0].Rkey)
	require.EqualValues(t, len(bad), left)
}

func TestFeedWithoutArrayIsMalformed(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `{"feed":7}`, `{"feed":[{"post":}]}`, `{"cursor":"x"}`} {
		base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, body) })
		_, _, err := newClient(t, base, noRetries).AuthorFeed(t.Context(), alice, "", 50)
		e := failure(t, err)
		require.Equal(t, bluesky.Transient, e.Class, body)
		require.Equal(t, "Malformed", e.Name, body)
	}
}

// TestPostsByURI shows that posts that are not shown are omitted, and that posts that were not
// requested are too.
func TestPostsByURI(t *testing.T) {
	t.Parallel()
	view := func(did, rkey string) string {
		return strings.TrimSuffix(strings.TrimPrefix(item(did, rkey, `{"text":"x\u0000"}`, ""), `{"post":`), "}")
	}
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"posts":[`+view(bob, "3b")+`,`+view(alice, "3other")+`,{"uri":"no"},`+view(alice, "3a")+`]}`)
	})
	c := newClient(t, base, noRetries)
	uris := []string{
		"at://" + alice + "/app.bsky.feed.post/3a", "at://" + bob + "/app.bsky.feed.post/3b", "at://" + bob + "/app.bsky.feed.post/3gone",
	}
	posts, err := c.Posts(t.Context(), uris)
	require.NoError(t, err)
	require.Len(t, posts, 2)
	require.Equal(t, []string{bob + "3b", alice + "3a"}, []string{posts[0].DID + posts[0].Rkey, posts[1].DID + posts[1].Rkey})
	require.JSONEq(t, `{"text":"x\ufffd"}`, string(posts[0].Record))
	require.Equal(t, url.Values{"uris": uris}, j.all()[0].query)
	_, err = c.Posts(t.Context(), make([]string, bluesky.MostByURI+1))
	require.Error(t, err)
	posts, err = c.Posts(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, posts)
	require.Len(t, j.all(), 1)
}
