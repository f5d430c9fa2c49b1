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

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// press is links of papers, their posts and their pages.
type press struct {
	t    *testing.T
	pool *pgxpool.Pool
	now  time.Time
	n    int
}

func newPress(t *testing.T) *press { return &press{t: t, pool: schematest.New(t), now: noon()} }

func shareOf(page string) ranking.Share {
	site, _, _ := strings.Cut(page, "/")
	return ranking.Share{Identity: page, URL: "https://" + page, Site: site, How: "post"}
}

// posts has accounts share a page, with a title each; "": none.
func (p *press) posts(page string, titles ...string) {
	p.t.Helper()
	for i, title := range titles {
		p.n++
		s := shareOf(page)
		s.Key = schema.Key{Collection: schema.PostCollection, DID: fmt.Sprintf("did:plc:%d", i), Rkey: fmt.Sprintf("%05d", p.n)}
		s.SharedAt, s.Card = p.now.Add(-time.Hour+time.Duration(p.n)*time.Second), ranking.Card{Title: title}
		require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
			return ranking.ReplaceShares(p.t.Context(), tx, []schema.Key{s.Key}, []ranking.Share{s}, p.now)
		}))
	}
}

// counts counts what is pending, and checks all counts. It returns how many pages are to be
// fetched from now on.
func (p *press) counts() (wanted int) {
	p.t.Helper()
	for {
		done, err := ranking.Count(p.t.Context(), p.pool, p.now)
		require.NoError(p.t, err)
		wanted += done.Cards
		if !done.More {
			break
		}
	}
	_, err := ranking.Check(p.t.Context(), p.pool, func(d ranking.Difference) { require.Fail(p.t, d.String()) })
	require.NoError(p.t, err)
	return wanted
}

// fetches starts the next fetch and stores what the page says. It returns the page's link.
func (p *press) fetches(page func(*ranking.PageCard)) string {
	p.t.Helper()
	f, _, err := ranking.StartCardFetch(p.t.Context(), p.pool)
	require.NoError(p.t, err)
	require.NotNil(p.t, f)
	name := strings.TrimPrefix(f.URL, "https://")
	ends := shareOf(name)
	c := ranking.PageCard{Title: "Page of " + name, Address: f.URL, SameSite: true, Ends: &ends}
	if page != nil {
		page(&c)
	}
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error { return ranking.StoreCard(p.t.Context(), tx, *f, c, p.now) }))
	require.NoError(p.t, ranking.EndCardFetch(p.t.Context(), p.pool, *f))
	return name
}

// leadsTo has redirects end at another page.
func leadsTo(page string) func(*ranking.PageCard) {
	return func(c *ranking.PageCard) {
		before, _, _ := strings.Cut(strings.TrimPrefix(c.Address, "https://"), "/")
		to := shareOf(page)
		c.Ends, c.Address, c.SameSite = &to, to.URL, before == to.Site
	}
}

// calls has a page call another its own address.
func calls(page string) func(*ranking.PageCard) {
	return func(c *ranking.PageCard) { to := shareOf(page); c.Canonical = &to }
}

// shown returns what a reader sees of each link: the address, the sharers and the title. It
// is the same before it is counted, afterwards, and recounted, and in SQL.
func (p *press) shown() (all []string) {
	p.t.Helper()
	read := func(q ranking.Query) (all []string) {
		q.At, q.Window, q.Limit = p.now, 24*time.Hour, 5000
		page, err := ranking.Trending(p.t.Context(), p.pool, q)
		require.NoError(p.t, err)
		for _, l := range page.Links {
			all = append(all, fmt.Sprintf("%s %d %s %s", strings.TrimPrefix(l.URL, "https://"), l.Sharers, l.Title, l.CardFrom[:min(4, len(l.CardFrom))]))
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
	listed := column(p.t, p.pool, `SELECT replace(l.url, 'https://', '') || ' ' || l.title FROM links AS l WHERE EXISTS (SELECT FROM shares AS s WHERE s.link_id = l.id) ORDER BY l.url COLLATE "C"`)
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
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error { return ranking.SplitLink(p.t.Context(), tx, p.id(page), p.now) }))
}

