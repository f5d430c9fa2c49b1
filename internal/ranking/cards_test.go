package ranking_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// press is a database with links of papers, posts that share them, and their pages.
type press struct {
	t    *testing.T
	pool *pgxpool.Pool
	now  time.Time
	n    int
}

func newPress(t *testing.T) *press { return &press{t: t, pool: schematest.New(t), now: noon()} }

func shareOf(page string) ranking.Share {
	site, _, _ := strings.Cut(page, "/")
	return ranking.Share{Link: link.Link{Identity: page, URL: "https://" + page, Site: site}, How: "post"}
}

// posts has an account share a page for each title; "" means without one.
func (p *press) posts(page string, titles ...string) {
	p.t.Helper()
	for i, title := range titles {
		p.n++
		s := shareOf(page)
		s.Key = schema.Key{Collection: schema.PostCollection, DID: fmt.Sprintf("did:plc:%d", i), Rkey: fmt.Sprintf("%05d", p.n)}
		s.SharedAt, s.Card = p.now.Add(-time.Hour+time.Duration(p.n)*time.Second), link.Card{Title: title}
		require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
			return ranking.ReplaceShares(p.t.Context(), tx, []schema.Key{s.Key}, []ranking.Share{s}, p.now)
		}))
	}
}

// counts counts pending links, and checks all counts. It returns how many pages are newly due to be
// fetched, or are more urgent than before.
func (p *press) counts() (wanted int) {
	p.t.Helper()
	const requested = `SELECT c.link_id || ' ' || c.sharers FROM cards AS c`
	before := column(p.t, p.pool, requested)
	for {
		done, err := ranking.Count(p.t.Context(), p.pool, p.now)
		require.NoError(p.t, err)
		if !done.More {
			break
		}
	}
	_, err := ranking.Check(p.t.Context(), p.pool, func(d ranking.Difference) { require.Fail(p.t, d.String()) })
	require.NoError(p.t, err)
	for _, page := range column(p.t, p.pool, requested) {
		if !slices.Contains(before, page) {
			wanted++
		}
	}
	return wanted
}

// fetches starts the next fetch and stores the content of the page. It returns the page's link.
func (p *press) fetches(page func(*ranking.PageCard)) string {
	p.t.Helper()
	name := p.fetch(page)
	require.NotEmpty(p.t, name)
	return name
}

// fetch is fetches. It returns "" if no page is due.
func (p *press) fetch(page func(*ranking.PageCard)) string {
	p.t.Helper()
	f, _, err := ranking.StartCardFetch(p.t.Context(), p.pool)
	require.NoError(p.t, err)
	if f == nil {
		return ""
	}
	name := strings.TrimPrefix(f.URL, "https://")
	c := ranking.PageCard{Title: "Page of " + name, Address: f.URL, SameSite: true, To: shareOf(name).Link}
	if page != nil {
		page(&c)
	}
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
		return ranking.StoreCard(p.t.Context(), tx, *f, c, p.now)
	}))
	require.NoError(p.t, ranking.EndCardFetch(p.t.Context(), p.pool, *f))
	return name
}

// leadsTo makes the redirects end at another page.
func leadsTo(page string) func(*ranking.PageCard) {
	return func(c *ranking.PageCard) {
		before, _, _ := strings.Cut(strings.TrimPrefix(c.Address, "https://"), "/")
		c.To = shareOf(page).Link
		c.Address, c.SameSite = c.To.URL, before == c.To.Site
	}
}

// calls makes a page name another one as its own address.
func calls(page string) func(*ranking.PageCard) {
	return func(c *ranking.PageCard) { c.Canonical = shareOf(page).Link }
}

