package links

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/redirect"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

// shortener is the server of all hosts.
type shortener struct {
	mu   sync.Mutex
	to   map[string]string // targets by host and path; "503": it fails; "429": it is busy; "hangs": it never responds
	seen map[string]int
}

func (s *shortener) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := r.Host + r.URL.Path
	s.seen[name]++
	switch to := s.to[name]; to {
	case "":
		http.NotFound(w, r)
	case "503":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "429":
		w.Header().Set("Retry-After", "900")
		w.WriteHeader(http.StatusTooManyRequests)
	case "hangs":
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
	default:
		http.Redirect(w, r, to, http.StatusFound)
	}
}

func (s *shortener) leads(name, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.to[name] = to
}

func (s *shortener) asked(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[name]
}

// newResolving starts workers that resolve the links of a shortener.
func newResolving(t *testing.T) (*rig, author, *shortener) {
	t.Helper()
	return newResolvingWithin(t, 0)
}

// newResolvingWithin is newResolving with a timeout for all jobs.
func newResolvingWithin(t *testing.T, timeout time.Duration) (*rig, author, *shortener) {
	t.Helper()
	s := &shortener{to: map[string]string{}, seen: map[string]int{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	asks := redirect.New(redirect.Config{Transport: &http.Transport{DialContext: func(ctx context.Context, network,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}}})
	r := &rig{t: t, pool: schematest.New(t)}
	projections := registered(t, r.pool)
	a := newAuthor(t, r.pool)
	r.client = client(t, workers.Config{
		Shared: workers.Shared{Pool: r.pool, Projections: projections, JobTimeout: timeout, Registerer: prometheus.NewRegistry()}, ID: "w",
	}, Config{Redirects: asks})
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); <-r.client.Stopped() })
	require.NoError(t, r.client.Start(ctx))
	schedules(t, r.pool)
	return r, a, s
}

// shares stores a post with links and has it processed.
func (r *rig) shares(a author, rkey string, urls ...string) {
	r.t.Helper()
	a.post(rkey, "1", urls...)
	_, err := r.client.Insert(r.t.Context(), ProcessPostsArgs{Posts: []string{"did:plc:a/" + rkey}}, nil)
	require.NoError(r.t, err)
}

// resolvesAgain makes postponed links due and resolves them.
func (r *rig) resolvesAgain() {
	r.t.Helper()
	r.execute(`UPDATE short_links SET resolve_at = now() - interval '1 second' WHERE resolve_at IS NOT NULL`)
	r.resolves()
}

// resolves resolves the links that are due.
func (r *rig) resolves() {
	r.t.Helper()
	eventually.True(r.t, func() bool { // once the previous job has ended
		done, err := r.client.Insert(r.t.Context(), ResolveLinksArgs{}, nil)
		return err == nil && !done.UniqueSkippedAsDuplicate
	}, 20*time.Millisecond)
}

