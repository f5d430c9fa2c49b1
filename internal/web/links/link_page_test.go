package links

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestSharersLeadToTheShares shows that the number of sharers links to all shares, with the window
// and the watch of the ranking.
func TestSharersLeadToTheShares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	page := r.Parse(r.Get("/?window=3h&watch=hub.example"))
	require.Equal(t, "The links most shared in the last 3 hours by the 7 accounts that hub.example follows.",
		webtest.Text(webtest.Find(page, func(n *html.Node) bool {
			return webtest.Attr(n, "id") == "subtitle"
		})[0]))
	count := webtest.Find(page, webtest.Class("count"))[0]
	require.Equal(t, "shared by 2", webtest.Text(count))
	require.Equal(t, "/links/1?window=3h&watch=hub.example", webtest.Attr(count, "href"))
	body := r.Get(webtest.Attr(count, "href"))
	r.Audit(body)
	page = r.Parse(body)
	require.Equal(t, "10 shares by 8 accounts 2 count in the last 3 hours, of the accounts that hub.example leads to",
		webtest.Text(webtest.Find(page, webtest.Class("meta"))[0]))
	var threads []string
	for _, li := range webtest.Find(page, webtest.Class("thread")) {
		threads = append(threads, webtest.Text(li))
	}
	require.Equal(t, []string{
		"did:plc:eve posted it 1 min ago Does not count: the account is not one of those that count here.",
		"a hidden account posted it 3 min ago Does not count: the account is not active. did:plc:dan reposted it 2 min ago Does not count: " +
			"the author of the post is not active.",
		"A post by did:plc:gone open it did:plc:carol quoted it 4 min ago Text of did:plc:carol Does not count: the post was deleted, " +
			"is not shown, or no longer contains the link. " +
			"did:plc:will reposted it just now Does not count: the account is not one of those that count here.",
		"@alice.example posted it 10 min ago Text of did:plc:alice did:plc:bob reposted it 5 min ago did:plc:wendy reposted it just now Does " +
			"not count: the account is not one of those that count here.",
		"@alice.example posted it 20 min ago Does not count: the account shared it again later.",
	}, threads[:5])
	require.Contains(t, threads[6], "Does not count: it is older than the window.")
	back := webtest.Find(page, webtest.Element("p"))[0]
	require.Equal(t, "/?window=3h&watch=hub.example", webtest.Attr(back.FirstChild, "href"))
	for _, a := range webtest.Find(page, webtest.Class("from")) {
		require.True(t, strings.HasPrefix(webtest.Attr(a, "href"), "https://bsky.app/profile/did:plc:"), webtest.Attr(a, "href"))
	}
	for target, code := range map[string]int{"/links/2": 404, "/links/x": 400, "/links/-1": 400, "/links/1?window=2h": 400,
		"/links/1?watch=nobody.example": 400, "/links/1?cursor=x": 400,
		"/links/1?utm_source=elsewhere": 400, "/links/1?window=1h&window=3h": 400, "/links/1?window=7d": 302,
		"/links/1?sort=speed": 400, "/links/1?window=%zz": 400, "/links/": 404, "/?watch=nobody.example": 400} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, code, rec.Code, target)
		require.Contains(t, rec.Header().Get("Content-Type"), "text/html", target)
		if strings.Contains(target, "utm_source") {
			require.Contains(t, rec.Body.String(), "unknown parameter &#34;utm_source&#34;: send any of window, watch, degree, cursor")
		}
	}
	require.Zero(t, r.Log.Count())
}

// TestLinkPageOffersTheGift shows that the page of a link and the API offer a sharer's gift link to
// readers who have not paid. Only https is offered.
func TestLinkPageOffersTheGift(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share(sharedLink, "did:plc:giver", time.Minute)
	offered := func() (all []string) {
		for _, a := range webtest.Find(r.Parse(r.Get("/links/1")), webtest.Element("a")) {
			if webtest.Text(a) == "Gift link" {
				all = append(all, webtest.Attr(a, "href"))
			}
		}
		return all
	}
	require.Empty(t, offered())
	for gift, want := range map[string][]string{
		sharedLink + `?gift="><script>`: {sharedLink + `?gift="><script>`}, "javascript:alert(1)": nil,
		"http://site.example/?gift=1": nil,
	} {
		r.Exec(`UPDATE shares SET gift = $1`, gift)
		r.Audit(r.Get("/links/1"))
		for i, href := range offered() {
			require.Equal(t, want[i], strings.NewReplacer("%22", `"`, "%3e", ">", "%3c", "<").Replace(href))
		}
		require.Len(t, offered(), len(want))
		for _, target := range []string{"/api/v1/links/1", "/api/v1/trending"} {
			require.Equal(t, want != nil, strings.Contains(r.Get(target), `"gift":`), target)
		}
	}
}

