package links

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/webtest"
)

// marked returns the current choices on a page, in order.
func (r *rig) marked(target string) (all []string) {
	r.T.Helper()
	for _, n := range webtest.Find(r.Parse(r.Get(target)), func(n *html.Node) bool { return webtest.Attr(n, "aria-current") != "" }) {
		all = append(all, webtest.Text(n))
	}
	return all
}

// fillOptions stores links that every option of the ranking distinguishes.
func (r *rig) fillOptions() {
	r.Share("https://a.example/", "did:plc:a", 5*time.Hour)
	r.Share("https://a.example/", "did:plc:b", 4*time.Hour)
	r.shareBy("repost", "https://a.example/", "did:plc:c", 3*time.Hour)
	r.Share("https://b.example/", "did:plc:a", 2*time.Minute)
	r.shareBy("quote", "https://b.example/", "did:plc:b", time.Minute)
	r.Share("https://c.example/", "did:plc:d", 8*time.Hour)
	r.Exec(`UPDATE links SET site = 'c.example' WHERE url = 'https://c.example/'`)
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:b', 'b.example')`)
	r.watch("follows", "alice.example", "did:plc:a", "did:plc:d")
	r.watch("second-degree", "alice.example", "did:plc:b")
	r.watch("follows", "bob.example", "did:plc:c")
}

// TestViewHasOneAddress shows that every view has one address, whatever the order of its parameters
// and however a form sends them.
func TestViewHasOneAddress(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillOptions()
	for asked, want := range map[string]string{
		"/?":                                    "/",
		"/?window=6h":                           "/",
		"/?sort=sharers":                        "/",
		"/?at_least=1":                          "/",
		"/?density=full":                        "/",
		"/?density=":                            "/",
		"/?limit=50":                            "/",
		"/?ways=repost,quote,post":              "/",
		"/?degree=both":                         "/",
		"/?domain=&text=&by=&watch=&at_least=1": "/",
		"/?text=+a+":                            "/?text=a",
		"/?domain=WWW.A.example.":               "/?domain=a.example",
		"/?by=@B.example":                       "/?by=b.example",
		"/?ways=repost,post":                    "/?ways=post,repost",
		"/?watch=@alice.example":                "/?watch=alice.example",
		"/?by=did%3Aplc%3Ab":                    "/?by=did:plc:b",
		"/?density=compact&limit=2&degree=first&watch=alice.example&by=b.example&text=a%2Fb+c&domain=a.example" +
			"&ways=quote%2Cpost&at_least=2&sort=speed&window=24h": "/?window=24h&sort=speed&at_least=2&ways=post,quote&domain=a.example" +
			"&text=a/b+c&by=b.example&watch=alice.example&degree=first&limit=2&density=compact",
		"/links/1?window=7d": "/links/1",
		"/links/1?degree=first&watch=alice.example&window=6h": "/links/1?window=6h&watch=alice.example&degree=first",
	} {
		rec := r.Do(http.MethodGet, asked)
		require.Equal(t, http.StatusFound, rec.Code, asked)
		require.Equal(t, want, rec.Header().Get("Location"), asked)
		require.Equal(t, http.StatusOK, r.Do(http.MethodGet, want).Code, want)
	}
}

