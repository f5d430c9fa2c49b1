package ranking_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// gives has an account share a page with a title, dated by its number.
func (p *press) gives(n int, page, title string) {
	p.t.Helper()
	s := shareOf(page)
	rkey := strings.NewReplacer("/", "-", "?", "-", "=", "-").Replace(page)
	s.Key = schema.Key{Collection: schema.PostCollection, DID: fmt.Sprintf("did:plc:%d", n), Rkey: rkey}
	s.SharedAt, s.Card = p.now.Add(-time.Hour+time.Duration(n)*time.Second), link.Card{Title: title}
	require.NoError(p.t, pgx.BeginFunc(p.t.Context(), p.pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(p.t.Context(), tx, []schema.Key{s.Key}, []ranking.Share{s}, p.now)
	}))
}

// headlines returns the titles by page, as counted, and requires the same after a recount.
func (p *press) headlines() (all []string) {
	p.t.Helper()
	p.counts()
	all = column(p.t, p.pool, `SELECT identity || ' ' || title FROM links ORDER BY identity`)
	for _, one := range p.shown() {
		require.Contains(p.t, strings.Join(all, "\n"), strings.Fields(one)[0])
	}
	require.Equal(p.t, all, column(p.t, p.pool, `SELECT identity || ' ' || title FROM links ORDER BY identity`), "recounted")
	return all
}

// TestTitleOfThreePagesIsAWall has two accounts give three pages one title, and a third account
// another one of each page.
func TestTitleOfThreePagesIsAWall(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 2 {
		page := fmt.Sprintf("a.example/%d", n)
		p.gives(0, page, "Palun oodake...")
		p.gives(1, page, "PALUN OODAKE…")
		p.gives(2, page, fmt.Sprint("True ", n))
	}
	require.Equal(t, []string{"a.example/0 Palun oodake...", "a.example/1 Palun oodake..."}, p.headlines(), "two pages")
	p.gives(0, "b.example/1", "Palun oodake...")
	p.gives(1, "b.example/1", "Palun oodake...")
	p.gives(0, "a.example/1?page=2", "Palun oodake...")
	p.gives(1, "a.example/1?page=2", "Palun oodake...")
	require.Contains(t, p.headlines(), "a.example/0 Palun oodake...", "another site, and no other path")
	p.gives(0, "a.example/2", "Palun oodake...")
	p.gives(1, "a.example/2", "Palun oodake...")
	want := []string{"a.example/0 True 0", "a.example/1 True 1", "a.example/1?page=2 ", "a.example/2 ", "b.example/1 Palun oodake..."}
	require.Equal(t, want, p.headlines())
	fetched := column(t, p.pool, `SELECT l.identity FROM cards AS c JOIN links AS l ON l.id = c.link_id ORDER BY 1`)
	require.Equal(t, []string{
		"a.example/0", "a.example/1", "a.example/1?page=2", "a.example/2",
	}, fetched, "no post gives them a title, or they might have been one article")
	execute(t, p.pool, `DELETE FROM shares WHERE rkey = 'a.example-2'`)
	require.Contains(t, p.headlines(), "a.example/0 Palun oodake...", "two pages are left")
}

// TestWallsAreKnownBeforeAnythingIsCounted compares what readers see with what is counted afterwards.
func TestWallsAreKnownBeforeAnythingIsCounted(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 6 {
		p.gives(n, fmt.Sprint("a.example/", n/2), "Palun oodake")
	}
	p.gives(9, "a.example/0", "Heron returns")
	require.Equal(t, []string{"a.example/0 3 Heron returns at:/", "a.example/1 2  ", "a.example/2 2  "}, p.shown())
}

// TestOneAccountMakesNoWall has an account give pages that nobody else shares the title of an article.
func TestOneAccountMakesNoWall(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n := range 5 {
		p.gives(n, "a.example/heron", "Heron returns")
		p.gives(9, fmt.Sprint("a.example/", n), "Heron returns")
	}
	require.Contains(t, p.headlines(), "a.example/heron Heron returns")
	p.gives(8, "a.example/0", "Heron returns")
	require.Contains(t, p.headlines(), "a.example/heron ", "a second account gives one of them the title too")
	p.gives(8, "a.example/0", "Owl")
	require.Contains(t, p.headlines(), "a.example/heron Heron returns")
}

