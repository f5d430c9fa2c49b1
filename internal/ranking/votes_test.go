package ranking

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// said is the content of a claim, or the headline of a link.
type said struct {
	url, site, title, description, image, from string
	group                                      int64 // of the title
}

// historyClaims adds ten claims of one link, or of all links. Some have the same title, some the
// same spelling.
const historyClaims = `
INSERT INTO claims (id, link_id, hash, url, site, title, description, image, words, title_group) OVERRIDING SYSTEM VALUE
SELECT *, array_to_tsvector(array_remove(ARRAY[lower(c.title), c.description], '')), CASE c.title WHEN 'B'
    THEN 100 + c.link_id % 4 WHEN 'C' THEN 200 END
    FROM (SELECT 10 * l.id + k, l.id, decode(md5(k::text), 'hex'),
        (ARRAY['http://', 'https://', 'https://www.'])[1 + k % 3] || l.id, 'site' || k % 3 || '.example',
       (ARRAY['', 'A', 'A', 'B', 'A', '', 'C', 'B', 'A', 'B'])[1 + k], (ARRAY['', '', 'd1', 'd2', 'd1', 'd3', '', 'd2', 'd3', ''])[1 + k],
       (ARRAY['', 'i1', '', 'i1', 'i2', 'i3', '', 'i2', 'i2', ''])[1 + k]
FROM links AS l, generate_series(0, 9) AS k
WHERE $1::bigint IS NULL OR l.id = $1) AS c (id, link_id, hash, url, site, title, description, image)
ON CONFLICT DO NOTHING`

func (l *story) readClaims(t *testing.T, tx pgx.Tx) {
	t.Helper()
	read := func(sql string) map[int64]said {
		all := map[int64]said{}
		var id int64
		var s said
		rows, err := tx.Query(t.Context(), sql)
		require.NoError(t, err)
		_, err = pgx.ForEachRow(rows, []any{
			&id, &s.url, &s.site, &s.title, &s.description, &s.image, &s.from, &s.group,
		}, func() error { all[id] = s; return nil })
		require.NoError(t, err)
		return all
	}
	l.claims = read(`SELECT id, url, site, title, description, image, '', coalesce(title_group, 0) FROM claims`)
	l.links = read(`SELECT id, url, site, title, description, image, card_from, 0 FROM links`)
	l.walled = map[int64]bool{}
	groups, err := schema.All(t.Context(), tx, "read the walls", pgx.RowTo[int64], `SELECT title_group FROM walls`)
	require.NoError(t, err)
	for _, g := range groups {
		l.walled[g] = true
	}
	rows, err := tx.Query(t.Context(), `SELECT kept_from, as_of FROM count_state`)
	require.NoError(t, err)
	_, err = pgx.ForEachRow(rows, []any{&l.keptFrom, &l.asOf}, func() error { return nil })
	require.NoError(t, err)
}

// poll counts votes in Go.
type poll map[string]*candidate

type candidate struct {
	value string
	votes int
	at    time.Time
	uri   string
}

func (p poll) vote(value string, at time.Time, uri string) {
	c := p[value]
	if c == nil {
		c = &candidate{value: value, at: at, uri: uri}
		p[value] = c
	}
	c.votes++
	if at.Before(c.at) || at.Equal(c.at) && uri < c.uri {
		c.at, c.uri = at, uri
	}
}

// winner returns the candidate with the most votes. Among equals it returns a preferred one, and of
// these the earliest.
func (p poll) winner(preferred func(string) bool) (best candidate) {
	for _, c := range p {
		switch {
		case best.votes == 0, c.votes > best.votes:
		case c.votes < best.votes:
			continue
		case preferred(c.value) != preferred(best.value):
			if !preferred(c.value) {
				continue
			}
		case c.at.After(best.at), c.at.Equal(best.at) && c.uri > best.uri:
			continue
		}
		best = *c
	}
	return best
}

// spelling returns the spelling that the share votes for, or nothing if it leads to the link
// indirectly.
func (s toldShare) spelling(c said) string {
	if s.Named != s.Link {
		return ""
	}
	return c.url
}

// post is a post that contains a link, with its claim about it.
type post struct {
	at         time.Time
	key        string
	claim      int64
	url, title string
}

// posts returns the posts with a link that vote, by account, the oldest first.
func (l story) posts(from time.Time, link int64) map[string][]post {
	all := map[string][]post{}
	for _, s := range l.shares {
		if c := l.claims[s.Claim]; l.votes(s, link) && s.At.After(from) {
			all[s.DID] = append(all[s.DID], post{s.At, s.Key, s.Claim, s.spelling(c), c.title})
		}
	}
	for _, own := range all {
		slices.SortFunc(own, func(a, b post) int {
			return cmp.Or(a.at.Compare(b.at), strings.Compare(a.key, b.key), cmp.Compare(a.claim, b.claim))
		})
	}
	return all
}

// votes reports whether a share votes for a link, if it is not too old.
func (l story) votes(s toldShare, link int64) bool {
	return s.Link == link && s.Author == "" && !s.Copied && s.Claim != 0 && !l.hidden[s.DID] && (!l.watched || l.members[""][s.DID])
}

// latest returns the last post with a title, and the first one with that title; nil: there is none.
func latest(own []post) (last, first *post) {
	for i := range own {
		if own[i].title != "" {
			last = &own[i]
		}
	}
	for i := range own {
		if last != nil && own[i].title == last.title {
			return last, &own[i]
		}
	}
	return nil, nil
}

