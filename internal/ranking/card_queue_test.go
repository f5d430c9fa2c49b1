package ranking_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

// TestPageIsWantedOnce covers links with two sharers and no title, and links with five sharers.
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

	require.Equal(t, "many.example/a", p.fetches(nil), "the link that most accounts share must come first")
	p.posts("untitled.example/a", "T") // by the first account, and early enough
	require.Zero(t, p.counts())
	f, wait, err := ranking.StartCardFetch(t.Context(), p.pool)
	require.NoError(t, err)
	require.Zero(t, wait)
	require.Nil(t, f, "a link with a title from a sharer must not be fetched")
	require.Empty(t, column(t, p.pool, wanted))

	execute(t, p.pool, `DELETE FROM shares
		WHERE claim_id IN (SELECT id FROM claims WHERE title = 'T') AND link_id IN (SELECT id FROM links WHERE site = 'titled.example')`)
	require.Equal(t, 1, p.counts(), "no sharer gives it a title any more")
	require.Equal(t, []string{"titled.example 2"}, column(t, p.pool, wanted))
	require.Equal(t, "titled.example/a", p.fetches(func(c *ranking.PageCard) { c.Title, c.Why = "", "it has no title" }))
	p.posts("titled.example/a", "", "", "", "", "", "")
	p.posts("many.example/a", "", "", "", "", "", "", "")
	require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
	require.Zero(t, p.counts(), "each page is fetched once")
	require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
	p.posts("late.example/a", "", "")
	require.Equal(t, 1, p.counts(), "the same if everything is counted again")
	p.posts("late.example/a", "", "", "", "", "")
	require.Equal(t, 1, p.counts(), "the link is more urgent now")
	require.Equal(t, []string{"late.example 5"}, column(t, p.pool, wanted))
}

// TestVariantsAreWanted covers links of a site that may be one article, which their pages say: sharers
// give them one title, or their paths end with one name. Those with a title and a name of their own, and
// of another site, are not asked.
func TestVariantsAreWanted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second   string
		firsts, seconds []string // titles
		wanted          []string
	}{
		"one title": {
			"a-long-title-1", "edited-2", []string{"A", "A"}, []string{"A"}, []string{"a-long-title-1 2", "edited-2 1"},
		},
		"one title, a sharer each": {"a-long-title-1", "edited-2", []string{"A"}, []string{"A"}, []string{"a-long-title-1 1", "edited-2 1"}},
		"one name, and two titles": {
			"city/the-heron-is-back", "news/the-heron-is-back?x=1", []string{"A", "A"}, []string{"B"},
			[]string{"city/the-heron-is-back 2", "news/the-heron-is-back?x=1 1"},
		},
		"one number": {"city/heron-12345", "news/12345-heron", []string{"A", "A"}, []string{"B"}, nil},
		"one number, a sharer each": {
			"city/heron-12345", "news/heron-12345", []string{"A"}, []string{"B"},
			[]string{"city/heron-12345 1", "news/heron-12345 1"},
		},
		"one word":             {"city/heron", "news/heron", []string{"A", "A"}, []string{"B", "B"}, nil},
		"two titles and names": {"a-long-title-1", "edited-2", []string{"A", "A"}, []string{"B", "B"}, nil},
	} {
		p := newPress(t)
		p.posts("paper.example/other", "Another title", "Another title")
		p.posts("herald.example/"+c.first, c.firsts...)
		p.posts("paper.example/"+c.first, c.firsts...)
		require.Zero(t, p.counts(), name)
		p.posts("paper.example/"+c.second, c.seconds...)
		require.Equal(t, len(c.wanted), p.counts(), name)
		const wanted = `SELECT substring(l.identity FROM 15) || ' ' || c.sharers FROM cards AS c JOIN links AS l ON l.id = c.link_id
			WHERE c.fetch_at IS NOT NULL ORDER BY 1`
		require.ElementsMatch(t, c.wanted, column(t, p.pool, wanted), name)
		require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
		require.Zero(t, p.counts(), name)
		own := shareOf("paper.example/" + c.first).Link
		for due := true; due; {
			due = p.fetch(func(c *ranking.PageCard) { c.Title, c.Canonical = "A long title", own }) != ""
		}
		p.counts()
		const shared = `SELECT count(*)::text FROM sharers AS s JOIN links AS l ON l.id = s.link_id WHERE l.identity = 'paper.example/' || `
		sum := max(len(c.firsts), len(c.seconds)) // the same accounts
		require.Equal(t, []string{fmt.Sprint(sum)}, column(t, p.pool, shared+`'`+c.first+`'`), name)
		require.Equal(t, len(c.wanted) == 0, column(t, p.pool, shared+`'`+c.second+`'`)[0] != "0", name)
	}
}