// shown returns each link as a reader sees it: the address, the sharers and the title. It requires
// the same before and after counting, after a recount, and in SQL.
func (p *press) shown() (all []string) {
	p.t.Helper()
	read := func(q ranking.Query) (all []string) {
		q.At, q.Window, q.Limit = p.now, 24*time.Hour, 5000
		page, err := ranking.Trending(p.t.Context(), p.pool, q)
		require.NoError(p.t, err)
		for _, l := range page.Links {
			all = append(all,
				fmt.Sprintf("%s %d %s %s", strings.TrimPrefix(l.URL, "https://"), l.Sharers, l.Title, l.CardFrom[:min(4, len(l.CardFrom))]))
		}
		slices.Sort(all)
		return all
	}
	all = read(ranking.Query{})
	require.Equal(p.t, all, read(ranking.Query{Past: true}), "recounted")
	for _, ask := range []func() error{func() error { return nil }, func() error { return ranking.CountEverything(p.t.Context(), p.pool) }} {
		require.NoError(p.t, ask())
		p.counts()
		require.Equal(p.t, all, read(ranking.Query{}), "counted")
	}
	listed := column(p.t, p.pool, `SELECT replace(l.url, 'https://', '') || ' ' || l.title FROM links AS l
		WHERE EXISTS (SELECT FROM shares AS s WHERE s.link_id = l.id) ORDER BY l.url COLLATE "C"`)
	require.Len(p.t, listed, len(all))
	for i, one := range all {
		parts := strings.SplitN(one, " ", 3)
		require.Equal(p.t, listed[i], strings.TrimSuffix(parts[0]+" "+parts[2][:strings.LastIndexByte(parts[2], ' ')], ""), "in SQL")
	}
	return all
}

func (p *press) id(page string) (id int64) {
	p.t.Helper()
	require.NoError(p.t, p.pool.QueryRow(p.t.Context(), `SELECT id FROM links WHERE identity = $1`, page).Scan(&id))
	return id
}

func (p *press) merge(page, into string) {
	p.t.Helper()
	m := ranking.Merge{Link: p.id(page), Into: p.id(into), Why: ranking.ByHand, Now: p.now}
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error { return ranking.MergeLinks(p.t.Context(), tx, m) }))
}

func (p *press) split(page string) {
	p.t.Helper()
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
		return ranking.SplitLink(p.t.Context(), tx, p.id(page), p.now)
	}))
}