// walls returns the groups of titles that are walls by the shares. Each link is a page of its own.
func (l story) walls(from time.Time) map[int64]bool {
	pages := map[int64]map[int64][]string{} // the accounts by link, by group
	for link := range l.links {
		for did, own := range l.posts(from, link) {
			if last, _ := latest(own); last != nil && l.claims[last.claim].group != 0 {
				g := l.claims[last.claim].group
				if pages[g] == nil {
					pages[g] = map[int64][]string{}
				}
				pages[g][link] = append(pages[g][link], did)
			}
		}
	}
	all := map[int64]bool{}
	for g, of := range pages {
		alone, most := map[string]int{}, 0
		for _, accounts := range of {
			if len(accounts) == 1 {
				alone[accounts[0]]++
				most = max(most, alone[accounts[0]])
			}
		}
		all[g] = len(of) >= 3 && len(of)-most >= 2
	}
	return all
}

// headline folds the votes for a link without any SQL.
func (l story) headline(q Query, link int64) said {
	from := l.keptFrom
	if from.IsZero() || q.At.Add(-q.Window).Before(from) {
		from = q.At.Add(-LongestWindow - kept)
	}
	wall := l.walled
	if l.asOf.IsZero() { // readers find the walls themselves
		wall = l.walls(from)
	}
	alive := slices.ContainsFunc(l.shares, func(s toldShare) bool { // a post with a title, however old
		return l.votes(s, link) && l.claims[s.Claim].title != "" && !wall[l.claims[s.Claim].group]
	})
	posts := l.posts(from, link)
	urls, titles := poll{}, poll{}
	type voter struct {
		did, uri string
		at       time.Time
		claim    int64
	}
	var voters []voter
	for did, own := range posts {
		if spelled := slices.DeleteFunc(slices.Clone(own), func(p post) bool { return p.url == "" }); len(spelled) > 0 {
			last := spelled[len(spelled)-1]
			first := spelled[slices.IndexFunc(spelled, func(p post) bool { return p.url == last.url })]
			urls.vote(last.url, first.at, "at://"+did+"/"+first.key)
		}
		if last, first := latest(own); last != nil && !wall[l.claims[last.claim].group] {
			titles.vote(last.title, first.at, "at://"+did+"/"+first.key)
			voters = append(voters, voter{did, "at://" + did + "/" + first.key, first.at, last.claim})
		}
	}
	shown := l.links[link]
	if len(urls) > 0 {
		shown.url = urls.winner(func(url string) bool { return strings.HasPrefix(url, "https:") }).value
		for _, c := range l.claims {
			if c.url == shown.url {
				shown.site = c.site
			}
		}
	}
	if len(titles) == 0 {
		if !alive || len(l.pages[link]) > 0 || strings.HasPrefix(shown.from, "http") {
			shown = said{url: shown.url, site: shown.site}
		}
		return l.withPage(shown, link)
	}
	title := titles.winner(func(string) bool { return false })
	shown.title, shown.from, shown.description, shown.image = title.value, title.uri, "", ""
	descriptions, images := poll{}, poll{}
	for _, v := range voters {
		c := l.claims[v.claim]
		if c.title == title.value && c.description != "" {
			descriptions.vote(c.description, v.at, v.uri)
		}
		if c.title == title.value && c.image != "" {
			images.vote(c.image, v.at, v.uri)
		}
	}
	shown.description = descriptions.winner(func(string) bool { return false }).value
	if best := images.winner(func(string) bool { return false }); best.votes > 0 {
		shown.image = "blob:" + strings.Split(best.uri, "/")[2] + "/" + best.value
	}
	return l.withPage(shown, link)
}

// TestWrongVotesAreFound shows that a wrong vote, sum or headline is reported, and that a recount
// repairs them.
func TestWrongVotesAreFound(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO links (identity, url, site, first_seen) SELECT n::text, n::text, 's', $1 FROM generate_series(1, 4) AS n`, now)
	exec(historyClaims, nil)
	exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
		SELECT 'did:plc:' || n, 'c', id::text, id, id, 'post', $1, 10 * id + n FROM links, generate_series(1, 3) AS n`, now)
	differences := func() (lines []string) {
		_, err := Count(t.Context(), pool, now)
		require.NoError(t, err)
		_, err = Check(t.Context(), pool, func(d Difference) { lines = append(lines, d.String()) })
		require.NoError(t, err)
		return lines
	}
	require.Empty(t, differences())
	exec(`UPDATE sharers SET title_key = 'c/other' WHERE link_id = 1 AND did = 'did:plc:2'`)
	exec(`UPDATE claim_votes SET titles = 7 WHERE claim_id = 21`)
	exec(`DELETE FROM claim_votes WHERE claim_id = 33`)
	exec(`UPDATE links SET title = 'False' WHERE id = 4`)
	exec(`INSERT INTO walls VALUES (7)`)
	lines := differences()
	for _, begins := range []string{
		`link 1, sharer did:plc:2: kept {"did"`, `link 2: kept {"urls": 1`, `link 3: kept nothing, recounted {"urls": 1`,
		`link 4: kept {"url":`, `link 0: kept the wall 7, recounted nothing`,
	} {
		require.True(t, slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, begins) }), "%s: %v", begins, lines)
	}
	require.NoError(t, CountEverything(t.Context(), pool))
	require.Empty(t, differences())
}
