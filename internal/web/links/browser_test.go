package links

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// fillNews stores links with long and short titles, pictures and faces. Link n has 60 / n sharers,
// and at least one.
func (r *rig) fillNews(links int) {
	r.T.Helper()
	titles := []string{"The river that changed its course in a single night",
		"A city without cars, ten years on: what the numbers say about air, trade and sleep", "Tram",
		"Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft"}
	r.Exec(`INSERT INTO links (identity, url, site, title, description, image, card_from, first_seen, kept_sharers, kept_at)
		SELECT 'news.example/2026/05/04/story-' || n, 'https://news.example/2026/05/04/story-' || n,
			(ARRAY['news.example', 'a-rather-long-name-of-a-host.observer.example'])[1 + n % 2], ($2::text[])[1 + n % 4] || ' ' || n,
			left('Engineers, neighbours and a geologist explain what happened upstream, what it cost, '
				|| 'and why nobody is in a hurry to put it back. With maps and a timeline.', 50 + n * 37 % 100),
			CASE n % 3 WHEN 1 THEN '' ELSE 'blob:did:plc:abc/bafkreiabcdefgh' END, 'at://did:plc:abc/app.bsky.feed.post/3kabc',
				$1::timestamptz - n * interval '13 minutes', 1, $1
		FROM generate_series(1, $3::int) AS n`, r.Now, titles, links)
	r.Exec(`INSERT INTO accounts (did, handle, avatar)
		SELECT 'did:plc:p' || n, (ARRAY['alice', 'bob-the-builder-of-long-names', 'c'])[1 + n % 3] || n || '.example',
			'https://x.example/p/bafkreiabcdefgh@jpeg' FROM generate_series(0, 59) AS n`)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:p' || n, 'app.bsky.feed.post', 'r' || id, id, id, 'post', $1::timestamptz - interval '1 minute' * (n * 3 + id)
		FROM links, generate_series(0, 59) AS n WHERE n < greatest(60 / id, 1)`, r.Now)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, subject_did, subject_rkey)
		SELECT 'did:plc:p' || n, 'app.bsky.feed.repost', 'rr' || n, 1, 1, 'repost', $1::timestamptz - interval '30 seconds' * n,
			'did:plc:p0', 'r1' FROM generate_series(20, 40) AS n`, r.Now)
	r.Exec(`INSERT INTO subjects (did, collection, rkey, links) VALUES ('did:plc:p0', 'app.bsky.feed.post', 'r1', '{1}')`)
	r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT 'app.bsky.feed.post', 'did:plc:p' || n, 'r1', 'r', 'c', $1,
			jsonb_build_object('text', 'Worth your time, the night shift most of all. ' || n) FROM generate_series(0, 9) AS n`, r.Now)
	r.Exec(`INSERT INTO watches (target, synced_at) VALUES ('alice.example', now()), ('bob.example', now())`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, 'did:plc:p' || n FROM generate_series(0, 337) AS n`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) VALUES (2, 'did:plc:p1'), (2, 'did:plc:p2')`)
	r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, accounts, checked)
		VALUES ('jetstream', $1, $2, 'the server forgot', now(), 342, 120)`, r.Now.Add(-26*time.Hour), r.Now.Add(-25*time.Hour))
	r.Stream("jetstream", "live", "")
}

// open returns a new tab for the pages of the rig.
func (r *rig) open() *browsertest.Tab {
	r.T.Helper()
	b, _ := r.openOn()
	return b
}

// openOn is open, and also returns the server.
func (r *rig) openOn() (*browsertest.Tab, *httptest.Server) {
	r.T.Helper()
	server := httptest.NewServer(r.Handler)
	r.T.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return browsertest.Open(r.T, server.URL), server
}

