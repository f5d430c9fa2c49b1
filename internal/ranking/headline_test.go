package ranking_test

import (
	"fmt"
	"os"
	"path/filepath"
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

// story is a link that accounts describe.
type story struct {
	t    *testing.T
	pool *pgxpool.Pool
	now  time.Time
}

func newStory(t *testing.T) *story {
	return &story{t, schematest.New(t), noon()}
}

// post stores a post of an account: its minute, its spelling ("" means https) and its card, which
// is "title", "title|description" or "title|description|CID".
func (s *story) post(did string, minute int, url, card string) {
	s.t.Helper()
	parts := append(strings.Split(card, "|"), "", "")
	c := link.Card{Title: parts[0], Description: parts[1]}
	if parts[2] != "" {
		c.Image = "blob:" + did + "/" + parts[2]
	}
	if url == "" {
		url = "https://news.example/story"
	}
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: fmt.Sprintf("%03d", minute)}
	share := ranking.Share{
		Key: k, Link: link.Link{Identity: "news.example/story", URL: url, Site: "news.example", Card: c}, How: "post",
		SharedAt: s.now.Add(time.Duration(minute-60) * time.Minute),
	}
	require.NoError(s.t, pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(s.t.Context(), tx, []schema.Key{k}, []ranking.Share{share}, s.now)
	}))
}

func (s *story) hide(did, status string) {
	s.t.Helper()
	execute(s.t, s.pool, `INSERT INTO accounts (did, status) VALUES ($1, $2)
		ON CONFLICT (did) DO UPDATE SET status = excluded.status`, did, status)
}

// shown returns the headline as a reader sees it.
func (s *story) shown() string {
	s.t.Helper()
	p, err := ranking.Trending(s.t.Context(), s.pool, ranking.Query{At: s.now, Window: 24 * time.Hour, Limit: 1})
	require.NoError(s.t, err)
	require.Len(s.t, p.Links, 1)
	l := p.Links[0].LinkCard
	summary, err := ranking.ReadLink(s.t.Context(), s.pool, ranking.LinkQuery{ID: l.ID, At: s.now, Window: 24 * time.Hour})
	require.NoError(s.t, err)
	require.Equal(s.t, l, summary.LinkCard, "the link by itself")
	said := strings.Join([]string{
		strings.TrimSuffix(l.URL, "://news.example/story"), l.Title, l.Description, l.Image,
		strings.TrimPrefix(l.CardFrom, "at://"),
	}, " ")
	return strings.Join(strings.Fields(said), " ")
}

// requires compares the headline at once, after it is counted, and after it is recounted from the
// first share on.
func (s *story) requires(want string) {
	s.t.Helper()
	require.Equal(s.t, want, s.shown(), "before the votes are counted")
	for _, ask := range []func() error{func() error { return nil }, func() error { return ranking.CountEverything(s.t.Context(), s.pool) }} {
		require.NoError(s.t, ask())
		require.Equal(s.t, want, s.shown(), "recounted")
		for {
			done, err := ranking.Count(s.t.Context(), s.pool, s.now)
			require.NoError(s.t, err)
			if !done.More {
				break
			}
		}
		require.Equal(s.t, want, s.shown(), "counted")
		_, err := ranking.Check(s.t.Context(), s.pool, func(d ranking.Difference) { require.Fail(s.t, d.String()) })
		require.NoError(s.t, err)
	}
}

// from returns the AT-URI of a post without "at://".
func from(did string, minute int) string {
	return fmt.Sprintf("%s/%s/%03d", did, schema.PostCollection, minute)
}

func TestTitleOfMostAccountsWins(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("liar", 1, "", "False")
	s.requires("https False " + from("liar", 1))
	s.post("liar", 2, "", "False")
	s.post("liar", 3, "", "False") // one account has one vote
	s.post("a", 4, "", "True")
	s.requires("https False " + from("liar", 1)) // a tie goes to the earliest
	s.post("b", 5, "", "True")
	s.requires("https True " + from("a", 4))
	s.post("c", 6, "", "")
	s.requires("https True " + from("a", 4)) // a post without a card does not vote
}

func TestTieGoesToTheEarliestPost(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("b", 5, "", "B")
	s.post("a", 5, "", "A") // at the same time: the smallest AT-URI
	s.requires("https A " + from("a", 5))
	s.post("c", 4, "", "C") // stored later
	s.requires("https C " + from("c", 4))
	s.post("b", 3, "", "B") // the latest post of b has the same title, but b has had it since earlier
	s.requires("https B " + from("b", 3))
}

func TestLatestPostOfAnAccountVotes(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "Old")
	s.post("b", 2, "", "Old")
	s.post("c", 3, "", "New")
	s.requires("https Old " + from("a", 1))
	s.post("a", 4, "", "New")
	s.requires("https New " + from("c", 3))
	s.post("a", 5, "", "") // a post without a title keeps the account's vote
	s.requires("https New " + from("c", 3))
	s.post("a", 4, "", "Old") // edited
	s.requires("https Old " + from("a", 1))
}