// TestPageIsWantedOnce: of two sharers none gives a title, or there are five.
func TestPageIsWantedOnce(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("one.example/a", "")
	p.posts("untitled.example/a", "", "")
	p.posts("titled.example/a", "", "T", "", "")
	p.posts("many.example/a", "T", "T", "T", "T", "T", "")
	require.Equal(t, 2, p.counts())
	wanted := `SELECT l.site || ' ' || c.sharers FROM cards AS c JOIN links AS l ON l.id = c.link_id WHERE c.fetch_at IS NOT NULL ORDER BY 1`
	require.Equal(t, []string{"many.example 5", "untitled.example 2"}, column(t, p.pool, wanted))

	require.Equal(t, "many.example/a", p.fetches(nil), "the one that most accounts share")
	p.posts("untitled.example/a", "T") // of the first account, and not too late
	require.Zero(t, p.counts())
	f, wait, err := ranking.StartCardFetch(t.Context(), p.pool)
	require.NoError(t, err)
	require.Zero(t, wait)
	require.Nil(t, f, "somebody gave it a title")
	require.Empty(t, column(t, p.pool, wanted))

	execute(t, p.pool, `DELETE FROM shares WHERE claim_id IN (SELECT id FROM claims WHERE title = 'T') AND link_id IN (SELECT id FROM links WHERE site = 'titled.example')`)
	require.Equal(t, 1, p.counts(), "nobody gives it a title any more")
	require.Equal(t, []string{"titled.example 2"}, column(t, p.pool, wanted))
	require.Equal(t, "titled.example/a", p.fetches(func(c *ranking.PageCard) { c.Title, c.Why = "", "it has no title" }))
	p.posts("titled.example/a", "", "", "", "", "", "")
	p.posts("many.example/a", "", "", "", "", "", "", "")
	require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
	require.Zero(t, p.counts(), "each page is fetched once")
	require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
	p.posts("late.example/a", "", "")
	require.Equal(t, 1, p.counts(), "also if everything is counted")
	p.posts("late.example/a", "", "", "", "", "")
	require.Equal(t, 1, p.counts(), "it is more urgent now")
	require.Equal(t, []string{"late.example 5"}, column(t, p.pool, wanted))
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
	require.Equal(t, []string{"a.example/1 1 Page of a.example/1 http"}, p.shown(), "nobody votes any more")

	l, err := ranking.ReadLink(t.Context(), p.pool, ranking.LinkQuery{ID: p.id("a.example/1"), At: p.now, Window: 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, "Page of a.example/1", l.Title)
	require.Equal(t, "https://a.example/1", l.CardFrom)
	require.Equal(t, &ranking.FetchedPage{Title: "Page of a.example/1", Address: "https://a.example/1", FetchedAt: l.Page.FetchedAt, Counts: true}, l.Page)
	found, err := ranking.Trending(t.Context(), p.pool, ranking.Query{At: p.now, Window: 24 * time.Hour, Limit: 9, Text: "page of"})
	require.NoError(t, err)
	require.Len(t, found.Links, 1, "the title that is shown is found")
	require.Equal(t, []string{"Page of a.example/1"}, column(t, p.pool, `SELECT title FROM trending(now() - '2000-01-01')`))
}

// TestTitleOfAnotherPageDoesNotCount: of a wall, of another site, or of none.
func TestTitleOfAnotherPageDoesNotCount(t *testing.T) {
	t.Parallel()
	for why, page := range map[string]func(*ranking.PageCard){
		"a wall":              func(c *ranking.PageCard) { c.Why = "a wall" },
		"without a title":     func(c *ranking.PageCard) { c.Title, c.Why = "", "it has no title" },
		"of a site's root":    leadsTo("b.example/"),
		"a wall of a site":    func(c *ranking.PageCard) { leadsTo("b.example/login")(c); c.Why = "a wall" },
		"of no link":          func(c *ranking.PageCard) { c.Ends, c.SameSite = nil, false },
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

// TestPageMergesItsLink with where its redirects end, or what the page calls its address.
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
		require.Equal(t, []string{"b.example/2 6 Page of b.example/2 http"}, p.shown(), "its own page comes first")

		p.split("a.example/1")
		want := []string{"a.example/1 5 Vote at:/", "b.example/2 6 Page of b.example/2 http"}
		if why == ranking.Canonical {
			want[0] = "a.example/1 5 Page of a.example/1 http"
		}
		require.Equal(t, want, p.shown(), "the page of another site is not that of the link")
		p.merge("a.example/1", "b.example/2")
		execute(t, p.pool, `UPDATE cards SET status = 'no' WHERE host = 'b.example'`)
		p.split("a.example/1")
		p.merge("a.example/1", "b.example/2")
		if why == ranking.Canonical {
			require.Equal(t, []string{"b.example/2 6 Page of a.example/1 http"}, p.shown(), "a person says that they are one")
		} else {
			require.Equal(t, []string{"b.example/2 6 B at:/"}, p.shown(), "a person merged them, and no redirect")
		}
	}
}

// TestSplitLinkIsNotMergedByItsPage, however often that says so.
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

// TestPageAtWhichManyLinksEndIsNoTarget: the fourth link of a host that ends there splits
// the others.
func TestPageAtWhichManyLinksEndIsNoTarget(t *testing.T) {
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
		require.Len(t, p.shown(), 1, "another host has its own count")

		shown = end(4)
		require.Len(t, shown, 5, "%v", shown)
		require.Equal(t, []string{"a.example/1 5 a.example/1 at:/", "a.example/2 5 a.example/2 at:/", "a.example/3 5 a.example/3 at:/", "a.example/4 5 a.example/4 at:/"}[:4], votesOnly(lead, shown[:4]))
		require.True(t, strings.HasPrefix(shown[4], "b.example/welcome 5 "))
		require.Len(t, end(5), 6)
		require.Equal(t, []string{"1"}, column(t, p.pool, `SELECT count(*)::text FROM link_merges WHERE split_at IS NULL`))
	}
}