// TestPagesFitAndHaveNoBarriers shows that every page fits every screen in both themes, has targets
// large enough for a finger, and has no accessibility violations.
func TestPagesFitAndHaveNoBarriers(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillNews(50)
	pages := map[string]string{
		"ranking": "/",
		"filtered": "/?window=24h&sort=speed&at_least=2&ways=post,quote&domain=news.example&text=the" +
			"&by=alice3.example&watch=alice.example&degree=first",
		"long": "/?window=7d&watch=alice.example&limit=20", "compact": "/?density=compact", "link": "/links/1",
		"other link": "/links/4?window=1h&watch=bob.example", "empty": "/?window=1h&domain=nothing.example", "error": "/?x=1",
	}
	r.give("Another title that few gave", "https://m.news.example/2026/05/04/story-1", "did:plc:p3", "did:plc:p4")
	for _, scheme := range []string{"light", "dark"} {
		b := r.open()
		b.Scheme(scheme)
		if scheme == "dark" { // the longest state text
			r.Exec(`UPDATE streams SET lease_expires_at = now() - interval '1 hour'`)
		}
		for name, target := range pages {
			b.Show(target)
			b.Do(chromedp.Evaluate[chromedp.Void](`document.querySelectorAll("details").forEach((d) => { d.open = true; })`))
			for _, width := range []int64{320, 390, 1280} {
				b.Size(width, 800)
				require.Empty(t, b.Misfits(), "%s at %d px", name, width)
				if width == map[string]int64{"light": 320, "dark": 1280}[scheme] {
					require.Empty(t, b.Barriers(), "%s at %d px, %s", name, width, scheme)
				}
			}
		}
		background := browsertest.Evaluate[string](b, `getComputedStyle(document.body).backgroundColor`)
		require.Equal(t, map[string]string{"light": "rgb(252, 251, 248)", "dark": "rgb(19, 21, 20)"}[scheme], background)
	}
}

// TestControlsLeadToTheirViews shows that each control leads to the address of its view.
func TestControlsLeadToTheirViews(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillNews(60)
	b := r.open()
	b.Show("/")
	leads := func(selector, want string) {
		t.Helper()
		b.Click(selector)
		require.Equal(t, want, b.At())
	}
	leads(`.tabs:nth-of-type(1) a:nth-of-type(5)`, "/?window=24h")
	leads(`.tabs:nth-of-type(2) a:nth-of-type(2)`, "/?window=24h&sort=speed")
	b.Do(chromedp.SendKeys(chromedp.CSS("#search"), "river"))
	leads(`.search button`, "/?window=24h&sort=speed&text=river")
	require.Contains(t, b.Read(".active"), "with “river”")
	b.Do(chromedp.Click(chromedp.CSS(".filters summary")))
	for field, value := range map[string]string{"at_least": "2", "watch": "alice.example"} {
		b.Do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.getElementById(%q).value = %q", field, value)))
	}
	b.Do(chromedp.SendKeys(chromedp.CSS("#domain"), "www.News.example"), chromedp.SendKeys(chromedp.CSS("#by"), "@c2.example"))
	leads(`.filters button`, "/?window=24h&sort=speed&at_least=2&domain=news.example&text=river&by=c2.example&watch=alice.example")
	filter := func(nav, choice int, want string) {
		t.Helper()
		b.Do(chromedp.Click(chromedp.CSS(".filters summary")))
		leads(fmt.Sprintf(".filters nav:nth-of-type(%d) a:nth-of-type(%d)", nav, choice), want)
	}
	const rest = "&domain=news.example&text=river&by=c2.example&watch=alice.example"
	filter(1, 3, "/?window=24h&sort=speed&at_least=2&ways=post,quote"+rest)
	filter(2, 2, "/?window=24h&sort=speed&at_least=2&ways=post,quote"+rest+"&degree=first")
	filter(3, 2, "/?window=24h&sort=speed&at_least=2&ways=post,quote"+rest+"&degree=first&density=compact")
	for b.Found(".active a:not(.profile)") > 0 {
		b.Click(".active a")
	}
	require.Equal(t, "/?window=24h&sort=speed&watch=alice.example&density=compact", b.At())

	b.Show("/?window=24h")
	leads(".site a", "/?window=24h&domain=a-rather-long-name-of-a-host.observer.example")
	b.Show("/?window=24h")
	leads(".by a:nth-of-type(2)", "/?window=24h&by=alice0.example")
	b.Show("/?window=24h")
	b.Click(`[rel="next"]`)
	require.Equal(t, "51", browsertest.Evaluate[string](b, `document.querySelector(".link").dataset.rank`))
	require.Equal(t, 10, b.Found(".link"))
	leads(".more a", "/?window=24h")
	leads(".count", "/links/1?window=24h")
	leads(".tabs a:nth-of-type(6)", "/links/1")
	b.Click(`[rel="next"]`)
	require.Contains(t, b.Read(".thread"), "posted it")
	leads(".more a", "/links/1")
	leads(".title p a", "/?window=7d")
	leads(".name", "/")
}