// TestSharesHavePages covers a link with many shares.
func TestSharesHavePages(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share(sharedLink, "did:plc:0", 0)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'app.bsky.feed.post', 'r', 1, 1, 'post', $1::timestamptz FROM generate_series(1, 119) AS n`, r.Now)
	seen, pages := map[string]bool{}, 0
	for target := "/links/1?window=1h"; target != ""; pages++ {
		page := r.Parse(r.Get(target))
		for _, li := range webtest.Find(page, webtest.Class("share")) {
			seen[webtest.Text(webtest.Find(li, webtest.Element("bdi"))[0])] = true
		}
		target = ""
		for _, a := range webtest.Find(page, func(n *html.Node) bool { return webtest.Attr(n, "rel") == "next" }) {
			target = webtest.Attr(a, "href")
		}
	}
	require.Len(t, seen, 120)
	require.Equal(t, 3, pages)
}

func TestWatchCanBeChosen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:a", time.Minute)
	r.Share("https://b.example/", "did:plc:b", time.Minute)
	chosen := func(target string) (names, values []string, current string) {
		page := r.Parse(r.Get(target))
		watches := webtest.Find(page, func(n *html.Node) bool { return webtest.Attr(n, "id") == "watch" })
		if len(watches) == 0 {
			return nil, nil, ""
		}
		for _, option := range webtest.Find(watches[0], webtest.Element("option")) {
			names, values = append(names, webtest.Text(option)), append(values, webtest.Attr(option, "value"))
			for _, a := range option.Attr {
				if a.Key == "selected" {
					current = webtest.Text(option)
				}
			}
		}
		return names, values, current
	}
	names, _, _ := chosen("/")
	require.Empty(t, names, "there are no watches")
	r.watch("follows", "alice.example", "did:plc:a")
	names, _, _ = chosen("/")
	require.Empty(t, names, "there is no choice")
	r.watch("follows", "did:plc:z72i7hdynmk6r22z27h6tvur", "did:plc:b")
	r.watch("account", "alice.example", "did:plc:c")
	names, values, current := chosen("/?window=24h")
	require.Equal(t, []string{"all followed accounts", "alice.example", "did:plc:z72i…tvur"}, names)
	require.Equal(t, []string{"", "alice.example", "did:plc:z72i7hdynmk6r22z27h6tvur"}, values)
	require.Equal(t, "all followed accounts", current)
	_, _, current = chosen("/?watch=did:plc:z72i7hdynmk6r22z27h6tvur")
	require.Equal(t, "did:plc:z72i…tvur", current)

	body := r.Get("/?window=24h&watch=alice.example")
	r.Audit(body)
	page := r.Parse(body)
	form := webtest.Find(page, webtest.Element("form"))[1]
	require.Equal(t, []string{"/", "get"}, []string{webtest.Attr(form, "action"), webtest.Attr(form, "method")})
	require.Equal(t, "24h", webtest.Attr(webtest.Find(form, webtest.Element("input"))[0], "value"), "the form must keep the window")
	require.Equal(t, "The links most shared in the last 24 hours by the 2 accounts in the watches of alice.example.",
		webtest.Text(webtest.Find(page, func(n *html.Node) bool {
			return webtest.Attr(n, "id") == "subtitle"
		})[0]))
	require.Equal(t, []string{"https://a.example/"}, titles(r.rows("/?window=24h&watch=alice.example")))
	require.Len(t, r.rows("/?window=24h&watch="), 2)
	for _, a := range webtest.Find(webtest.Find(page, webtest.Class("tabs"))[0], webtest.Element("a")) {
		require.Contains(t, webtest.Attr(a, "href"), "watch=alice.example", "the links must keep the watch")
	}
}

// give has accounts share the link in posts with the same title and address.
func (r *rig) give(title, address string, dids ...string) {
	r.T.Helper()
	r.Exec(`INSERT INTO claims (link_id, hash, url, site, title)
		VALUES (1, sha256(convert_to($1 || $2, 'UTF8')), $2, 'a.example', $1)`, title, address)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
		SELECT d, 'app.bsky.feed.post', 'g-' || $1, 1, 1, 'post', $2, (SELECT max(id) FROM claims) FROM unnest($3::text[]) AS d`,
		title, r.Now.Add(-time.Minute), dids)
}