func TestTitleOfThePageBeatsTheVotes(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("a.example/1", "Vote", "Vote", "Vote", "Vote", "Vote")
	p.counts()
	require.Equal(t, []string{"a.example/1 5 Vote at:/"}, p.shown())
	p.fetches(nil)
	require.Equal(t, []string{"a.example/1 5 Page of a.example/1 http"}, p.shown())
	p.posts("a.example/1", "Other", "Other", "Other", "Other", "Other")
	require.Equal(t, []string{"a.example/1 5 Page of a.example/1 http"}, p.shown())
	execute(t, p.pool, `DELETE FROM shares WHERE did <> 'did:plc:0'`)
	execute(t, p.pool, `UPDATE shares SET claim_id = NULL`)
	require.Equal(t, []string{"a.example/1 1 Page of a.example/1 http"}, p.shown(), "no sharer votes any more")

	l, err := ranking.ReadLink(t.Context(), p.pool, ranking.LinkQuery{ID: p.id("a.example/1"), At: p.now, Window: 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, "Page of a.example/1", l.Title)
	require.Equal(t, "https://a.example/1", l.CardFrom)
	require.Equal(t, &ranking.FetchedPage{
		Title: "Page of a.example/1", Address: "https://a.example/1", FetchedAt: l.Page.FetchedAt, Counts: true,
	}, l.Page)
	found, err := ranking.Trending(t.Context(), p.pool, ranking.Query{At: p.now, Window: 24 * time.Hour, Limit: 9, Text: "page of"})
	require.NoError(t, err)
	require.Len(t, found.Links, 1, "the title that is shown is found")
	require.Equal(t, []string{"Page of a.example/1"}, column(t, p.pool, `SELECT title FROM trending(now() - '2000-01-01')`))
}

// TestTitleOfAnotherPageDoesNotCount covers a wall, a page of another site, and no page.
func TestTitleOfAnotherPageDoesNotCount(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for why, page := range map[string]func(*ranking.PageCard){
		"a wall":              func(c *ranking.PageCard) { c.Why = "a wall" },
		"without a title":     func(c *ranking.PageCard) { c.Title, c.Why = "", "it has no title" },
		"of a site's root":    leadsTo("b.example/"),
		"a wall of a site":    func(c *ranking.PageCard) { leadsTo("b.example/login")(c); c.Why = "a wall" },
		"of no link":          func(c *ranking.PageCard) { c.To, c.SameSite = link.Link{}, false },
		"of the root's query": leadsTo("b.example/?lang=en"),
	} {
		p := newPress(t)
		p.posts("a.example/1", "Vote", "Vote", "Vote", "Vote", "Vote")
		p.counts()
		p.fetches(page)
		require.Equal(t, []string{"a.example/1 5 Vote at:/"}, p.shown(), why)
		require.Empty(t, column(t, p.pool, `SELECT why FROM link_merges`), why)
	}
}

// TestPageMergesItsLink merges it with the page where its redirects end, or with the address that
// the page names as its own.
func TestPageMergesItsLink(t *testing.T) {
	t.Parallel()
	for why, lead := range map[string]func(string) func(*ranking.PageCard){ranking.Redirected: leadsTo, ranking.Canonical: calls} {
		p := newPress(t)
		p.posts("a.example/1", "Vote", "Vote", "Vote", "Vote", "Vote")
		p.counts()
		p.fetches(lead("b.example/2"))
		require.Equal(t, []string{"b.example/2 5 Page of a.example/1 http"}, p.shown()[:1], "nobody else shares it: "+why)
		require.Equal(t, []string{why}, column(t, p.pool, `SELECT why FROM link_merges`))

		p.posts("b.example/2", "B", "B", "B", "B", "B", "B")
		require.Equal(t, []string{"b.example/2 6 Page of a.example/1 http"}, p.shown())
		require.Equal(t, "b.example/2", p.fetches(nil))
		require.Equal(t, []string{"b.example/2 6 Page of b.example/2 http"}, p.shown(), "the link's own page must be preferred")

		p.split("a.example/1")
		want := []string{"a.example/1 5 Vote at:/", "b.example/2 6 Page of b.example/2 http"}
		if why == ranking.Canonical {
			want[0] = "a.example/1 5 Page of a.example/1 http"
		}
		require.Equal(t, want, p.shown(), "a page of another site must not count")
		p.merge("a.example/1", "b.example/2")
		execute(t, p.pool, `UPDATE cards SET status = 'no' WHERE host = 'b.example'`)
		p.split("a.example/1")
		p.merge("a.example/1", "b.example/2")
		if why == ranking.Canonical {
			require.Equal(t, []string{"b.example/2 6 Page of a.example/1 http"}, p.shown(), "the links were merged by hand")
		} else {
			require.Equal(t, []string{"b.example/2 6 B at:/"}, p.shown(), "the links were merged by hand, not by a redirect")
		}
	}
}

// TestSplitLinkIsNotMergedByItsPage shows that a split link is not merged again, however often the
// page names the other address.
func TestSplitLinkIsNotMergedByItsPage(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("a.example/1", "A", "A", "A", "A", "A")
	p.posts("b.example/2", "B")
	p.counts()
	p.merge("a.example/1", "b.example/2")
	p.split("a.example/1")
	p.counts()
	p.fetches(leadsTo("b.example/2"))
	require.Equal(t, []string{"a.example/1 5 A at:/", "b.example/2 1 B at:/"}, p.shown())
}

// TestPageAtWhichManyLinksEndIsNoTarget shows that the fourth link of a host that ends at the same
// page splits the others.
func TestPageAtWhichManyLinksEndIsNoTarget(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for _, lead := range []func(string) func(*ranking.PageCard){leadsTo, calls} {
		p := newPress(t)
		end := func(n int) []string {
			page := fmt.Sprintf("a.example/%d", n)
			p.posts(page, page, page, page, page, page)
			p.counts()
			p.fetches(func(c *ranking.PageCard) { lead("b.example/welcome")(c); c.Title = fmt.Sprint("Title ", n) })
			return p.shown()
		}
		end(1)
		end(2)
		shown := end(3)
		require.Len(t, shown, 1)
		require.Contains(t, shown[0], "b.example/welcome 5 ")
		p.posts("other.example/1", "O", "O", "O", "O", "O")
		p.counts()
		p.fetches(lead("b.example/welcome"))
		require.Len(t, p.shown(), 1, "another host must have its own count")

		shown = end(4)
		require.Len(t, shown, 5, "%v", shown)
		require.Equal(t, []string{
			"a.example/1 5 a.example/1 at:/", "a.example/2 5 a.example/2 at:/", "a.example/3 5 a.example/3 at:/",
			"a.example/4 5 a.example/4 at:/",
		}[:4], votesOnly(lead, shown[:4]))
		require.True(t, strings.HasPrefix(shown[4], "b.example/welcome 5 "))
		require.Len(t, end(5), 6)
		require.Equal(t, []string{"1"}, column(t, p.pool, `SELECT count(*)::text FROM link_merges WHERE split_at IS NULL`))
	}
}

// votesOnly replaces the titles of the links' own pages by those that the votes give. The titles of
// the pages count if only the canonical address of a page leads elsewhere.
func votesOnly(lead func(string) func(*ranking.PageCard), shown []string) (all []string) {
	var c ranking.PageCard
	lead("x.example/")(&c)
	for i, one := range shown {
		if c.Canonical != (link.Link{}) {
			one = strings.Replace(one, fmt.Sprintf("Title %d http", i+1), fmt.Sprintf("a.example/%d at:/", i+1), 1)
		}
		all = append(all, one)
	}
	return all
}

// TestLoginPageWithManyAddressesIsNoTarget covers articles that each redirect to a different
// address of it.
func TestLoginPageWithManyAddressesIsNoTarget(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 6 {
		page := fmt.Sprintf("a.example/%d", n)
		p.posts(page, page, page, page, page, page)
		p.counts()
		p.fetches(func(c *ranking.PageCard) {
			leadsTo(fmt.Sprintf("a.example/welcome?ticket=%d", n))(c)
			c.Title = "For members"
		})
		for _, shown := range p.shown() {
			require.Equal(t, n < 2, strings.Contains(shown, "welcome"), shown)
		}
	}
	require.Len(t, p.shown(), 6)
}

// TestTitleOfManyPagesDoesNotCount covers a wall in an unlisted language.
func TestTitleOfManyPagesDoesNotCount(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 4 {
		page := fmt.Sprintf("a.example/%d", n)
		vote := fmt.Sprintf("Vote %d", n)
		p.posts(page, vote, vote, vote, vote, vote)
		p.counts()
		p.fetches(func(c *ranking.PageCard) { c.Title = []string{"Palun oodake", "PALUN OODAKE…"}[n%2] })
		for _, one := range p.shown() {
			require.Equal(t, n < 2, strings.Contains(strings.ToLower(one), "palun oodake"), one)
			require.Equal(t, n >= 2, strings.Contains(one, " at:/"), one)
		}
	}
	p.posts("b.example/1", "Vote", "Vote", "Vote", "Vote", "Vote")
	p.counts()
	p.fetches(func(c *ranking.PageCard) { c.Title = "Palun oodake" })
	require.Contains(t, p.shown(), "b.example/1 5 Palun oodake http", "another site must have its own count")
}