// TestKeys shows that the keys do what the list of keys says, and nothing while a reader types.
func TestKeys(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillNews(5)
	b := r.open()
	b.Show("/?window=24h")
	focused := func() string {
		return browsertest.Evaluate[string](b, `document.activeElement.closest(".link")?.dataset.rank ?? document.activeElement.id`)
	}
	for _, rank := range []string{"1", "2", "3", "4", "5", "5"} {
		b.Press("j")
		require.Equal(t, rank, focused())
	}
	for _, rank := range []string{"4", "3"} {
		b.Press("k")
		require.Equal(t, rank, focused())
	}
	b.Do(chromedp.KeyEvent("j", chromedp.KeyModifiers(kb.ModifierCtrl)),
		chromedp.KeyEvent("j", chromedp.KeyModifiers(kb.ModifierAlt)), chromedp.KeyEvent("j", chromedp.KeyModifiers(kb.ModifierMeta)))
	require.Equal(t, "3", focused(), "keys with a modifier are the browser's")
	browsertest.Evaluate[chromedp.Void](b,
		`document.addEventListener("click", (e) => { e.preventDefault(); window.opened = e.target.href; }, {once: true})`)
	b.Press("o")
	require.Equal(t, "https://news.example/2026/05/04/story-3", browsertest.Evaluate[string](b, "window.opened"))
	b.Press("/")
	require.Equal(t, "search", focused())
	// unlike a keyboard's key, this one types a character although it was handled
	b.Do(chromedp.Evaluate[chromedp.Void](`document.activeElement.value = ""`))
	for _, key := range []string{"j", "o", "n", "?", "/"} {
		b.Press(key)
	}
	require.Equal(t, "jon?/", browsertest.Evaluate[string](b, `document.getElementById("search").value`))
	require.Equal(t, 0, b.Found("dialog"))

	b.Do(chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`))
	b.Press("?")
	require.Contains(t, b.Read("dialog"), "show new links")
	require.Empty(t, b.Barriers())
	b.Press("j")
	require.NotEqual(t, "1", focused(), "keys must do nothing while the list is open")
	b.Do(chromedp.Click(chromedp.CSS("dialog input")))
	require.Equal(t, "1", browsertest.Evaluate[string](b, `localStorage.getItem("weir-keys-off") ?? ""`))
	b.Press(kb.Escape)
	b.Until(`!document.querySelector("dialog")`)
	b.Press("j")
	require.Empty(t, focused(), "the keys must do nothing when they are off")
	b.Show("/?window=24h")
	b.Press("j")
	require.Empty(t, focused(), "the keys must stay off")
	b.Press("?")
	b.Do(chromedp.Click(chromedp.CSS("dialog input")), chromedp.Click(chromedp.CSS("dialog button")))
	b.Until(`!document.querySelector("dialog")`)
	b.Press("j")
	require.Equal(t, "1", focused())
}

// TestRowsNeverMove shows that counts change in place, and that new links wait until the reader
// asks for them, so nothing under the pointer moves. Only the line about new links is announced to
// screen readers, at most once a minute.
func TestRowsNeverMove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillNews(5)
	r.Exec(`DELETE FROM gaps`)
	b := r.open()
	b.Show("/?window=24h")
	b.Until(`document.getElementById("updated").innerText.startsWith("updated")`)
	rect := `JSON.stringify([...document.querySelectorAll(".link")].map((li) => [li.dataset.id, li.getBoundingClientRect().top,` +
		` li.getBoundingClientRect().height]))`
	before := browsertest.Evaluate[string](b, rect)
	over := `document.elementFromPoint(500, 500).closest(".link").dataset.id`
	_, err := chromedp.Call(b.Context, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: "mouseMoved", X: 500, Y: 500})
	require.NoError(t, err)
	under := browsertest.Evaluate[string](b, over)
	browsertest.Evaluate[chromedp.Void](b,
		`window.heard = []; new MutationObserver(() => `+
			`heard.push(document.querySelector("[role=status]").innerText)).observe(document.querySelector("[role=status]"), {childList: true,`+
			` characterData: true, subtree: true})`)

	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:p' || n, 'c', 'new', 5, 5, 'post', $1 FROM generate_series(100, 199) AS n`, r.Now)
	b.Until(`document.querySelector('[data-id="5"] [data-count]').innerText === "112"`)
	require.Equal(t, "and 109 more", b.Read(`[data-id="5"] .others`))
	r.Share("https://new.example/1", "did:plc:p1", 0)
	b.Until(`document.querySelector("#waiting button")?.innerText === "1 new link"`)
	r.Share("https://new.example/2", "did:plc:p1", 0)
	r.Exec(`DELETE FROM shares WHERE link_id = 4`)
	b.Until(`document.querySelector("#waiting button")?.innerText === "2 new links"`)
	b.Until(`document.querySelector('[data-id="4"]').classList.contains("left")`)
	require.Contains(t, b.Read(`[data-id="4"]`), "no longer in this list")
	r.Exec(`UPDATE streams SET state = 'not connected'`)
	b.Until(`document.getElementById("state").innerText.includes("Reconnecting since")`)
	require.Equal(t, before, browsertest.Evaluate[string](b, rect))
	require.Equal(t, under, browsertest.Evaluate[string](b, over))
	require.Equal(t, []string{"1 new link"}, browsertest.Evaluate[[]string](b, "heard"), "new links must be announced at most once a minute")
	require.Equal(t, 1, b.Found("[role=status], [aria-live], [role=alert], [role=log]"))

	b.Press("n")
	b.Until(`document.querySelectorAll(".link").length === 6`)
	require.Equal(t, "5", browsertest.Evaluate[string](b, `document.querySelector(".link").dataset.id`), "the rows must be in the new order")
	require.Equal(t, 0, b.Found("#waiting button"))
	r.Share("https://new.example/3", "did:plc:p1", 0)
	b.Until(`document.querySelector("#waiting button")?.innerText === "1 new link"`)
	b.Do(chromedp.Click(chromedp.CSS("#waiting button")))
	b.Until(`document.querySelectorAll(".link").length === 7`)
}

