package feeds

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
)

// feedDays is a small network over two days, and a feed reader that polls.
type feedDays struct {
	t      *testing.T
	r      *rand.Rand
	pool   *pgxpool.Pool
	now    atomic.Int64 // seconds
	server *httptest.Server
	url    string

	etags     map[string]string    // by format
	published map[string]time.Time // by id
	first     map[string]string    // the address of an entry when its id was first seen
	ids       map[string]string    // ids by address
	unchanged int                  // number of responses with status 304
	left      int                  // entries that left and came back
	in        map[string]bool      // the entries of the last poll
}

const dayLinks = 150

func (d *feedDays) time() time.Time { return time.Unix(d.now.Load(), 0).UTC() }

// start starts a server with a public address and an empty memory.
func (d *feedDays) start(public string) {
	d.t.Helper()
	if d.server != nil {
		d.server.Close()
	}
	handler, err := web.Handler(web.Config{
		Parts: []web.Part{links.Part(""), Part()}, DB: d.pool, Now: d.time, URL: public, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(d.t, err)
	d.server, d.url, d.etags = httptest.NewServer(handler), public, map[string]string{}
	d.t.Cleanup(d.server.Close)
}

func (d *feedDays) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.pool.Exec(d.t.Context(), sql, args...)
	require.NoError(d.t, err)
}

// live makes random changes in the network.
func (d *feedDays) live() {
	d.t.Helper()
	// Links of the current hour are shared, and sometimes an old one.
	newest := 1 + int64(dayLinks*float64(d.now.Load()-dayStart().Unix())/(48*3600))
	link := func() int64 {
		if d.r.IntN(6) == 0 {
			return 1 + d.r.Int64N(newest)
		}
		return max(1, newest-d.r.Int64N(6))
	}
	did := func() string { return fmt.Sprintf("did:plc:%d", d.r.IntN(50)) }
	merge := func(f func(pgx.Tx) error) {
		if err := pgx.BeginFunc(d.t.Context(), d.pool, f); err != nil {
			require.Regexp(d.t, "is merged into|is not merged|split from another", err.Error())
		}
	}
	switch k := d.r.IntN(40); {
	case k < 24:
		at := d.time().Add(-time.Duration(d.r.IntN(300)) * time.Second)
		if d.r.IntN(10) == 0 { // the share arrives late, or its author dated it so
			at = at.Add(-time.Duration(d.r.IntN(180)) * time.Minute)
		}
		d.exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			SELECT $1, 'app.bsky.feed.post', gen_random_uuid()::text, counts_as, id, 'post', $3 FROM links WHERE id = $2`, did(), link(), at)
	case k < 30: // deletes one of the latest shares
		d.exec(`DELETE FROM shares WHERE (did, rkey) IN (SELECT did, rkey FROM shares ORDER BY shared_at DESC OFFSET $1 LIMIT 1)`, d.r.IntN(30))
	case k < 33: // an edit
		d.exec(`UPDATE shares AS s SET named_id = l.id, link_id = l.counts_as FROM links AS l
			WHERE l.id = $1 AND (s.did, s.rkey) IN (SELECT did, rkey FROM shares ORDER BY shared_at DESC OFFSET $2 LIMIT 1)`,
			link(), d.r.IntN(30))
	case k < 35:
		d.exec(`INSERT INTO accounts (did, status) VALUES ($1, $2)
			ON CONFLICT (did) DO UPDATE SET status = excluded.status`, did(), []string{"active", "active", "takendown"}[d.r.IntN(3)])
	case k < 37:
		m := ranking.Merge{Link: link(), Into: link(), Why: ranking.ByHand, Now: d.time()}
		merge(func(tx pgx.Tx) error { return ranking.MergeLinks(d.t.Context(), tx, m) })
	case k < 38:
		id := link()
		merge(func(tx pgx.Tx) error { return ranking.SplitLink(d.t.Context(), tx, id, d.time()) })
	case k < 39:
		_, err := ranking.Count(d.t.Context(), d.pool, d.time())
		require.NoError(d.t, err)
	}
}

// poll reads a feed as a feed reader does.
func (d *feedDays) poll(format string) {
	d.t.Helper()
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.server.URL+format+"?limit=200", nil)
	require.NoError(d.t, err)
	if etag := d.etags[format]; etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response, err := d.server.Client().Do(request)
	require.NoError(d.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(d.t, err)
	require.NoError(d.t, response.Body.Close())
	if response.StatusCode == http.StatusNotModified {
		d.unchanged++
		d.complete()
		return
	}
	require.Equal(d.t, http.StatusOK, response.StatusCode, string(body))
	d.etags[format] = response.Header.Get("ETag")
	if format == "/feed.atom" {
		require.NoError(d.t, checkAtom(string(body)))
		feed, err := parseXML(string(body))
		require.NoError(d.t, err)
		for _, e := range feed.all("entry") {
			d.see(e.all("id")[0].text, e.all("link")[0].attrs["href"], e.all("published")[0].text)
		}
	} else {
		d.readJSON(string(body))
	}
	d.complete()
}

func (d *feedDays) readJSON(body string) {
	d.t.Helper()
	require.NoError(d.t, checkJSONFeed(body))
	var feed jsonFeed
	require.NoError(d.t, json.Unmarshal([]byte(body), &feed))
	require.True(d.t, strings.HasPrefix(feed.Self, d.url+"/feed.json"))
	in, last := map[string]bool{}, ""
	for _, item := range feed.Items {
		d.see(item.ID, item.URL, item.Published)
		require.True(d.t, last == "" || item.Published <= last, "the entries are not in the order of their dates")
		last, in[item.ID] = item.Published, true
	}
	for id := range in {
		if d.in != nil && !d.in[id] && d.published[id].Before(d.time().Add(-time.Hour)) {
			d.left++
		}
	}
	d.in = in
}

// see does what a feed reader does with an entry: it shows entries whose ids it has not seen. It
// requires that no new entry has an address that was shown before, and that no entry gets another
// date.
func (d *feedDays) see(id, href, date string) {
	d.t.Helper()
	at, err := time.Parse(time.RFC3339, date)
	require.NoError(d.t, err)
	if seen, ok := d.published[id]; ok {
		require.Equal(d.t, seen, at, "the date of %s has changed", id)
		return
	}
	require.NotContains(d.t, d.ids, href, "%s is published again as %s", href, id)
	require.Regexp(d.t, urnUUID, id)
	d.published[id], d.first[id], d.ids[href] = at, href, id
}

// complete requires that the reader has seen every link with three sharers.
func (d *feedDays) complete() {
	d.t.Helper()
	rows, err := d.pool.Query(d.t.Context(), `
SELECT ARRAY(SELECT m.url FROM links AS m WHERE m.counts_as = k.link_id)
FROM (
    SELECT s.link_id FROM shares AS s
    WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
    GROUP BY s.link_id HAVING count(DISTINCT s.did) >= 3
) AS k`)
	require.NoError(d.t, err)
	groups, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	require.NoError(d.t, err)
	for _, urls := range groups {
		seen := false
		for _, url := range urls {
			seen = seen || d.ids[url] != ""
		}
		require.True(d.t, seen, "the reader has seen none of %v", urls)
	}
}

func dayStart() time.Time { return time.Date(2026, 5, 4, 0, 0, 0, 0, time.UTC) }

// TestFeedReaderSeesEachLinkOnce has a feed reader poll for two days. Meanwhile shares arrive, some
// of them late, and are deleted and edited; accounts are hidden and shown; links are merged and
// split; and the server restarts under another name. The reader sees each link once.
func TestFeedReaderSeesEachLinkOnce(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	d := &feedDays{
		t: t, r: rand.New(rand.NewPCG(seed, 0)), pool: schematest.New(t), published: map[string]time.Time{},
		first: map[string]string{}, ids: map[string]string{},
	}
	d.now.Store(dayStart().Unix())
	d.exec(`INSERT INTO links (identity, url, site, title, first_seen)
		SELECT 'news.example/' || n, 'https://news.example/' || n, 'news.example', 'Story ' || n, $1
		FROM generate_series(1, $2::int) AS n`, dayStart(), dayLinks)
	d.start("https://old.example")
	for end := dayStart().Add(48 * time.Hour); d.time().Before(end); {
		for range 12 {
			d.live()
		}
		d.now.Add(int64(300 + d.r.IntN(1500)))
		d.poll([]string{"/feed.atom", "/feed.json"}[d.r.IntN(2)])
		if d.url == "https://old.example" && d.time().After(dayStart().Add(24*time.Hour)) {
			d.start("https://new.example")
		}
	}
	var merged, split int
	require.NoError(t, d.pool.QueryRow(t.Context(),
		`SELECT count(*) FILTER (WHERE split_at IS NULL), count(split_at) FROM link_merges`).Scan(&merged, &split))
	t.Logf("%d entries; %d of %d links merged, %d split; %d entries came back; %d responses without change", len(d.published),
		merged, dayLinks, split, d.left, d.unchanged)
	require.Greater(t, len(d.published), 50)
	require.Greater(t, merged, 10)
	require.Positive(t, split)
	require.Positive(t, d.left)
}
