package links

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// counted runs the counter to its end, and requires that its counts equal those of the shares.
func (c *town) counted() {
	c.t.Helper()
	for {
		done, err := ranking.Count(c.t.Context(), c.pool, time.Now())
		require.NoError(c.t, err)
		if !done.More {
			break
		}
	}
	_, err := ranking.Check(c.t.Context(), c.pool, func(d ranking.Difference) { c.t.Errorf("a count is wrong: %+v", d) })
	require.NoError(c.t, err)
}

// TestCopiesDoNotCountASecondTime covers a note that a bridge made of a post, and a repost that it
// made of a repost. They count only while the original does not share the link, whichever is
// processed first, and whatever was counted before.
func TestCopiesDoNotCountASecondTime(t *testing.T) {
	t.Parallel()
	for name, copyFirst := range map[string]bool{"original first": false, "copy first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newTown(t)
			note, other := nostrKey("1", "a", noteID("1")), nostrKey("1", "b", noteID("2"))
			proxy := func(key schema.Key) []string { return []string{"proxy", key.URI(), "atproto"} }
			original := func() {
				c.posts("a/1", "", c.news)
				c.project("a/1")
				c.counted()
			}
			copied := func() {
				c.event(note, "1", c.news+" https://news.example/2", proxy(c.key("a/1")))
				c.event(other, "1", c.news)
				c.work(note)
				c.work(other)
				c.counted()
			}
			reasons := func() []string {
				return c.rows(`SELECT left(did, 10) || ' ' || coalesce(why, 'counts') FROM link_shares WHERE url = '` + c.news + `' ORDER BY 1`)
			}
			if copyFirst {
				copied()
				require.Equal(t, 2, c.sharers(c.news))
				original()
			} else {
				original()
				copied()
			}
			require.Equal(t, 2, c.sharers(c.news), "two people share it: the one on two networks counts once")
			require.Equal(t, []string{"did:nostr: copy", "did:nostr: counts", "did:plc:a counts"}, reasons())
			require.Equal(t, 1, c.sharers("https://news.example/2"), "the copy counts, because the original does not share this link")
			id, err := schema.One(t.Context(), c.pool, "find the link", pgx.RowTo[int64], `SELECT id FROM links WHERE url = $1`, c.news)
			require.NoError(t, err)
			page, err := ranking.LinkShares(t.Context(), c.pool, ranking.LinkQuery{ID: id, Window: 24 * time.Hour}, 10, "")
			require.NoError(t, err)
			why := map[string]ranking.Reason{}
			for _, s := range page.Shares {
				why[s.URI] = s.Why
			}
			require.Equal(t, map[string]ranking.Reason{note.URI(): ranking.Copied, other.URI(): "", c.uri("a/1"): ""}, why)

			c.posts("a/1", "", "https://news.example/3") // an edit: the original now shares another link
			c.project("a/1")
			c.counted()
			require.Equal(t, 2, c.sharers(c.news))
			c.posts("a/1", "", c.news)
			c.project("a/1")
			c.counted()
			require.Equal(t, []string{"did:nostr: copy", "did:nostr: counts", "did:plc:a counts"}, reasons())

			c.deletes("a/1")
			c.counted()
			require.Equal(t, 2, c.sharers(c.news), "the copy must count in place of the original")
			require.Equal(t, []string{"did:nostr: counts", "did:nostr: counts"}, reasons())
			c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: note, Rev: "~", At: time.Now()}}})
			c.counted()
			require.Equal(t, 1, c.sharers(c.news))
			require.Empty(t, c.rows(`SELECT rkey FROM copies`))
		})
	}
}

// TestCopyOfARepost shows that the original may be a repost, and that an edited event may stop
// being a copy.
func TestCopyOfARepost(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	note, repost, article := nostrKey("1", "a", noteID("1")), nostrKey("6", "b", noteID("2")), nostrKey("30023", "c", "d")
	c.posts("a/1", "", c.news)
	c.reposts("b/r1", "a/1")
	c.project("a/1", "b/r1")
	c.event(note, "1", c.news)
	c.event(repost, "1", "", []string{"e", note.Rkey}, []string{"p", note.DID[len("did:nostr:"):]},
		[]string{"proxy", c.uri("b/r1"), "atproto"})
	c.event(article, "1", c.news, []string{"proxy", c.uri("a/1"), "web"})
	c.work(note, repost, article)
	c.counted()
	require.Equal(t, 3, c.sharers(c.news), "the post, its repost and the note")
	c.event(article, "2", c.news)
	c.work(article)
	c.counted()
	require.Equal(t, 4, c.sharers(c.news))
	c.deletes("b/r1")
	c.counted()
	require.Equal(t, 4, c.sharers(c.news), "the copy must count in place of the repost")

	w := c.checks()
	w.now = func() time.Time { return time.Now().Add(subjectIdle + time.Hour) }
	_, err := c.pool.Exec(t.Context(), `UPDATE copies SET checked_at = now() - interval '3 days'`)
	require.NoError(t, err)
	c.check(w)
	require.Equal(t, []string{repost.Rkey}, c.rows(`SELECT rkey FROM copies`))
	_, err = c.pool.Exec(t.Context(), `DELETE FROM records WHERE collection = 'nostr.6'; DELETE FROM shares
		WHERE collection = 'nostr.6'; UPDATE copies SET checked_at = now() - interval '3 days'`)
	require.NoError(t, err)
	c.check(w)
	require.Empty(t, c.rows(`SELECT rkey FROM copies`), "the row of a copy that no share needs must be deleted")
}

// TestCopyAndOriginalAtTheSameTime covers two transactions that do not see each other. The work
// after the later commit has the copy counted again.
func TestCopyAndOriginalAtTheSameTime(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	note := nostrKey("1", "a", noteID("1"))
	c.posts("a/1", "", c.news)
	c.project("a/1")
	_, err := c.pool.Exec(t.Context(), `CREATE TABLE uncommitted AS SELECT * FROM shares; DELETE FROM shares`)
	require.NoError(t, err)
	tx, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // the transaction is committed below
	_, err = tx.Exec(t.Context(), `INSERT INTO shares SELECT * FROM uncommitted`)
	require.NoError(t, err)
	c.event(note, "1", c.news, []string{"proxy", c.key("a/1").URI(), "atproto"})
	c.work(note)
	c.counted()
	require.Equal(t, 1, c.sharers(c.news), "the original is not committed")
	require.NoError(t, tx.Commit(t.Context()))
	c.project("a/1")
	c.counted()
	require.Equal(t, 1, c.sharers(c.news))
}

// TestCopyOfAnotherOriginal edits an article within a second. It then names another original, and
// nothing else of its share changes.
func TestCopyOfAnotherOriginal(t *testing.T) {
	t.Parallel()
	c := newTown(t)
	article, at := nostrKey("30023", "c", "d"), time.Now().Add(-time.Hour)
	c.posts("a/1", "", c.news)
	c.posts("b/1", "", "https://news.example/2")
	c.project("a/1", "b/1")
	for i, edit := range []struct {
		original string
		sharers  int
	}{{"a/1", 1}, {"b/1", 2}, {"a/1", 1}} {
		raw := fmt.Sprintf(`{"content": %q, "tags": [["proxy", %q, "atproto"]]}`, c.news, c.uri(edit.original))
		c.apply(schema.Batch{Writes: []schema.Write{{Key: article, Rev: fmt.Sprint(i), CreatedAt: at, Record: []byte(raw)}}})
		c.work(article)
		require.Equal(t, edit.sharers, c.sharers(c.news), "it is a copy of %s", edit.original)
		c.counted()
	}
}