// TestTimesOfAPage shows that ages are by the server's clock, and that times in the reader's time
// zone are shown with those in UTC.
func TestTimesOfAPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillNews(1)
	b := r.open()
	_, err := chromedp.Call(b.Context, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	require.NoError(t, err)
	b.Show("/links/1")
	require.Equal(t, "1 min ago", b.Read(".thread time"))
	require.Regexp(t, `^4 May 2026, 11:59:00 UTC \(.*05:29.*\)$`,
		browsertest.Evaluate[string](b, `document.querySelector(".thread time").title`))
	require.Equal(t, "2026-05-04T11:59:00Z", browsertest.Evaluate[string](b, `document.querySelector(".thread time").dateTime`))
	require.Contains(t, b.Read(".axis"), "02:32", "the chart begins in the reader's time zone")
}

// TestRowKeepsItsHeight shows that a number that grows by some digits needs no further line.
func TestRowKeepsItsHeight(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := newRig(t)
	r.fillNews(1)
	b := r.open()
	b.Show("/?window=24h")
	b.Until(`document.getElementById("updated").innerText.startsWith("updated")`)
	const slack = `(() => {
  const items = [...document.querySelector(".by").children];
  const top = items[0].getBoundingClientRect().top;
  const last = items.filter((i) => Math.abs(i.getBoundingClientRect().top - top) < 5).at(-1);
  return document.querySelector(".by").getBoundingClientRect().right - last.getBoundingClientRect().right;
})()`
	const height = `document.querySelector(".link").getBoundingClientRect().height`
	width := int64(480)
	for ; browsertest.Evaluate[float64](b, slack) > 6 || browsertest.Evaluate[float64](b, slack) < 1; width -= 2 {
		require.Greater(t, width, int64(200))
		b.Size(width, 800)
	}
	before := browsertest.Evaluate[float64](b, height)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:p' || n, 'c', 'new', 1, 1, 'post', $1 FROM generate_series(100, 337) AS n`, r.Now)
	b.Until(`document.querySelector("[data-count]").innerText === "298"`)
	require.InDelta(t, before, browsertest.Evaluate[float64](b, height), 0.01)
	b.Size(1280, 800)
	b.Until(`document.querySelector(".link").style.height === ""`)
}