// votesOnly leaves the titles of pages out that are those of the links, because only their
// canonical address leads elsewhere.
func votesOnly(lead func(string) func(*ranking.PageCard), shown []string) (all []string) {
	var c ranking.PageCard
	lead("x.example/")(&c)
	for i, one := range shown {
		if c.Canonical != nil {
			one = strings.Replace(one, fmt.Sprintf("Title %d http", i+1), fmt.Sprintf("a.example/%d at:/", i+1), 1)
		}
		all = append(all, one)
	}
	return all
}

// TestTitleOfManyPagesDoesNotCount: a wall in a language that nobody listed.
func TestTitleOfManyPagesDoesNotCount(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 4 {
		page := fmt.Sprintf("a.example/%d", n)
		p.posts(page, "Vote", "Vote", "Vote", "Vote", "Vote")
		p.counts()
		p.fetches(func(c *ranking.PageCard) { c.Title = "Palun oodake" })
		for _, one := range p.shown() {
			require.Equal(t, n < 3, strings.Contains(one, "Palun oodake http"), one)
			require.Equal(t, n == 3, strings.Contains(one, "Vote at:/"), one)
		}
	}
	p.posts("b.example/1", "Vote", "Vote", "Vote", "Vote", "Vote")
	p.counts()
	p.fetches(func(c *ranking.PageCard) { c.Title = "Palun oodake" })
	require.Contains(t, p.shown(), "b.example/1 5 Palun oodake http", "another host has its own count")
}

// TestCardLeavesWithItsLink, also while it is fetched; a fetch that was overtaken stores
// nothing.
func TestCardLeavesWithItsLink(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("a.example/1", "", "")
	p.posts("b.example/1", "", "")
	p.counts()
	var fetches []ranking.CardFetch
	for range 2 {
		f, _, err := ranking.StartCardFetch(t.Context(), p.pool)
		require.NoError(t, err)
		fetches = append(fetches, *f)
	}
	store := func(f ranking.CardFetch) {
		require.NoError(t, pgx.BeginFunc(t.Context(), p.pool, func(tx pgx.Tx) error {
			return ranking.StoreCard(t.Context(), tx, f, ranking.PageCard{Title: "T", Address: f.URL, SameSite: true}, p.now)
		}))
	}
	execute(t, p.pool, `DELETE FROM shares WHERE link_id = $1`, fetches[0].Link)
	execute(t, p.pool, `DELETE FROM links WHERE id = $1`, fetches[0].Link)
	store(fetches[0])
	execute(t, p.pool, `UPDATE cards SET tries = 2`)
	store(fetches[1])
	require.Equal(t, []string{"0 "}, column(t, p.pool, `SELECT count(fetched_at) || ' ' || string_agg(title, '') FROM cards`))
	fetches[1].Try = 2
	store(fetches[1])
	require.Equal(t, []string{"1 T"}, column(t, p.pool, `SELECT count(fetched_at) || ' ' || string_agg(title, '') FROM cards`))
}

