package cards

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/guard/guardtest"
	"github.com/weir-social/weir/internal/links/card"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
	"github.com/weir-social/weir/workers/links"
)

// fetching is workers that fetch pages from a web on loopback.
type fetching struct {
	t      *testing.T
	pool   *pgxpool.Pool
	client *workers.Client
	web    *guardtest.Web
	turns  func(context.Context, string) error
	n      int
}

func TestMain(m *testing.M) { schematest.Main(m) }

func (r *fetching) count(sql string, args ...any) int {
	r.t.Helper()
	return workertest.Count(r.t, r.pool, sql, args...)
}

func (r *fetching) execute(sql string, args ...any) {
	r.t.Helper()
	workertest.Execute(r.t, r.pool, sql, args...)
}

// becomes waits until a query returns the expected count.
func (r *fetching) becomes(want int, sql string, args ...any) {
	r.t.Helper()
	eventually.True(r.t, func() bool { return r.count(sql, args...) == want }, 20*time.Millisecond, "%s", sql)
}

func newFetching(t *testing.T, serve http.HandlerFunc) *fetching {
	t.Helper()
	r := &fetching{t: t, pool: schematest.New(t), web: guardtest.New(t, false, serve)}
	r.turns = func(context.Context, string) error { return nil }
	return r
}

// works starts a process, and returns a function that stops it.
func (r *fetching) works(id string) (stop func()) {
	r.t.Helper()
	pages := card.New(card.Config{Guard: r.web.Guard, Ports: []string{r.web.Port}, Turn: r.turns, UserAgent: "weir"})
	stopping := make(chan struct{})
	projections := schema.NewProjections(links.Projection())
	_, err := projections.Register(r.t.Context(), r.pool)
	require.NoError(r.t, err)
	client, err := workers.New(workers.Config{Shared: workers.Shared{Pool: r.pool, Projections: projections,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()},
		ID:         id,
		Processing: workers.Processing{Stopping: stopping},
		Features: []func(workers.Bundle) error{func(b workers.Bundle) error {
			links.Add(b, links.Config{})
			add(b, pages)
			return nil
		}}})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := false
	stop = func() {
		if !ended {
			ended = true
			close(stopping)
			cancel()
			<-client.Stopped()
		}
	}
	r.t.Cleanup(stop)
	require.NoError(r.t, client.Start(ctx))
	r.client = client
	workertest.Schedules(r.t, r.pool)
	return stop
}

// posted has accounts share pages of the web, all with the same title.
func (r *fetching) posted(accounts int, title string, pages ...string) {
	r.t.Helper()
	var keys []schema.Key
	var shares []ranking.Share
	for _, name := range pages {
		host, path, _ := strings.Cut(name, "/")
		l, err := link.Parse(r.web.Address(host, "/"+path))
		require.NoError(r.t, err)
		for a := range accounts {
			r.n++
			k := schema.Key{Collection: schema.PostCollection, DID: fmt.Sprint("did:plc:", a), Rkey: fmt.Sprintf("%06d", r.n)}
			keys = append(keys, k)
			shares = append(shares, ranking.Share{
				Key: k, Link: link.Link{Identity: l.Identity, URL: l.URL, Site: l.Site, Card: link.Card{Title: title}}, How: "post",
				SharedAt: time.Now().Add(-time.Minute),
			})
		}
	}
	require.NoError(r.t, pgx.BeginFunc(r.t.Context(), r.pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(r.t.Context(), tx, keys, shares, time.Now())
	}))
}

// titled counts the links whose title has a prefix and comes from a page or from a post.
const titled = `SELECT count(*) FROM links WHERE title LIKE $1 AND card_from LIKE $2`

