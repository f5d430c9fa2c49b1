package feeds

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/ranking/feeds"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
	"github.com/weir-social/weir/internal/web/links/linkstest"
)

type rig struct{ linkstest.Rig }

// newRig returns a page that has only this part besides the ranking.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{linkstest.New(t)}
	var err error
	r.Handler, err = web.Handler(web.Config{
		DB: r.Pool, Now: func() time.Time { return r.Now }, Parts: []web.Part{links.Part("https://images.example/{did}/{cid}"), Part()},
		Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(t, err)
	return r
}

// fillFeed stores a link for each number, with that many sharers, one per minute. The last one
// shares it ten minutes before now.
func (r *rig) fillFeed(sharers ...int) {
	r.T.Helper()
	for n, most := range sharers {
		for i := range most {
			r.Share(fmt.Sprintf("https://site.example/%d", n), fmt.Sprintf("did:plc:%03d", i), time.Duration(10+most-i)*time.Minute)
		}
	}
}

// entries returns the addresses and dates of the entries of an Atom feed.
func (r *rig) entries(target string) (all []string) {
	r.T.Helper()
	body := r.Get(target)
	require.NoError(r.T, checkAtom(body))
	feed, err := parseXML(body)
	require.NoError(r.T, err)
	for _, e := range feed.all("entry") {
		all = append(all, e.all("link")[0].attrs["href"]+" "+e.all("published")[0].text)
	}
	return all
}

// later advances the clock, so that feeds are computed again.
func (r *rig) later() { r.Now = r.Now.Add(feedInterval) }

// TestEntryHasTheDateOfTheMinimum shows that an entry appears with the last sharer that the link
// needed, and keeps that place and date when others follow.
func TestEntryHasTheDateOfTheMinimum(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(5, 2, 3)
	r.Exec(`UPDATE links SET kept_sharers = NULL, kept_at = NULL`)
	want := []string{"https://site.example/2 2026-05-04T11:49:00Z", "https://site.example/0 2026-05-04T11:47:00Z"}
	require.Equal(t, want, r.entries("/feed.atom"))
	require.Equal(t, []string{"https://site.example/0 2026-05-04T11:48:00Z"}, r.entries("/feed.atom?at_least=4"))
	require.Len(t, r.entries("/feed.atom?at_least=1"), 3)
	require.Len(t, r.entries("/feed.atom?limit=1"), 1)
	before := r.Get("/feed.json")
	r.Share("https://site.example/0", "did:plc:zzz", 0)
	r.Share("https://site.example/0", "did:plc:zzz", time.Hour)
	r.later()
	require.Equal(t, want, r.entries("/feed.atom"))
	require.Equal(t, before, r.Get("/feed.json"), "a rising count must not change the feed")
}

// TestFeedLeavesOutWhatItHadBeforeSharesExpired shows that a link that had the minimum before some
// of its shares expired is not new.
func TestFeedLeavesOutWhatItHadBeforeSharesExpired(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3, 3)
	r.Exec(`UPDATE links SET kept_sharers = 5 WHERE url = 'https://site.example/1'`)
	require.Len(t, r.entries("/feed.atom"), 1)
	require.Len(t, r.entries("/feed.atom?ways=post"), 2, "it is not known whether the expired shares were of this kind")
}

// TestFeedHasTheFiltersOfTheView shows that filters choose among the links of a feed, and that a
// watch and the kinds of shares decide which sharers count.
func TestFeedHasTheFiltersOfTheView(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(4, 3)
	r.Share("https://other.example/", "did:plc:000", time.Minute)
	r.Exec(`UPDATE links SET site = 'other.example' WHERE url = 'https://other.example/'`)
	r.Exec(`UPDATE links SET kept_sharers = NULL, kept_at = NULL`)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:q' || n, 'app.bsky.feed.post', 'q', 1, 1, 'quote', $1::timestamptz
		FROM generate_series(1, 3) AS n`, r.Now.Add(-time.Minute))
	r.Exec(`INSERT INTO watches (target) VALUES ('few.example'), ('all.example')`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT DISTINCT 2, did FROM shares`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:plc:000'), (1, 'did:plc:003')`)
	for target, want := range map[string]string{
		"/feed.atom?domain=site.example":              "0 1",
		"/feed.atom?at_least=1&domain=other.example":  "other",
		"/feed.atom?at_least=2&watch=few.example":     "0",
		"/feed.atom?watch=few.example":                "",
		"/feed.atom?ways=quote":                       "0",
		"/feed.atom?at_least=4&ways=post":             "0",
		"/feed.atom?by=did:plc:003":                   "0",
		"/feed.atom?at_least=1&text=site.example%2F1": "1",
		"/feed.atom?watch=all.example":                "0 1",
		"/feed.atom?watch=all.example&degree=second":  "",
	} {
		var got []string
		for _, e := range r.entries(target) {
			address, _, _ := strings.Cut(e, " ")
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "site.example/"), ".example/"))
		}
		require.ElementsMatch(t, strings.Fields(want), got, target)
	}
}

func TestFeedsHaveOneAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Exec(`INSERT INTO watches (target) VALUES ('alice.example')`)
	for target, want := range map[string]string{
		"/feed.json?domain=news.example&at_least=5": "/feed.json?at_least=5&domain=news.example",
		"/feed.atom?at_least=3&limit=100":           "/feed.atom", "/feed.atom?text=": "/feed.atom",
		"/feed.atom?at_least=1": "", "/feed.atom?limit=50": "", "/feed.json?watch=alice.example&degree=first": "",
	} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, want, rec.Header().Get("Location"), target)
		require.Equal(t, want == "", rec.Code == http.StatusOK, "%s: %s", target, rec.Body.String())
	}
	for target, wrong := range map[string]string{"/feed.atom?window=6h": "unknown parameter &#34;window&#34;",
		"/feed.json?at_least=0": "at_least is", "/feed.atom?limit=201": "limit is",
		"/feed.atom?watch=nobody.example": "watch is", "/feed.json?cursor=x": "cursor", "/feed.atom?sort=speed": "sort"} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusBadRequest, rec.Code, target)
		require.Contains(t, rec.Body.String(), wrong, target)
	}
	var feeds int
	require.NoError(t, r.Pool.QueryRow(t.Context(), `SELECT count(*) FROM feeds WHERE view LIKE '%nobody%'`).Scan(&feeds))
	require.Zero(t, feeds, "a wrong address must leave nothing in the memory")
}

// TestPageAnnouncesItsFeeds shows that each view announces its feeds, with its filters.
func TestPageAnnouncesItsFeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for target, want := range map[string]string{
		"/": "", "/?window=1h&sort=speed&density=compact&limit=10": "",
		"/?at_least=5&ways=post&domain=news.example": "?at_least=5&ways=post&domain=news.example",
	} {
		page := r.Parse(r.Get(target))
		announced := webtest.Find(page, func(n *html.Node) bool { return n.Data == "link" && webtest.Attr(n, "rel") == "alternate" })
		require.Len(t, announced, 2)
		for i, format := range []feedFormat{atomFormat(), jsonFormat()} {
			href := webtest.Attr(announced[i], "href")
			require.Equal(t, format.path+want, href, target)
			require.Equal(t, format.mediaType, webtest.Attr(announced[i], "type"))
			require.NotEmpty(t, webtest.Find(page, func(n *html.Node) bool {
				return n.Data == "a" && webtest.Attr(n, "href") == href
			}), "the page must have a visible link to the feed")
			rec := r.Do(http.MethodGet, href)
			require.Equal(t, http.StatusOK, rec.Code)
			require.Equal(t, format.mediaType+"; charset=utf-8", rec.Header().Get("Content-Type"))
		}
	}
}

// TestFeedIsComputedEveryFiveMinutes shows that a feed is computed at most every five minutes, and
// has a validator for both kinds of conditional requests.
func TestFeedIsComputedEveryFiveMinutes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3)
	first := r.Do(http.MethodGet, "/feed.atom")
	etag, changed := first.Header().Get("ETag"), first.Header().Get("Last-Modified")
	require.Equal(t, r.Now.Format(http.TimeFormat), changed)
	require.NotEqual(t, etag, r.Do(http.MethodGet, "/feed.json").Header().Get("ETag"))
	r.fillFeed(0, 3)
	r.Now = r.Now.Add(feedInterval - time.Second)
	require.Len(t, r.entries("/feed.atom"), 1)
	same := func(target string, header ...string) {
		rec := r.Do(http.MethodGet, target, header...)
		require.Equal(t, http.StatusNotModified, rec.Code)
		require.Empty(t, rec.Body.String())
	}
	same("/feed.atom", "If-None-Match", etag)
	same("/feed.atom", "If-Modified-Since", changed)
	r.Exec(`DELETE FROM shares WHERE link_id IN (SELECT id FROM links WHERE url = 'https://site.example/1')`)
	r.Now = r.Now.Add(time.Second)
	same("/feed.atom", "If-None-Match", etag)
	same("/feed.atom", "If-Modified-Since", changed)
	require.Equal(t, http.StatusOK, r.Do(http.MethodGet, "/feed.json", "If-None-Match", etag).Code, "the ETag is that of the other format")
	r.fillFeed(0, 0, 3)
	r.later()
	for _, header := range [][]string{
		{"If-None-Match", etag}, {"If-Modified-Since", changed},
		{"If-None-Match", etag, "If-Modified-Since", r.Now.Add(time.Hour).Format(http.TimeFormat)},
	} {
		require.Equal(t, http.StatusOK, r.Do(http.MethodGet, "/feed.atom", header...).Code, header)
	}
	require.Len(t, r.entries("/feed.atom"), 2)
}