// TestStrangeTextsAreStored: NUL, invalid UTF-8, and much.
func TestStrangeTextsAreStored(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n, text := range []string{"a\x00b", "\xff\xfe", strings.Repeat("x ", 5<<20)} {
		p.posts(fmt.Sprintf("a.example/%d", n), "", "")
		p.counts()
		p.fetches(func(c *ranking.PageCard) {
			c.Title, c.Description, c.SiteName, c.Why = text[:min(len(text), 1200)], text, text, text[:n]
			c.Address += text[:2]
		})
	}
	require.Equal(t, []string{"3"}, column(t, p.pool, `SELECT count(fetched_at)::text FROM cards`))
}

func TestFetchesAreLimited(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 6 {
		p.posts(fmt.Sprintf("%d.example/a", n), "", "")
	}
	require.Equal(t, 6, p.counts())
	start := func() (*ranking.CardFetch, time.Duration) {
		f, wait, err := ranking.StartCardFetch(t.Context(), p.pool)
		require.NoError(t, err)
		return f, wait
	}
	first, _ := start()
	second, _ := start()
	require.NotNil(t, second)
	third, wait := start()
	require.Nil(t, third)
	require.Positive(t, wait, "two run")
	require.NoError(t, ranking.EndCardFetch(t.Context(), p.pool, *first))
	third, _ = start()
	require.NotNil(t, third)
	execute(t, p.pool, `UPDATE card_fetches SET started_at = started_at - interval '61 seconds'`)
	fourth, _ := start()
	require.NotNil(t, fourth, "the processes of the others died")
	require.NoError(t, ranking.EndCardFetch(t.Context(), p.pool, *fourth))

	execute(t, p.pool, `INSERT INTO card_fetches (link_id, started_at, ended_at) SELECT 1, now() - interval '59 minutes', now() FROM generate_series(1, $1)`, ranking.CardsPerHour-5)
	fifth, _ := start()
	require.NotNil(t, fifth)
	require.NoError(t, ranking.EndCardFetch(t.Context(), p.pool, *fifth))
	none, wait := start()
	require.Nil(t, none)
	require.Zero(t, wait, "that was the hour's last one")
	execute(t, p.pool, `UPDATE card_fetches SET started_at = started_at - interval '1 minute' WHERE ended_at > started_at + interval '50 minutes'`)
	sixth, _ := start()
	require.NotNil(t, sixth)
	require.Equal(t, []string{"6"}, column(t, p.pool, `SELECT count(*)::text FROM card_fetches`), "older ones are forgotten")

	// The clock is set back: neither the hour nor the two wait for the future.
	execute(t, p.pool, `UPDATE card_fetches SET started_at = now() + interval '1 day'`)
	execute(t, p.pool, `UPDATE cards SET fetch_at = now() + interval '2 days', tries = 0`)
	again, _ := start()
	require.NotNil(t, again)
}

// TestLinkOfABusyHostWaits, and others go first.
func TestLinkOfABusyHostWaits(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("quiet.example/a", "", "")
	p.posts("busy.example/a", "", "", "", "", "")
	p.counts()
	const spacing = 10 * time.Second
	var waits []time.Duration
	for range 3 {
		wait, err := ranking.TakeHostTurn(t.Context(), p.pool, "busy.example", spacing)
		require.NoError(t, err)
		waits = append(waits, wait)
	}
	require.LessOrEqual(t, waits[0], time.Duration(0))
	require.Greater(t, waits[2], waits[1]+spacing/2)
	require.Equal(t, "quiet.example/a", p.fetches(nil))
	f, wait, err := ranking.StartCardFetch(t.Context(), p.pool)
	require.NoError(t, err)
	require.Nil(t, f)
	require.Positive(t, wait)
	execute(t, p.pool, `UPDATE card_hosts SET next_at = now() + interval '1 day'`) // the clock is set back
	first, err := ranking.TakeHostTurn(t.Context(), p.pool, "busy.example", 0)
	require.NoError(t, err)
	require.LessOrEqual(t, first, time.Duration(0))
	require.Equal(t, "busy.example/a", p.fetches(nil))
}