// TestPageHasEveryOption shows that the page agrees with the API for every option, and shows which
// options are chosen.
func TestPageHasEveryOption(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillOptions()
	followed := map[string]bool{}
	for query, chosen := range map[string]string{
		"":                                  "6h Most shared Posts Quotes Reposts Comfortable",
		"window=24h&sort=newest":            "24h Newest Posts Quotes Reposts Comfortable",
		"sort=speed":                        "6h Fastest Posts Quotes Reposts Comfortable",
		"at_least=3":                        "6h Most shared Posts Quotes Reposts Comfortable",
		"ways=quote,repost":                 "6h Most shared Quotes Reposts Comfortable",
		"ways=quote":                        "6h Most shared Quotes Comfortable",
		"window=24h&domain=c.example":       "24h Most shared Posts Quotes Reposts Comfortable",
		"text=b.example":                    "6h Most shared Posts Quotes Reposts Comfortable",
		"by=b.example":                      "6h Most shared Posts Quotes Reposts Comfortable",
		"watch=alice.example":               "6h Most shared Posts Quotes Reposts All Comfortable",
		"watch=alice.example&degree=second": "6h Most shared Posts Quotes Reposts Followed by follows Comfortable",
		"limit=1":                           "6h Most shared Posts Quotes Reposts Comfortable",
	} {
		want, _ := r.counted(query)
		for _, density := range []string{"", "&density=compact"} {
			target := strings.Replace("/?"+query+density, "?&", "?", 1)
			var got []string
			page := r.Parse(r.Get(target))
			for _, li := range webtest.Find(page, webtest.Class("link")) {
				href := webtest.Attr(webtest.Find(li, webtest.Element("h2"))[0].FirstChild, "href")
				got = append(got, strings.TrimPrefix(href, "https://")+" "+webtest.Text(webtest.Find(webtest.Find(li, webtest.Class("count"))[0],
					webtest.Element("b"))[0]))
			}
			require.Equal(t, want, got, target)
			if density != "" {
				chosen = strings.Replace(chosen, "Comfortable", "Compact", 1)
			}
			require.Equal(t, chosen, strings.Join(r.marked(target), " "), target)
			for _, a := range webtest.Find(page, webtest.Element("a")) { // every view that the page links to exists, at its only address
				if href := webtest.Attr(a, "href"); strings.HasPrefix(href, "/") && !followed[href] {
					followed[href] = true
					require.Equal(t, http.StatusOK, r.Do(http.MethodGet, href).Code, "%s leads to %s", target, href)
				}
			}
		}
	}
	const all = "/?at_least=2&ways=post,quote&domain=site.example&text=a&by=b.example&watch=alice.example&degree=first"
	active := webtest.Find(r.Parse(r.Get(all)), webtest.Class("active"))[0]
	require.Equal(t, "Filters in use: with “a” × on site.example × shared by @b.example × at least 2 sharers × only posts, "+
		"quotes × only accounts followed directly × Profile on Bluesky", webtest.Text(active))
	for i, without := range []string{"text=a", "domain=site.example", "by=b.example", "at_least=2", "ways=post,quote", "degree=first"} {
		require.NotContains(t, webtest.Attr(webtest.Find(active, webtest.Element("a"))[i], "href"), without)
	}
}

func TestUnknownParametersOfThePageAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for target, want := range map[string]string{
		"/?utm_source=elsewhere": `unknown parameter "utm_source": send any of window, sort, at_least, ways, network, domain, text, by, watch,` +
			` degree, limit, density, cursor`,
		"/?density=tight":       `density is "tight": send one of full, compact`,
		"/?window=2h":           `window is "2h": send one of 1h, 3h, 6h, 12h, 24h, 7d`,
		"/?window=1h&window=3h": `window appears 2 times: send it once`,
		"/?window=%zz":          `the query is malformed: send one like window=6h`,
		"/?degree=first":        `degree is "first": send a watch beside it, such as watch=alice.example`,
		"/links/1?sort=speed":   `unknown parameter "sort": send any of window, watch, degree, cursor`,
	} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusBadRequest, rec.Code, target)
		require.Contains(t, webtest.Text(r.Parse(rec.Body.String())), want)
	}
}

// TestRankingHasPages shows that further pages continue the ranks, and have the time of the first
// one.
func TestRankingHasPages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Exec(`INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at)
		SELECT n, 'https://a.example/' || n, 'a.example', n, $1, 1, $1 FROM generate_series(1, 120) AS n`, r.Now)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'c', 'r', id, id, 'post', $1::timestamptz - interval '1 second' * n
		FROM links, generate_series(1, 120) AS n WHERE n <= id`, r.Now)
	var starts []string
	seen, target := map[string]bool{}, "/?at_least=1&density=compact"
	for target != "" {
		page := r.Parse(r.Get(target))
		starts = append(starts, webtest.Attr(webtest.Find(page, webtest.Class("link"))[0], "data-rank"))
		for _, li := range webtest.Find(page, webtest.Class("link")) {
			seen[webtest.Attr(li, "data-id")] = true
		}
		streams := webtest.Find(page, func(n *html.Node) bool { return webtest.Attr(n, "data-stream") != "" })
		require.Len(t, streams, map[bool]int{true: 1, false: 0}[len(starts) == 1], "only the first page may have an event stream")
		target = ""
		for _, a := range webtest.Find(page, func(n *html.Node) bool { return webtest.Attr(n, "rel") == "next" }) {
			target = webtest.Attr(a, "href")
			require.True(t, strings.HasPrefix(target, "/?density=compact&cursor="), target)
		}
		r.Now = r.Now.Add(time.Second)
	}
	require.Equal(t, []string{"1", "51", "101"}, starts)
	require.Len(t, seen, 120)
}

// TestHostileFiltersStayText shows that text that a reader types is in the address unchanged, and
// is shown as text.
func TestHostileFiltersStayText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, typed := range webtest.HostileTexts() {
		if len(typed) > 100 || strings.Contains(typed, "\x00") {
			continue
		}
		body := r.Get("/?text=" + url.QueryEscape(typed))
		r.Audit(body)
		field := webtest.Find(r.Parse(body), func(n *html.Node) bool { return webtest.Attr(n, "id") == "search" })[0]
		require.Equal(t, strings.TrimSpace(typed), webtest.Attr(field, "value"))
	}
}
