package links

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// nostrKey returns the key of a record of an account of Nostr.
func nostrKey(kind, who, rkey string) schema.Key {
	return schema.Key{Collection: "nostr." + kind, DID: "did:nostr:" + strings.Repeat(who, 64), Rkey: rkey}
}

func noteID(letter string) string { return strings.Repeat(letter, 64) }

// event stores a revision of an event, dated an hour ago.
func (c *town) event(key schema.Key, rev, content string, tags ...[]string) {
	c.t.Helper()
	raw, err := json.Marshal(map[string]any{"content": content, "tags": tags})
	require.NoError(c.t, err)
	c.apply(schema.Batch{Writes: []schema.Write{{Key: key, Rev: rev, CreatedAt: time.Now().Add(-time.Hour), Record: raw}}})
}

// work processes records as the job of a commit does.
func (c *town) work(keys ...schema.Key) {
	c.t.Helper()
	records := make([]jobs.Record, len(keys))
	for i, key := range keys {
		records[i] = jobs.Record(key)
	}
	args, _ := Projection().Job(jobs.Batch{Records: records}).(ProcessPostsArgs)
	raw, err := json.Marshal(args)
	require.NoError(c.t, err)
	job := &river.Job[ProcessPostsArgs]{JobRow: &rivertype.JobRow{ID: 1, CreatedAt: time.Now()}}
	require.NoError(c.t, json.Unmarshal(raw, &job.Args)) // as the queue keeps them
	require.NoError(c.t, c.w.Work(c.t.Context(), job))
}

// sharedBy returns the identities that a record shares, with how, sorted.
func (c *town) sharedBy(key schema.Key) []string {
	c.t.Helper()
	found, err := schema.All(c.t.Context(), c.pool, "read shares", pgx.RowTo[string],
		`SELECT s.how || ' ' || l.identity FROM shares AS s JOIN links AS l ON l.id = s.named_id
			WHERE s.collection = $1 AND s.did = $2 AND s.rkey = $3 ORDER BY 1`, key.Collection, key.DID, key.Rkey)
	require.NoError(c.t, err)
	return found
}

// TestNotesAndArticlesAreShares shows that an article's newer revision replaces its shares, and
// that a deleted event shares nothing, even if a job that names it runs later.
func TestNotesAndArticlesAreShares(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	note, article := nostrKey("1", "a", noteID("b")), nostrKey("30023", "a", "my/article")
	c.event(note, "1", "https://news.example/1 and https://image.example/1.png")
	c.event(article, "1", "[x](https://news.example/1)[y](https://news.example/2)", []string{"title", "T"})
	c.work(note, article)
	c.work(note, article)
	require.Equal(t, []string{"post news.example/1"}, c.sharedBy(note))
	require.Equal(t, []string{"post news.example/1", "post news.example/2"}, c.sharedBy(article))
	at := c.rows(`
		SELECT DISTINCT tableoid::regclass || ' ' || (now() - shared_at BETWEEN '59 min' AND '61 min') || ' ' || (now() - stored_at < '1 min')
		FROM shares`)
	require.Equal(t, []string{"shares_default true true"}, at,
		"the share must have the author's date, and be in the partition of the day of storing")
	require.Equal(t, []string{""}, c.rows(`SELECT DISTINCT title FROM claims`),
		"an article's own title must not become a claim about its links")

	c.event(article, "2", "[y](https://news.example/3)")
	c.work(article)
	require.Equal(t, []string{"post news.example/3"}, c.sharedBy(article))

	c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: note, Rev: "~", At: time.Now(), Lasting: true}}})
	require.Empty(t, c.sharedBy(note))
	c.work(note)
	require.Empty(t, c.sharedBy(note))
	require.Equal(t, []string{"did:nostr:" + strings.Repeat("a", 64)}, c.rows(`SELECT DISTINCT did FROM shares`))
}

// sharers returns the number of sharers of a link in the ranking of a day.
func (c *town) sharers(url string) (n int) {
	c.t.Helper()
	page, err := ranking.Trending(c.t.Context(), c.pool, ranking.Query{Window: 24 * time.Hour, Limit: 1000})
	require.NoError(c.t, err)
	for _, l := range page.Links {
		if l.URL == url {
			n = l.Sharers
		}
	}
	return n
}