// TestPagesOfSharedLinksAreFetched shows that pages are fetched once, for their titles, as soon as
// their links are counted.
func TestPagesOfSharedLinksAreFetched(t *testing.T) {
	t.Parallel()
	r := newFetching(t, guardtest.Site(func(name string) (string, bool) {
		return `<title>Page of ` + name + `</title><meta name=description content="D">`, !strings.HasSuffix(name, "/robots.txt")
	}))
	r.works("a")
	r.works("b")
	r.posted(1, "", "one.example/a")
	r.posted(2, "", "two.example/a")
	r.posted(4, "Post", "four.example/a")
	r.posted(5, "Post", "five.example/a")
	r.becomes(2, titled, "Page of %", "http%")
	require.ElementsMatch(t, []string{"two.example/a", "five.example/a"}, r.web.Pages())
	require.Equal(t, 1, r.count(titled, "Post", "at:%"))
	r.posted(7, "Post", "four.example/a", "five.example/a")
	r.becomes(3, titled, "Page of %", "http%")
	r.becomes(0, `SELECT count(*) FROM pending_counts`)
	require.ElementsMatch(t, []string{"two.example/a", "five.example/a", "four.example/a"}, r.web.Pages(), "once each")
	_, err := ranking.Check(t.Context(), r.pool, func(d ranking.Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
}

// TestPageThatFailsIsTriedFourTimes shows that a page that does not exist is requested only once.
func TestPageThatFailsIsTriedFourTimes(t *testing.T) {
	t.Parallel()
	r := newFetching(t, guardtest.Site(func(name string) (string, bool) { return "503", name == "busy.example/a" }))
	r.works("a")
	r.posted(2, "", "busy.example/a", "gone.example/a")
	r.becomes(1, `SELECT count(*) FROM cards WHERE fetch_at IS NULL AND status = 'gone.example answers 404'`)
	for n := 1; n < ranking.CardTries; n++ {
		r.becomes(1, `SELECT count(*) FROM cards
			WHERE fetch_at > now() AND status = 'busy.example answers 503' AND tries = $1
				AND NOT EXISTS (SELECT FROM card_fetches WHERE ended_at IS NULL)`, n)
		r.execute(`UPDATE cards SET fetch_at = now() WHERE fetch_at IS NOT NULL`)
		r.fetchesAgain()
	}
	r.becomes(1, `SELECT count(*) FROM cards
		WHERE fetch_at IS NULL AND tries = $1 AND NOT EXISTS (SELECT FROM card_fetches WHERE ended_at IS NULL)`, ranking.CardTries)
	require.Len(t, r.web.Pages(), 1+ranking.CardTries)
}

// fetchesAgain adds a job once the previous one has ended.
func (r *fetching) fetchesAgain() {
	r.t.Helper()
	eventually.True(r.t, func() bool {
		done, err := r.client.Insert(r.t.Context(), FetchCardArgs{}, nil)
		return err == nil && !done.UniqueSkippedAsDuplicate
	}, 20*time.Millisecond)
}

// TestManyArticlesLeadToOneLoginPage has articles redirect to a login page that does not
// identify itself as one. No link stays merged, and none gets its title.
func TestManyArticlesLeadToOneLoginPage(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	const articles, before = 150, ranking.CardsPerHour - 150 // of the fetches that an hour allows
	var running, most atomic.Int64
	web := guardtest.Site(func(name string) (string, bool) {
		switch {
		case strings.HasSuffix(name, "/robots.txt"):
			return "", false
		case name == "paper.example/welcome":
			return "<title>The Paper, for members</title>", true
		}
		return "> http://paper.example/welcome", true
	})
	r := newFetching(t, func(w http.ResponseWriter, req *http.Request) {
		now := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		web(w, req)
	})
	var pages []string
	for n := range articles {
		pages = append(pages, fmt.Sprint("paper.example/", n))
	}
	r.execute(`INSERT INTO card_fetches (link_id, started_at, ended_at) SELECT 0, now() - interval '20 minutes', now()
		FROM generate_series(1, $1)`, before)
	for _, page := range pages {
		r.posted(5, "Vote for "+page, page)
	}
	r.works("a")
	r.works("b")
	eventually.True(t, func() bool {
		return r.count(`SELECT count(*) FROM cards WHERE fetched_at IS NOT NULL`) == articles
	}, 100*time.Millisecond)
	r.becomes(0, `SELECT count(*) FROM pending_counts`)
	require.Zero(t, r.count(`SELECT count(*) FROM links WHERE merged_into IS NOT NULL`), "no link may stay merged")
	require.LessOrEqual(t, r.count(`SELECT count(*) FROM link_merges`), 3)
	r.becomes(articles, titled, "Vote for %", "at:%")
	require.LessOrEqual(t, most.Load(), int64(ranking.CardsAtOnce), "over both processes")
	require.Equal(t, before+articles, r.count(`SELECT count(*) FROM card_fetches`))
	_, err := ranking.Check(t.Context(), r.pool, func(d ranking.Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)

	r.posted(5, "Vote", "other.example/a")
	r.fetchesAgain()
	r.becomes(1, `SELECT count(*) FROM cards AS c JOIN links AS l ON l.id = c.link_id WHERE c.tries = 0 AND l.site = 'other.example'`)
	// If two articles were counted while they were merged, the login page was fetched in place of
	// one of them.
	require.InDelta(t, 2*articles, len(r.web.Pages()), 1, "these are all the fetches that an hour allows")
}

// TestFetchThatIsInterruptedIsNoTry shows that another process continues an interrupted fetch.
func TestFetchThatIsInterruptedIsNoTry(t *testing.T) {
	t.Parallel()
	hangs, asked := new(atomic.Bool), make(chan struct{}, 9)
	hangs.Store(true)
	r := newFetching(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/robots.txt" && hangs.Load() {
			asked <- struct{}{}
			<-req.Context().Done()
		}
		guardtest.HTML("<title>Page</title>")(w, req)
	})
	stop := r.works("a")
	r.posted(2, "", "slow.example/a")
	<-asked
	require.Equal(t, 1, r.count(`SELECT count(*) FROM cards
		WHERE tries = 1 AND fetch_at > now()`), "a page must be fetched again if the process dies")
	stop()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM cards WHERE tries = 0 AND fetch_at <= now()`))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM card_fetches WHERE ended_at IS NOT NULL`))
	hangs.Store(false)
	r.works("b")
	r.becomes(1, titled, "Page", "http%")
}