// TestTitleOfThePageFindsVariants covers links for which sharers give the title of the page of another
// one, before and after that page was fetched, and one whose page is a wall.
func TestTitleOfThePageFindsVariants(t *testing.T) {
	t.Parallel()
	p := newPress(t)
	p.posts("paper.example/a", "Old", "Old", "Old", "Old", "Old")
	p.posts("paper.example/b", "", "", "", "", "", "New", "New")
	p.posts("herald.example/b", "New", "New")
	require.Equal(t, 1+1, p.counts())
	execute(t, p.pool, `DELETE FROM cards WHERE link_id = $1`, p.id("paper.example/b"))
	own := shareOf("paper.example/a").Link
	page := func(c *ranking.PageCard) { c.Title, c.Canonical = "New", own }
	require.Equal(t, "paper.example/a", p.fetches(page))
	require.Equal(t, "paper.example/b", p.fetches(page))
	p.counts()
	p.posts("paper.example/c", "", "", "", "", "", "", "", "New")
	require.Equal(t, 1, p.counts())
	require.Equal(t, "paper.example/c", p.fetches(page))
	p.counts()
	p.posts("paper.example/d", "New", "New", "New")
	require.Equal(t, 1, p.counts())
	require.Equal(t, "paper.example/d", p.fetches(func(c *ranking.PageCard) { page(c); c.Title, c.Why = "Are you a robot?", "it is a wall" }))
	p.counts()
	const counted = `SELECT l.identity || ' ' || n.sharers FROM link_counts AS n JOIN links AS l ON l.id = n.link_id
		WHERE l.site = 'paper.example' ORDER BY 1`
	require.Equal(t, []string{"paper.example/a 8", "paper.example/d 3"}, column(t, p.pool, counted))
}

// TestCardLeavesWithItsLink shows that a card is deleted with its link, also during a fetch. An
// outdated fetch stores nothing.
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

// TestStrangeTextsAreStored covers NUL, invalid UTF-8, and long texts.
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

	execute(t, p.pool, `INSERT INTO card_fetches (link_id, started_at, ended_at) SELECT 1, now() - interval '59 minutes', now()
		FROM generate_series(1, $1)`, ranking.CardsPerHour-5)
	fifth, _ := start()
	require.NotNil(t, fifth)
	require.NoError(t, ranking.EndCardFetch(t.Context(), p.pool, *fifth))
	none, wait := start()
	require.Nil(t, none)
	require.Zero(t, wait, "the limit of the hour is reached")
	execute(t, p.pool, `UPDATE card_fetches SET started_at = started_at - interval '1 minute'
		WHERE ended_at > started_at + interval '50 minutes'`)
	sixth, _ := start()
	require.NotNil(t, sixth)
	require.Equal(t, []string{"6"}, column(t, p.pool, `SELECT count(*)::text FROM card_fetches`), "older fetches must be deleted")

	// The clock is set back. Neither the limit per hour nor the two running fetches wait for the
	// future.
	execute(t, p.pool, `UPDATE card_fetches SET started_at = now() + interval '1 day'`)
	execute(t, p.pool, `UPDATE cards SET fetch_at = now() + interval '2 days', tries = 0`)
	again, _ := start()
	require.NotNil(t, again)
}

// TestLinkOfABusyHostWaits shows that links of other hosts go first.
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
	execute(t, p.pool, `UPDATE card_hosts SET next_at = now() + interval '1 day'`) // as if the clock was set back
	first, err := ranking.TakeHostTurn(t.Context(), p.pool, "busy.example", 0)
	require.NoError(t, err)
	require.LessOrEqual(t, first, time.Duration(0))
	require.Equal(t, "busy.example/a", p.fetches(nil))
}