// TestFeedsLeadToThePublicAddress shows that the addresses in a feed are below the public address,
// or below that of the request if there is none. Ids do not depend on it.
func TestFeedsLeadToThePublicAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3)
	named := r.Get("http://localhost:8080/feed.json")
	require.Contains(t, named, `"http://localhost:8080/feed.json"`)
	require.Contains(t, named, `http://localhost:8080/links/1`)
	require.Contains(t, r.Do(http.MethodGet, "http://localhost/feed.json", "X-Forwarded-Proto", "https").Body.String(),
		`"http://localhost/feed.json"`, "the header is not from a trusted proxy")
	proxies, err := web.ParseProxies([]string{"127.0.0.0/8"})
	require.NoError(t, err)
	r.Handler, err = web.Handler(web.Config{
		Parts: []web.Part{links.Part(""), Part()}, DB: r.Pool, Now: func() time.Time { return r.Now }, Proxies: proxies,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	require.Contains(t, r.Do(http.MethodGet, "http://localhost/feed.json", "X-Forwarded-Proto", "https").Body.String(),
		`"https://localhost/feed.json"`)
	r.Handler, err = web.Handler(web.Config{
		Parts: []web.Part{links.Part(""), Part()}, DB: r.Pool, Now: func() time.Time { return r.Now },
		URL: "https://weir.example/", Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	public := r.Get("http://localhost:8080/feed.json")
	require.Equal(t, strings.ReplaceAll(named, "http://localhost:8080", "https://weir.example"), public)
	for _, wrong := range []string{
		"weir.example", "ftp://weir.example", "https://weir.example/path", "https://user@weir.example", "https://",
	} {
		_, err := web.Handler(web.Config{
			Parts: []web.Part{links.Part(""), Part()}, DB: r.Pool, Now: time.Now, URL: wrong,
			Logger: slog.New(slog.DiscardHandler),
		})
		require.ErrorContains(t, err, "URL", wrong)
	}
}

// TestTextsOfStrangersStayTextInFeeds shows that text from strangers stays text, in both formats
// and in the HTML inside them.
func TestTextsOfStrangersStayTextInFeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3)
	for _, text := range append(webtest.HostileTexts(), "\uFFFE\uFFFF", "\u0085\u2028") {
		text = strings.ReplaceAll(text, "\x00", "") // Postgres cannot store NUL
		r.Exec(`UPDATE links SET title = $1, description = $1, site = $1, image = $1`, text)
		r.later()
		atom, feed := r.Get("/feed.atom"), r.Get("/feed.json")
		require.NoError(t, checkAtom(atom), text)
		require.NoError(t, checkJSONFeed(feed), text)
		require.Less(t, len(atom)+len(feed), 20000)
		parsed, err := parseXML(atom)
		require.NoError(t, err)
		entry := parsed.all("entry")[0]
		require.NotEmpty(t, strings.TrimSpace(entry.all("title")[0].text))
		for _, n := range webtest.Find(r.Parse(entry.all("content")[0].text), func(*html.Node) bool { return true }) {
			require.Contains(t, []string{"html", "head", "body", "p", "a"}, n.Data)
			require.True(t, n.Data != "a" || strings.HasPrefix(webtest.Attr(n, "href"), "http://example.com/links/1"), webtest.Attr(n, "href"))
		}
		for _, override := range []string{"\u202A", "\u202B", "\u202D", "\u202E", "\u2066", "\u2067", "\u2068"} {
			require.NotContains(t, atom+feed, override)
		}
	}
}

// TestFeedsThatStrangersAskForAreLimited shows that the memory of feeds is limited, because anyone
// can request them: a feed beyond the limit remembers nothing. Feeds that differ only by their
// watch always remember.
func TestFeedsThatStrangersAskForAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3, 60)
	r.Exec(`INSERT INTO watches (target) VALUES ('alice.example')`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT DISTINCT 1, did FROM shares`)
	r.Exec(`INSERT INTO feeds (hash, view, usual, asked_at) SELECT int4send(n), n::text, false, $1 FROM generate_series(1, 200) AS n`, r.Now)
	remembered := func() (n int) {
		require.NoError(t, r.Pool.QueryRow(t.Context(), `SELECT count(*) FROM feeds`).Scan(&n))
		return n
	}
	require.Len(t, r.entries("/feed.atom?at_least=50"), 1)
	require.Equal(t, 200, remembered())
	require.Len(t, r.entries("/feed.atom"), 2)
	require.Len(t, r.entries("/feed.atom?watch=alice.example"), 2)
	require.Equal(t, 202, remembered())
	r.Exec(`UPDATE feeds SET asked_at = asked_at - interval '8 days' WHERE view IN ('7', '8')`)
	r.later()
	require.Len(t, r.entries("/feed.atom?at_least=50"), 1)
	require.Equal(t, 202, remembered())
	var gone string
	require.NoError(t, r.Pool.QueryRow(t.Context(),
		`SELECT string_agg(n::text, ' ') FROM generate_series(1, 200) AS n WHERE n::text NOT IN (SELECT view FROM feeds)`).Scan(&gone))
	require.Contains(t, []string{"7", "8"}, gone)
	r.Exec(`INSERT INTO feed_entries (feed_id, link_id, reached_at) SELECT id, n, $1::timestamptz - n * interval '1 day'
		FROM feeds, generate_series(100, 2500) AS n WHERE view LIKE 'at least 3 %watch ""%'`, r.Now)
	r.fillFeed(0, 0, 4)
	r.later()
	require.Len(t, r.entries("/feed.atom"), 3)
	var kept int
	require.NoError(t, r.Pool.QueryRow(t.Context(),
		`SELECT max(n) FROM (SELECT count(*) AS n FROM feed_entries GROUP BY feed_id) AS f`).Scan(&kept))
	require.Equal(t, 2000, kept)
}

// TestKeptFeedsAreBounded shows that cached feeds use bounded memory: the one that was computed
// first is dropped first.
func TestKeptFeedsAreBounded(t *testing.T) {
	t.Parallel()
	s := &server{cache: web.NewCache[*keptFeed](maxFeedBytes)}
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	for n := range 100 {
		_, err := s.keep(fmt.Sprint(n), bigFeed(now, 1<<20))
		require.NoError(t, err)
	}
	kept := 0
	for n := range 100 {
		if s.fresh(fmt.Sprint(n), now) != nil {
			kept += 1 << 20
		}
	}
	require.LessOrEqual(t, kept, maxFeedBytes)
	require.Nil(t, s.fresh("0", now))
	require.NotNil(t, s.fresh("99", now))
	require.Nil(t, s.fresh("99", now.Add(feedInterval)))
}

func bigFeed(at time.Time, bytes int) feeds.Feed {
	return feeds.Feed{At: at, Entries: []feeds.Entry{{LinkCard: ranking.LinkCard{Description: strings.Repeat("x", bytes)}}}}
}

// TestFeedHasTheNetworkOfTheView shows that the page announces the feed of one network, which has only
// what accounts of that network share.
func TestFeedHasTheNetworkOfTheView(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:alice", time.Minute)
	r.Share("https://b.example/", "did:nostr:84dee6e676e5bb67b4ad4e042cf70cbd8681155db535942fcc6a0533858a7240", time.Minute)
	require.Contains(t, r.Get("/?network=nostr"), "/feed.atom?network=nostr")
	for network, other := range map[string]string{"nostr": "bluesky", "bluesky": "nostr"} {
		address := map[string]string{"nostr": "https://b.example/", "bluesky": "https://a.example/"}[network]
		require.Contains(t, r.Get("/feed.json?at_least=1&network="+network), address)
		require.NotContains(t, r.Get("/feed.json?at_least=1&network="+other), address)
	}
}

// TestFeedsThatWaitLeavePagesAlone shows that feeds that take long, of which anyone can request any number, take
// no page the place.
func TestFeedsThatWaitLeavePagesAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3)
	tx, err := r.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // after a failure, or nothing would end
	_, err = tx.Exec(t.Context(), `LOCK TABLE feeds`)
	require.NoError(t, err)
	var asking, answered sync.WaitGroup
	code := func(address string) int { // Do would ask again
		rec, req := httptest.NewRecorder(), httptest.NewRequestWithContext(context.Background(), http.MethodGet, address, nil)
		req.RemoteAddr = "127.0.0.1:1000"
		r.Handler.ServeHTTP(rec, req)
		return rec.Code
	}
	for n := range 30 {
		asking.Add(1)
		answered.Go(func() {
			asking.Done()
			code(fmt.Sprintf("/feed.atom?at_least=%d", n+3))
		})
	}
	asking.Wait()
	eventually.True(t, func() bool {
		var waiting int
		require.NoError(t, r.Pool.QueryRow(t.Context(),
			`SELECT count(*) FROM pg_locks WHERE relation = 'feeds'::regclass AND NOT granted`).Scan(&waiting))
		return waiting == feedsAtOnce
	}, 5*time.Millisecond)
	for _, address := range []string{"/", "/api/v1/trending"} {
		require.Equal(t, http.StatusOK, code(address), address)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	answered.Wait()
	require.Len(t, r.entries("/feed.atom"), 1)
}