// TestLinkMayExpireWhileItIsFetched shows that the other links are fetched.
func TestLinkMayExpireWhileItIsFetched(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 9), make(chan struct{})
	r := newFetching(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.Host, "slow.") && req.URL.Path != "/robots.txt" {
			asked <- struct{}{}
			<-release
		}
		guardtest.HTML("<title>Page</title>")(w, req)
	})
	r.works("a")
	r.posted(2, "", "slow.example/a")
	<-asked
	r.execute(`DELETE FROM shares`)
	r.execute(`DELETE FROM links`)
	close(release)
	r.posted(2, "", "other.example/a")
	r.becomes(1, titled, "Page", "http%")
	r.becomes(0, `SELECT count(*) FROM card_fetches WHERE ended_at IS NULL`)
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'fetch_card' AND errors IS NOT NULL`))
}

// TestHostIsAskedOnceASecond shows that the requests to a host are a second apart, over all
// processes.
func TestHostIsAskedOnceASecond(t *testing.T) {
	t.Parallel()
	r := newFetching(t, guardtest.HTML("<title>Page</title>"))
	r.turns = hostTurns(r.pool)
	turn := func() (next time.Time) {
		t.Helper()
		require.NoError(t, r.turns(t.Context(), "paper.example"))
		require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT next_at FROM card_hosts`).Scan(&next))
		return next
	}
	first := turn()
	require.GreaterOrEqual(t, turn().Sub(first), time.Second)
	r.execute(`UPDATE card_hosts SET next_at = now() + interval '50 seconds'`)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, r.turns(ctx, "paper.example"), context.DeadlineExceeded, "a turn must not begin early")
}