// TestLinkPageShowsWhatLostTheVote shows that the page lists the titles and spellings that lost the
// vote, and a chart of its sharers.
func TestLinkPageShowsWhatLostTheVote(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share(sharedLink, "did:plc:first", 6*time.Hour)
	r.give("Title of "+sharedLink, sharedLink, "did:plc:a", "did:plc:b", "did:plc:c")
	r.give("Another title", sharedLink+"?m=1", "did:plc:d", "did:plc:e", "did:plc:hidden")
	r.give("A third", "http://a.example", "did:plc:f")
	r.Exec(`INSERT INTO accounts (did, status) VALUES ('did:plc:hidden', 'takendown')`)
	page := r.Parse(r.Get("/links/1?window=24h"))
	var given []string
	for _, ul := range webtest.Find(page, webtest.Class("given")) {
		given = append(given, webtest.Text(ul))
	}
	require.Equal(t, []string{
		"Another title 2 accounts A third 1 account", "https://a.example/?m=1 2 accounts http://a.example 1 account",
	}, given)
	require.Equal(t, "Sharers over time Sharers since the first of these shares: 7 now. 4 May, 06:00 UTC 7 now",
		webtest.Text(webtest.Find(page, webtest.Class("chart"))[0].FirstChild.NextSibling)+" "+
			webtest.Attr(webtest.Find(page, webtest.Element("svg"))[0], "aria-label")+" "+webtest.Text(webtest.Find(page, webtest.Class("axis"))[0]))
	require.Regexp(t, `^M0 71\.0L10\.0 61\.1L.*L480\.0 2\.0$`,
		webtest.Attr(webtest.Find(page, webtest.Class("line"))[0], "d"), "from nobody to all")
	require.Contains(t, webtest.Text(webtest.Find(page, webtest.Class("how"))[0]),
		"1 share does not count: the account is not active. No gap is known that could hide shares.")
	r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, accounts, checked)
		VALUES ('jetstream', $1, $2, 'the server forgot', now(), 10, 4)`, r.Now.Add(-8*time.Hour), r.Now.Add(-7*time.Hour))
	require.Contains(t, webtest.Text(webtest.Find(r.Parse(r.Get("/links/1?window=24h")), webtest.Class("how"))[0]),
		"The counts may be too low. 4 May, 04:00 UTC – 4 May, 05:00 UTC: the server forgot; "+
			"10 accounts have to be compared with what is stored; 4 done")
	require.NotContains(t, r.Get("/links/1?window=6h"), "the server forgot", "the gap hides no share of this window")
	var l struct{ Windows map[string]int }
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1")), &l))
	for i, a := range webtest.Find(webtest.Find(page, webtest.Class("tabs"))[0], webtest.Element("a")) {
		name := windows()[i].Name
		require.Equal(t, fmt.Sprintf("%s %d", name, l.Windows[name]), webtest.Text(a), "the page must show the sharers in each window")
	}
}

// TestTextsOfSharersStayText fills every column on the page of a link that strangers control.
func TestTextsOfSharersStayText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	r.give("x", "y", "did:plc:alice")
	for _, text := range webtest.HostileTexts() {
		text = strings.ReplaceAll(text, "\x00", "") // Postgres cannot store NUL
		r.Exec(`UPDATE links SET title = $1, description = $1, site = $1, image = $1, card_from = $1`, text)
		r.Exec(`UPDATE links SET card_from = 'https://a.example/?' || $1 WHERE id = 1`, text)
		r.Exec(`INSERT INTO cards (link_id, sharers, fetched_at, title, description, site_name, address, status)
			VALUES (1, 5, now(), $1, $1, $1, $1, $1)