// TestArticleNamedLikeANote covers an article whose name is a note's id, by the same author. The
// check of the changed note does not touch the shares through the article, and ends.
func TestArticleNamedLikeANote(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	note, article := nostrKey("1", "a", noteID("1")), nostrKey("30023", "a", noteID("1"))
	ofNote, ofArticle := nostrKey("6", "b", noteID("2")), nostrKey("16", "c", noteID("3"))
	c.event(note, "1", c.news)
	c.event(article, "1", "[x]("+c.news+")")
	author := strings.TrimPrefix(note.DID, "did:nostr:")
	c.event(ofNote, "1", "", []string{"e", note.Rkey}, []string{"p", author})
	c.event(ofArticle, "1", "", []string{"a", "30023:" + author + ":" + article.Rkey})
	c.work(note, article, ofNote, ofArticle)
	require.Equal(t, []string{"repost news.example/1", "repost news.example/1"}, append(c.sharedBy(ofNote), c.sharedBy(ofArticle)...))
	c.execute(`INSERT INTO changed_subjects (did, collection, rkey) VALUES ($1, $2, $3)`, note.DID, note.Collection, note.Rkey)
	c.check(c.checks())
	require.Empty(t, c.rows(`SELECT rkey FROM changed_subjects`))
}

// TestRepostsAndQuotesOfNotes shows that a repost and a quote share the links of their note or
// article, once per person, whatever is processed first, until either is deleted.
func TestRepostsAndQuotesOfNotes(t *testing.T) {
	t.Parallel()
	note, article := nostrKey("1", "a", noteID("1")), nostrKey("30023", "b", "d")
	repost, quote := nostrKey("6", "c", noteID("2")), nostrKey("1", "d", noteID("3"))
	again, ofArticle := nostrKey("16", "c", noteID("4")), nostrKey("16", "e", noteID("5"))
	all := []schema.Key{note, article, repost, quote, again, ofArticle}
	by := func(key schema.Key) string { return strings.TrimPrefix(key.DID, "did:nostr:") }
	for name, order := range map[string][]int{
		"subjects first": {0, 1, 2, 3, 4, 5}, "subjects last": {5, 4, 3, 2, 1, 0}, "between": {2, 5, 0, 3, 1, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTown(t)
			write := []func(){
				func() { c.event(note, "1", c.news) },
				func() { c.event(article, "1", "[x]("+c.news+")") },
				func() { c.event(repost, "1", "", []string{"e", note.Rkey}, []string{"p", by(note)}) },
				func() { c.event(quote, "1", "look", []string{"q", note.Rkey, "", by(note)}) },
				func() {
					c.event(again, "1", "", []string{"e", note.Rkey}, []string{"k", "1"}, []string{"p", by(note)})
				},
				func() { c.event(ofArticle, "1", "", []string{"a", "30023:" + by(article) + ":d"}) },
			}
			for _, i := range order {
				write[i]()
				c.work(all[i])
			}
			require.Equal(t, []string{"repost news.example/1"}, c.sharedBy(repost))
			require.Equal(t, []string{"repost news.example/1"}, c.sharedBy(again))
			require.Equal(t, []string{"quote news.example/1"}, c.sharedBy(quote))
			require.Equal(t, []string{"repost news.example/1"}, c.sharedBy(ofArticle))
			require.Equal(t, 5, c.sharers(c.news), "two of the six records are by the same person")
			require.Empty(t, c.rows(`SELECT rkey FROM waiting`))
			subject := c.rows(`SELECT DISTINCT subject FROM link_shares WHERE how = 'quote'`)
			require.Equal(t, []string{note.URI()}, subject)

			remove := func(key schema.Key) {
				c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: key, Rev: "~", At: time.Now(), Lasting: true}}})
			}
			remove(again)
			require.Equal(t, 5, c.sharers(c.news))
			remove(note)
			require.Equal(t, 2, c.sharers(c.news), "expected the article and its repost")
			c.check(c.checks())
			require.Empty(t, c.sharedBy(repost))
			require.Equal(t, []string{note.Rkey, note.Rkey}, c.rows(`SELECT for_rkey FROM waiting`))
			remove(ofArticle)
			require.Equal(t, 1, c.sharers(c.news))

			_, err := c.pool.Exec(t.Context(), `INSERT INTO watches (target) VALUES ('w')`)
			require.NoError(t, err)
			c.event(ofArticle, "~~", "", []string{"a", "30023:" + by(article) + ":unknown"})
			c.work(ofArticle)
			require.Empty(t, c.rows(`SELECT rkey FROM subjects WHERE fetch_at IS NOT NULL`),
				"no fetch may be requested: the AppView has no posts of Nostr")
		})
	}
}