func TestCardWithoutALivingClaimGoes(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "One|D1|cid1")
	s.post("b", 2, "", "One|D1|cid1")
	s.post("c", 3, "", "Two|D2|cid2")
	s.post("d", 4, "", "")
	s.requires("https One D1 blob:a/cid1 " + from("a", 1))
	execute(t, s.pool, `DELETE FROM shares WHERE did = 'a'`)
	s.requires("https One D1 blob:b/cid1 " + from("b", 2)) // a tie; the picture comes from an account that still has it
	s.hide("b", "takendown")
	s.requires("https Two D2 blob:c/cid2 " + from("c", 3))
	s.hide("b", "active")
	s.requires("https One D1 blob:b/cid1 " + from("b", 2))
	execute(t, s.pool, `DELETE FROM shares WHERE did = 'b'`)
	s.hide("c", "deactivated")
	s.requires("https") // d shares it without a card
	s.hide("c", "active")
	s.requires("https Two D2 blob:c/cid2 " + from("c", 3))
}

func TestOnlyFollowedAccountsVote(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "A")
	s.post("b", 2, "", "B")
	s.post("c", 3, "", "B")
	s.requires("https B " + from("b", 2))
	execute(t, s.pool, `INSERT INTO watches (target) VALUES ('t')`)
	execute(t, s.pool, `INSERT INTO watch_members (watch_id, did) SELECT id, 'a' FROM watches`)
	s.requires("https A " + from("a", 1))
	execute(t, s.pool, `INSERT INTO watch_members (watch_id, did) SELECT id, unnest(ARRAY['b', 'c']) FROM watches`)
	s.requires("https B " + from("b", 2))
}

func TestDescriptionAndPictureOfTheTitle(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "T||cid1")
	s.post("b", 2, "", "T|D2|cid2")
	s.post("c", 3, "", "T||cid2") // the same picture, uploaded by another account
	s.post("d", 4, "", "Other|D4|cid4")
	s.post("e", 5, "", "Other|D4|cid4")
	s.requires("https T D2 blob:b/cid2 " + from("a", 1)) // a description is preferred to none, though most give none
	s.post("f", 6, "", "T||cid1")
	s.requires("https T D2 blob:a/cid1 " + from("a", 1))
}

func TestSpellingOfMostAccounts(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "http://news.example/story", "T")
	s.requires("http T " + from("a", 1))
	s.post("b", 2, "", "")
	s.requires("https T " + from("a", 1)) // a tie goes to https
	s.post("c", 3, "http://news.example/story", "")
	s.requires("http T " + from("a", 1))
	s.post("c", 4, "", "")
	s.requires("https T " + from("a", 1))
	s.hide("c", "deleted")
	s.post("d", 5, "https://www.news.example/story/", "")
	s.requires("https T " + from("a", 1)) // all have one: https, and the earliest of these
}

// TestOldPostNoLongerVotes covers an account that still counts because it reposted the link since.
func TestOldPostNoLongerVotes(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	const week = 7 * 24 * 60
	s.post("a", 60-week-50, "http://news.example/story", "Old")
	s.post("b", 0, "", "New")
	execute(t, s.pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'a', 'c', 'r', id, id, 'repost', $1 FROM links`, s.now)
	s.requires("https Old a/" + schema.PostCollection + "/" + fmt.Sprintf("%03d", 60-week-50))
	s.now = s.now.Add(20 * time.Minute)
	_, err := ranking.Count(t.Context(), s.pool, s.now)
	require.NoError(t, err)
	require.Equal(t, "https New "+from("b", 0), s.shown())
	s.requires("https New " + from("b", 0))
}

// TestOtherClaimsStayReadable uses the query of the handbook, and covers claims of a single
// account.
func TestOtherClaimsStayReadable(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("liar", 1, "http://news.example/story", "False")
	s.post("a", 2, "", "True")
	s.post("b", 3, "", "True")
	s.post("c", 4, "", "")
	s.requires("https True " + from("a", 2))
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "sql.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## The headline\n")
	_, query, _ := strings.Cut(section, "```sql\n")
	query, _, _ = strings.Cut(query, "```")
	query = strings.TrimSuffix(strings.TrimSpace(query), ";")
	require.Equal(t, []string{
		"True https://news.example/story 2 2 at://" + from("a", 2),
		"False http://news.example/story 1 1 at://" + from("liar", 1),
		" https://news.example/story 0 1 ",
	}, column(t, s.pool, `SELECT concat_ws(' ', q.title, q.url, q.titles, q.urls, coalesce(q.title_from, '')) FROM (`+query+`) AS q`))
}

// TestPastWindowHasTheVotesOfItsTime covers counts that were made long after the window.
func TestPastWindowHasTheVotesOfItsTime(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	says(t, pool, "a", "1", "https://news.example/story", link.Card{Title: "T"})
	for _, counted := range []bool{false, true} {
		if counted {
			_, err := ranking.Count(t.Context(), pool, noon().AddDate(0, 4, 0))
			require.NoError(t, err)
		}
		p, err := ranking.Trending(t.Context(), pool, ranking.Query{At: noon().Add(time.Minute), Past: true, Window: time.Hour, Limit: 1})
		require.NoError(t, err)
		require.Len(t, p.Links, 1)
		require.Equal(t, "T", p.Links[0].Title, "counted %t", counted)
	}
}