// TestPageWithoutScript shows that without a script everything on the page is a link or a form.
func TestPageWithoutScript(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillNews(60)
	b := r.open()
	_, err := chromedp.Call(b.Context, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	b.Show("/?window=24h")
	require.Equal(t, 50, b.Found(".link"))
	require.Contains(t, b.Read("#updated"), "as of 4 May, 12:00 UTC")
	require.False(t, browsertest.Evaluate[bool](b, `document.getElementById("keys-hint").checkVisibility()`))
	r.Share("https://new.example/1", "did:plc:p1", 0)
	b.Click("#reload")
	require.Contains(t, b.Read("main"), "https://new.example/1")
	b.Do(chromedp.SendKeys(chromedp.CSS("#search"), "2026/05"))
	b.Click(".search button")
	require.Equal(t, "/?window=24h&text=2026/05", b.At())
	b.Do(chromedp.Click(chromedp.CSS(".filters summary")))
	b.Do(chromedp.SendKeys(chromedp.CSS("#by"), "alice0.example"))
	b.Click(".filters button")
	require.Equal(t, "/?window=24h&text=2026/05&by=alice0.example", b.At())
	b.Click(".count")
	require.Contains(t, b.At(), "/links/")
	require.Equal(t, 1, b.Found("svg .line"))
}

// TestLostServerIsSaid shows that the page reports a lost server, and continues when it is back.
func TestLostServerIsSaid(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillNews(3)
	var mu sync.Mutex
	gone := false
	whole := r.Handler
	r.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		away := gone
		mu.Unlock()
		if away {
			panic(http.ErrAbortHandler)
		}
		whole.ServeHTTP(w, req)
	})
	b, server := r.openOn()
	b.Show("/?window=24h")
	b.Until(`document.getElementById("updated").innerText.startsWith("updated")`)
	mu.Lock()
	gone = true
	mu.Unlock()
	server.CloseClientConnections()
	b.Until(`document.getElementById("state").innerText.includes("Not connected to Weir since")`)
	mu.Lock()
	gone = false
	mu.Unlock()
	r.Share("https://new.example/1", "did:plc:p1", 0)
	b.Until(`document.querySelector("#waiting button")?.innerText === "1 new link"`)
	b.Until(`document.getElementById("word").innerText === "Live"`)
}

// TestFrontPageIsSmall shows that the front page needs few bytes, and four requests before pictures.
func TestFrontPageIsSmall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillNews(50)
	r.Exec(`UPDATE links
		SET title = md5('a' || id) || md5('b' || id),
			description = md5('c' || id) || md5('d' || id) || md5('e' || id) || md5('f' || id) || md5('g' || id)`) // no words repeat
	rec := r.Do(http.MethodGet, "/?window=24h", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", rec.Header().Get("Content-Encoding"))
	require.Equal(t, 50, strings.Count(r.Get("/?window=24h"), `<li class="link"`))
	t.Logf("%d bytes of compressed HTML", rec.Body.Len())
	require.Less(t, rec.Body.Len(), 25_000)

	var mu sync.Mutex
	var requests []string
	whole := r.Handler
	r.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		requests = append(requests, req.URL.Path)
		mu.Unlock()
		whole.ServeHTTP(w, req)
	})
	b := r.open()
	b.Show("/?window=24h")
	b.Until(`document.getElementById("updated").innerText.startsWith("updated")`)
	mu.Lock()
	defer mu.Unlock()
	asked, err := json.Marshal(requests)
	require.NoError(t, err)
	require.LessOrEqual(t, len(requests), 5, string(asked))
	require.Equal(t, "/api/v1/trending/stream", requests[len(requests)-1], "the stream is opened after the page is shown")
}