// TestShortLinksCountAsTheirTargets shows that three spellings, two of them short, are one link,
// whichever is shared first. The target need not be shared itself.
func TestShortLinksCountAsTheirTargets(t *testing.T) {
	t.Parallel()
	r, a, s := newResolving(t)
	s.leads("bit.ly/a", "https://paper.example/article?utm_source=bitly")
	s.leads("t.co/b", "http://bit.ly/a")
	s.leads("bit.ly/alone", "https://paper.example/alone")
	r.shares(a, "1", "http://bit.ly/a")
	r.shares(a, "2", "https://www.paper.example/article")
	r.shares(a, "3", "http://t.co/b", "http://bit.ly/alone")
	const counted = `SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = $1`
	r.becomes(3, counted, "paper.example/article")
	r.becomes(1, counted, "paper.example/alone")
	require.Equal(t, 2, r.count(`SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.named_id
		WHERE l.identity LIKE 'bit.ly/%'`), "the shares must keep the links that the records named")
	r.execute(`UPDATE shares SET shared_at = now()`)
	r.becomes(1, `SELECT count(*) FROM sharers AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = 'paper.example/article'`)
	r.becomes(0, `SELECT count(*) FROM pending_counts`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM links
		WHERE url = 'https://www.paper.example/article'`), "the target's spelling must be shown")
	require.Equal(t, []int{1, 2, 1}, []int{s.asked("t.co/b"), s.asked("bit.ly/a"), s.asked("bit.ly/alone")})

	r.shares(a, "4", "http://bit.ly/a")
	r.becomes(4, counted, "paper.example/article")
	require.Equal(t, 2, s.asked("bit.ly/a"), "a known short link must not be requested again")
}

// TestShortenerThatFailsIsAskedLater shows that a failing shortener is asked again, and that one
// that does not know the link is not.
func TestShortenerThatFailsIsAskedLater(t *testing.T) {
	t.Parallel()
	r, a, s := newResolving(t)
	s.leads("bit.ly/a", "503")
	r.shares(a, "1", "http://bit.ly/a", "http://bit.ly/unknown")
	const tried = `SELECT coalesce(max(tries), 0) FROM short_links WHERE resolve_at IS NOT NULL AND outcome LIKE '%503%'`
	r.becomes(1, tried)
	r.becomes(1, `SELECT count(*) FROM short_links WHERE resolve_at IS NULL AND outcome LIKE '%404%'`)
	r.resolvesAgain()
	r.becomes(2, tried)
	s.leads("bit.ly/a", "https://paper.example/article")
	r.resolvesAgain()
	r.becomes(1, `SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = 'paper.example/article'`)
	require.Equal(t, 1, s.asked("bit.ly/unknown"))

	s.leads("bit.ly/down", "503")
	r.shares(a, "2", "http://bit.ly/down")
	for n := range 4 {
		r.becomes(n+1, tried)
		r.resolvesAgain()
	}
	r.becomes(0, `SELECT count(*) FROM short_links WHERE resolve_at IS NOT NULL`)
	require.Equal(t, 5, s.asked("bit.ly/down"))
}

// TestBusyShortenerIsLeftAlone shows that a busy shortener gets no requests for as long as it asks,
// neither for due links nor for new ones. Others are asked meanwhile.
func TestBusyShortenerIsLeftAlone(t *testing.T) {
	t.Parallel()
	r, a, s := newResolving(t)
	s.leads("bit.ly/busy", "429")
	s.leads("bit.ly/new", "https://paper.example/new")
	s.leads("t.co/other", "https://paper.example/other")
	const left = `SELECT count(*) FROM short_links
		WHERE resolve_at > now() + interval '10 minutes' AND resolve_at <= now() + interval '15 minutes'`
	r.shares(a, "0", "http://bit.ly/later")
	r.becomes(1, `SELECT count(*) FROM short_links WHERE resolve_at IS NULL`)
	r.execute(`UPDATE short_links SET resolve_at = now() + interval '9 minutes'`)
	r.shares(a, "1", "http://bit.ly/busy")
	r.becomes(2, `SELECT count(*) FROM short_links`)
	r.resolves()
	r.becomes(2, left)
	r.becomes(1, `SELECT count(*) FROM short_links WHERE tries = 1`)
	r.shares(a, "2", "http://bit.ly/new", "http://t.co/other")
	r.becomes(4, `SELECT count(*) FROM short_links`)
	r.resolves()
	r.becomes(1, `SELECT count(*) FROM short_links WHERE outcome = 'https://paper.example/other'`)
	r.becomes(3, left)
	require.Equal(t, []int{1, 0, 1}, []int{s.asked("bit.ly/busy"), s.asked("bit.ly/new"), s.asked("bit.ly/later")})
	r.resolvesAgain()
	r.becomes(1, `SELECT count(*) FROM short_links WHERE outcome = 'https://paper.example/new'`)
}

// TestShortenerThatHangsDelaysNoOther shows that its links are resolved later, like those of a
// failing one, even if a request may take longer than a job.
func TestShortenerThatHangsDelaysNoOther(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r, a, s := newResolvingWithin(t, 3*time.Second)
	for n := range 9 {
		s.leads(fmt.Sprint("bit.ly/", n), "hangs")
		r.shares(a, fmt.Sprint("slow", n), fmt.Sprint("http://bit.ly/", n))
	}
	s.leads("t.co/a", "https://paper.example/article")
	r.shares(a, "1", "http://t.co/a")
	r.becomes(1, `SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = 'paper.example/article'`)
	r.becomes(9, `SELECT count(*) FROM short_links WHERE tries = 1 AND resolve_at > now()`)
}

// TestSplitLinkStaysSplit shows that a split link stays split, wherever the shortener redirects.
func TestSplitLinkStaysSplit(t *testing.T) {
	t.Parallel()
	r, a, s := newResolving(t)
	s.leads("bit.ly/a", "https://paper.example/article")
	r.shares(a, "1", "http://bit.ly/a")
	r.shares(a, "2", "https://paper.example/article")
	const counted = `SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = 'paper.example/article'`
	r.becomes(2, counted)
	short := int64(r.count(`SELECT id FROM links WHERE identity = 'bit.ly/a'`))
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		return ranking.SplitLink(t.Context(), tx, short, time.Now())
	}))
	require.Equal(t, 1, r.count(counted))
	r.execute(`UPDATE shares SET shared_at = now()`)
	r.execute(`UPDATE short_links SET resolve_at = now()`)
	r.resolvesAgain()
	r.becomes(0, `SELECT count(*) FROM short_links WHERE resolve_at IS NOT NULL`)
	require.Equal(t, 2, s.asked("bit.ly/a"))
	require.Equal(t, 1, r.count(counted))
	r.becomes(2, `SELECT count(*) FROM sharers`)
}

// TestShortenerIsLearned shows that a site of which three links lead to three links of other sites is a
// shortener from then on, and that others are asked a few times.
func TestShortenerIsLearned(t *testing.T) {
	t.Parallel()
	r, a, s := newResolving(t)
	const counted = `SELECT count(*) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE l.site = 'paper.example'`
	const waiting = `SELECT count(*) FROM short_links WHERE resolve_at IS NOT NULL`
	for n := range 5 {
		s.leads(fmt.Sprintf("sho.example/Ab%d", n), fmt.Sprintf("https://paper.example/%d", n))
	}
	for n := range 9 {
		s.leads(fmt.Sprintf("prk.example/Ab%d", n), "https://parked.example/buy")
		s.leads(fmt.Sprintf("own.example/Ab%d", n), fmt.Sprintf("https://www.own.example/article/%d", n))
		r.shares(a, fmt.Sprint("other", n), fmt.Sprintf("http://prk.example/Ab%d", n), fmt.Sprintf("http://own.example/Ab%d", n),
			fmt.Sprintf("http://new.example/Ab%d", n), "http://sho.example/about")
	}
	r.shares(a, "1", "http://sho.example/Ab0", "http://sho.example/Ab1")
	r.becomes(2, `SELECT count(*) FROM short_links AS s JOIN links AS l ON l.id = s.link_id WHERE l.site = 'sho.example' AND s.outcome <> ''`)
	require.Zero(t, r.count(counted), "two targets may be chance")
	r.shares(a, "2", "http://sho.example/Ab2")
	r.becomes(3, counted)
	r.shares(a, "3", "http://sho.example/Ab3")
	r.becomes(4, counted)
	r.becomes(0, waiting)
	require.Equal(t, []string{"sho.example"}, strs(t, r.pool, `SELECT site FROM shorteners WHERE shortener_since IS NOT NULL`))
	for _, site := range []string{"prk", "own", "new"} {
		asked := 0
		for n := range 9 {
			asked += s.asked(fmt.Sprintf("%s.example/Ab%d", site, n))
		}
		require.LessOrEqual(t, asked, 6+3, site) // four are asked at the same time
	}
	require.Zero(t, s.asked("sho.example/about"), "a word is no short name")

	r.execute(`UPDATE shorteners SET asked_at = now() - interval '31 days' WHERE site = 'prk.example'`)
	s.leads("prk.example/Zz1", "https://paper.example/parked")
	r.shares(a, "4", "http://prk.example/Zz1")
	r.becomes(1, `SELECT count(*) FROM short_links WHERE outcome = 'https://paper.example/parked'`)
}