// TestEditionsOfOneArticleAreNoWall has one article below several sections, and merged links.
func TestEditionsOfOneArticleAreNoWall(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	for n, page := range []string{
		"a.example/news/heron-returns-to-harbour", "a.example/uk/heron-returns-to-harbour", "a.example/us/heron-returns-to-harbour",
		"a.example/amp/heron-returns-to-harbour",
		"b.example/x", "b.example/y", "b.example/z",
	} {
		p.gives(2*n, page, "Heron returns")
		p.gives(2*n+1, page, "Heron returns")
	}
	require.Contains(t, p.headlines(), "a.example/uk/heron-returns-to-harbour Heron returns")
	require.Contains(t, p.headlines(), "b.example/x ")
	p.merge("b.example/z", "b.example/y")
	p.counts()
	require.Contains(t, p.headlines(), "b.example/x Heron returns")
	p.split("b.example/z")
	require.Contains(t, p.headlines(), "b.example/x ")
}

// TestTitleOfThreePagesIsNoTitleOfAPage has the title fetched, before and after it is that of a wall.
func TestTitleOfThreePagesIsNoTitleOfAPage(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("a.example/0", "Vote", "Vote", "Vote", "Vote", "Vote")
	p.counts()
	p.fetches(func(c *ranking.PageCard) { c.Title = "Palun oodake" })
	require.Equal(t, []string{"a.example/0 5 Palun oodake http"}, p.shown())
	for n := 1; n < 4; n++ {
		p.gives(1, fmt.Sprint("a.example/", n), "Palun oodake")
		p.gives(2, fmt.Sprint("a.example/", n), "Palun oodake")
	}
	require.Contains(t, p.headlines(), "a.example/0 Vote")
	l, err := ranking.ReadLink(t.Context(), p.pool, ranking.LinkQuery{ID: p.id("a.example/0"), At: p.now, Window: 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, "other pages of the site have this title", l.Page.Why)
	p.posts("a.example/9", "Vote 9", "Vote 9", "Vote 9", "Vote 9", "Vote 9")
	p.counts()
	p.fetches(func(c *ranking.PageCard) { leadsTo("a.example/welcome")(c); c.Title = "Palun oodake" })
	require.Contains(t, p.headlines(), "a.example/9 Vote 9")
	require.Empty(t, column(t, p.pool, `SELECT why FROM link_merges`), "a wall leads to no merge")
}

// TestOldTitleOfAWallKeepsNoCard has the only post that keeps a card, which is too old to vote, give a title that
// becomes that of a wall.
func TestOldTitleOfAWallKeepsNoCard(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.gives(-9*24*3600, "a.example/0", "Palun oodake")
	p.gives(1, "a.example/0", "Heron returns")
	p.gives(2, "a.example/0", "")
	require.Equal(t, []string{"a.example/0 Heron returns"}, p.headlines())
	execute(t, p.pool, `DELETE FROM shares WHERE did = 'did:plc:1'`)
	require.Equal(t, []string{"a.example/0 Heron returns"}, p.headlines(), "there is a post with a title")
	for n := 1; n < 4; n++ {
		p.gives(1, fmt.Sprint("a.example/", n), "Palun oodake")
		p.gives(2, fmt.Sprint("a.example/", n), "Palun oodake")
	}
	require.Contains(t, p.headlines(), "a.example/0 ")
}

// TestWallsDoNotDependOnTheOrder has the same claims arrive in random orders, some of them deleted
// again, with steps of the counter between them.
func TestWallsDoNotDependOnTheOrder(t *testing.T) {
	t.Parallel()
	type given struct {
		account int
		page    string
		title   string
	}
	var all []given
	for page := range 5 {
		for account := range 4 {
			title := []string{"Wall", "Wall", fmt.Sprint("True ", page), "Briefing"}[(page/2+account)%4]
			all = append(all, given{account, fmt.Sprint("a.example/", page), title})
		}
	}
	var want []string
	for seed := range uint64(4) {
		p := newPress(t)
		r := rand.New(rand.NewPCG(seed, 0)) // a test
		for _, i := range append(r.Perm(len(all)), r.Perm(len(all))...) {
			p.gives(all[i].account, all[i].page, all[i].title)
			if r.IntN(3) == 0 {
				_, err := p.pool.Exec(context.Background(), `DELETE FROM shares WHERE did = $1`, fmt.Sprintf("did:plc:%d", r.IntN(4)))
				require.NoError(t, err)
			}
			if r.IntN(3) == 0 {
				p.counts()
			}
		}
		for _, i := range r.Perm(len(all)) {
			p.gives(all[i].account, all[i].page, all[i].title)
		}
		got := p.headlines()
		if want == nil {
			want = got
			require.Contains(t, want, "a.example/0 True 0")
		}
		require.Equal(t, want, got, "seed %d", seed)
	}
}