ON CONFLICT (link_id) DO UPDATE SET title = $1, description = $1, site_name = $1, address = $1, status = $1`, text)
		r.Exec(`UPDATE claims SET title = $1, url = $1`, text)
		r.Exec(`UPDATE accounts SET handle = $1, display_name = $1`, text)
		r.Exec(`UPDATE records SET record = jsonb_build_object('text', $1::text)`, text)
		if len(text) < 1000 {
			r.Exec(`UPDATE watches SET target = $1 WHERE kind = 'follows'`, text)
		}
		for _, target := range []string{"/links/1", "/links/1?watch=did:plc:bob", "/?watch=did:plc:bob"} {
			body := r.Get(target)
			r.Audit(body)
			require.Less(t, len(body), 20000, "a long text must be shortened")
			shown := ""
			for n := range r.Parse(body).Descendants() {
				if n.Type == html.TextNode {
					shown += n.Data
				}
			}
			for _, override := range []string{"\u202A", "\u202B", "\u202D", "\u202E", "\u2066", "\u2067", "\u2068"} {
				require.NotContains(t, shown, override)
			}
		}
		r.Get("/api/v1/links/1/shares")
		require.NotContains(t, r.Get("/api/v1/links/1"), "<", "JSON escapes markup")
	}
}

// TestPageSaysWhereTheTitleIsFrom covers a title from a post and one from the page itself.
func TestPageSaysWhereTheTitleIsFrom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	for from, want := range map[string][3]string{
		"https://a.example/x": {"page", "https://a.example/x", "The title is from the page itself"},
		"at://did:plc:aaa/app.bsky.feed.post/3kabcdef": {
			"post", "https://bsky.app/profile/did:plc:aaa/post/3kabcdef", "The title is from a post",
		},
	} {
		r.Exec(`UPDATE links SET title = 'T', card_from = $1`, from)
		r.Exec(`DELETE FROM cards`)
		if want[0] == "page" {
			r.Exec(`INSERT INTO cards (link_id, sharers, fetched_at, title, address, same_site) VALUES (1, 5, now(), 'T', $1, true)`, from)
		}
		var l ranking.LinkSummary
		require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1")), &l))
		require.Equal(t, want[0], l.TitleFrom)
		require.Equal(t, from, l.CardFrom)
		found := ""
		for _, a := range webtest.Find(r.Parse(r.Get("/links/1")), webtest.Element("a")) {
			if webtest.Attr(a, "href") == want[1] && strings.HasPrefix(webtest.Text(a), "The title") {
				found = webtest.Text(a)
			}
		}
		require.Equal(t, want[2], found)
	}
}

// TestKeptLinkSaysHowManySharedIt covers a kept link whose shares have expired.
func TestKeptLinkSaysHowManySharedIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	how := func() string { return webtest.Text(webtest.Find(r.Parse(r.Get("/links/1")), webtest.Class("how"))[0]) }
	r.Exec(`INSERT INTO links (identity, url, site, first_seen) VALUES ('a.example', 'https://a.example/', 'a.example', $1)`, r.Now)
	require.NotContains(t, how(), "expired")
	require.NotContains(t, r.Get("/api/v1/links/1"), "kept")
	r.Exec(`UPDATE links SET kept_sharers = 1700, kept_at = $1`, r.Now.Add(-36*time.Hour))
	require.Contains(t, how(), "Some of its shares have expired, last on 3 May, 00:00 UTC. Up to 1,700 accounts counted until then.")
}

// TestPageSaysHowOldTheKnowledgeOfStrangersPostsMayBe shows that it does so only if followed
// accounts are counted.
func TestPageSaysHowOldTheKnowledgeOfStrangersPostsMayBe(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	foot := func() string { return webtest.Text(webtest.Find(r.Parse(r.Get("/")), webtest.Element("footer"))[0]) }
	require.NotContains(t, foot(), "looked up again")
	r.watch("follows", "alice.example", "did:plc:aaa")
	require.Contains(t, foot(),
		"The posts of others that these accounts repost or quote are looked up again every 15 min: until then, a deleted one still counts.")
	require.Equal(t, 15*time.Minute, ranking.SubjectInterval)
}
