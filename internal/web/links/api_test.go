package links

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

func TestAPIReturnsTheRanking(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", schema.StateLive, "")
	r.Exec(`UPDATE streams SET state_since = $1, caught_up_at = $1`, r.Now.Add(-time.Hour))
	r.Share("https://a.example/?a=1&b=2", "did:plc:aaa", 90*time.Minute)
	r.Share("https://a.example/?a=1&b=2", "did:plc:bbb", time.Minute)
	r.Exec(`UPDATE links SET image = 'blob:did:plc:abc/bafkreiabcdefgh', card_from = 'at://did:plc:abc/app.bsky.feed.post/3k', title = 'T'`)
	rec := r.Do(http.MethodGet, "/api/v1/trending?window=3h&limit=10")
	require.Equal(t, "application/json", rec.Header().Get("Content-Type"))
	require.JSONEq(t, `{
		"window": "3h", "generated_at": "2026-05-04T12:00:00Z",
		"stream": [{"name": "jetstream", "host": "host.example", "state": "live",
		"detail": "reading host.example", "state_since": "2026-05-04T11:00:00Z",
			"last_event": "2026-05-04T11:59:30Z", "caught_up": "2026-05-04T11:00:00Z"}],
		"gaps": [],
		"links": [{"url": "https://a.example/?a=1&b=2", "site": "site.example",
		"title": "T", "image": "https://images.example/did:plc:abc/bafkreiabcdefgh",
			"card_from": "at://did:plc:abc/app.bsky.feed.post/3k", "sharers": 2, "id": 1,
			"faces": [{"did": "did:plc:bbb", "network": "bluesky"}, {"did": "did:plc:aaa", "network": "bluesky"}],
			"first_seen": "2026-05-04T12:00:00Z", "last_shared": "2026-05-04T11:59:00Z", "shared_by": ["did:plc:bbb", "did:plc:aaa"]}]
	}`, rec.Body.String())
}

func TestAPIOfAFreshDatabaseHasEmptyLists(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.JSONEq(t, `{"window":"6h","generated_at":"2026-05-04T12:00:00Z","stream":[],"gaps":[],"links":[]}`, r.Get("/api/v1/trending"))
}

func TestAPIReturnsAtMostItsLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Exec(`WITH l AS (
			INSERT INTO links (identity, url, site, first_seen)
			SELECT 'https://a.example/' || n, 'https://a.example/' || n, 'a.example', $1 FROM generate_series(1, 250) AS n RETURNING id
		) INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) SELECT 'did:plc:a', 'c', 'r', id, id, 'post', $1
		FROM l`, r.Now)
	for query, want := range map[string]int{"": 50, "?limit=1": 1, "?limit=50": 50, "?limit=200": 200} {
		var response trendingJSON
		require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/trending"+query)), &response))
		require.Len(t, response.Links, want, query)
	}
}

func TestAPISaysWhatToSendInstead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for query, want := range map[string]string{
		"window=2h":                  `window is "2h": send one of 1h, 3h, 6h, 12h, 24h, 7d`,
		"window=":                    `window is "": send one of 1h, 3h, 6h, 12h, 24h, 7d`,
		"window=6H":                  `window is "6H": send one of 1h, 3h, 6h, 12h, 24h, 7d`,
		"window=1h&window=3h":        `window appears 2 times: send it once`,
		"limit=0":                    `limit is "0": send a whole number from 1 to 200`,
		"limit=201":                  `limit is "201": send a whole number from 1 to 200`,
		"limit=-1":                   `limit is "-1": send a whole number from 1 to 200`,
		"limit=ten":                  `limit is "ten": send a whole number from 1 to 200`,
		"limit=1.5":                  `limit is "1.5": send a whole number from 1 to 200`,
		"limit=99999999999999999999": `limit is "99999999999999999999": send a whole number from 1 to 200`,
		"limit=1&limit=1":            `limit appears 2 times: send it once`,
		"windw=6h": `unknown parameter "windw": send any of window, sort, at_least, ways, network, domain, text,` +
			` by, watch, degree, limit, cursor`,
		"sort=best":                        `sort is "best": send one of sharers, speed, newest`,
		"at_least=0":                       `at_least is "0": send a whole number from 1 to 1000000`,
		"at_least=+2":                      `at_least is " 2": send a whole number from 1 to 1000000`,
		"ways=post,like":                   `ways is "post,like": send some of post,quote,repost, separated by commas`,
		"ways=post,post":                   `ways is "post,post": send some of post,quote,repost, separated by commas`,
		"ways=":                            `ways is "": send some of post,quote,repost, separated by commas`,
		"domain=https://a.example/":        `domain is "https://a.example/": send a host such as news.example`,
		"text=" + strings.Repeat("a", 201): `text is "` + strings.Repeat("a", 39) + `…": send words, 200 characters at most`,
		"by=@":                             `by is "@": send the handle, the DID or the npub of an account`,
		"by=did:plc":                       `by is "did:plc": send the handle, the DID or the npub of an account`,
		"degree=first":                     `degree is "first": send a watch beside it, such as watch=alice.example`,
		"watch=a.example&degree=third":     `degree is "third": send one of first, second, both`,
		"watch=a%00b":                      `watch is "a\x00b": send the target of a watch`,
		"watch=%ff":                        `watch is "\xff": send the target of a watch`,
		"watch=nobody.example":             `watch is "nobody.example": send none: there are no watches`,
		"cursor=x": `cursor is "x": send the next of a page with the same other parameters,` +
			` from less than an hour ago, or none for the first page`,
		"window=%zz":                            `the query is malformed: send one like window=6h&limit=50`,
		"window=6h;limit=50":                    `the query is malformed: send one like window=6h&limit=50`,
		"window=" + url.QueryEscape("<script>"): `window is "<script>": send one of 1h, 3h, 6h, 12h, 24h, 7d`,
	} {
		rec := r.Do(http.MethodGet, "/api/v1/trending?"+query)
		require.Equal(t, http.StatusBadRequest, rec.Code, query)
		var response map[string]string
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &response), query)
		require.Equal(t, map[string]string{"error": want}, response)
		require.Equal(t, "application/json", rec.Header().Get("Content-Type"))
	}
}

func TestUnreachableDatabaseIsAClear503(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Pool.Close()
	for i, target := range []string{"/", "/api/v1/trending"} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusServiceUnavailable, rec.Code, target)
		require.Contains(t, rec.Body.String(), "The database does not respond", target)
		require.NotContains(t, rec.Body.String(), "pool", "the cause is only logged")
		require.Equal(t, "5", rec.Header().Get("Retry-After"))
		require.Equal(t, "no-store", rec.Header().Get("Cache-Control"))
		require.Empty(t, rec.Header().Get("ETag"))
		require.Equal(t, i+1, r.Log.Count(), "expected one log line for each request")
	}
	var response map[string]string
	require.NoError(t, json.Unmarshal(r.Do(http.MethodGet, "/api/v1/trending").Body.Bytes(), &response))
	require.Contains(t, response["error"], "try again")
}

func TestHungDatabaseTimesOutAfterFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler, err := web.Handler(web.Config{
			Parts: []web.Part{Part("")}, DB: webtest.Hung{}, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		began := time.Now()
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		require.Equal(t, 5*time.Second, time.Since(began))
	})
}
