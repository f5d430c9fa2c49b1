package workers

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// nostrKey is the name of a record of an account of Nostr, from one letter each.
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
	args, _ := jobs.Links().Job(jobs.Batch{Records: records}).(jobs.ProcessPosts)
	raw, err := json.Marshal(args)
	require.NoError(c.t, err)
	job := &river.Job[jobs.ProcessPosts]{JobRow: &rivertype.JobRow{ID: 1, CreatedAt: time.Now()}}
	require.NoError(c.t, json.Unmarshal(raw, &job.Args)) // as the queue keeps them
	require.NoError(c.t, c.w.Work(c.t.Context(), job))
}

// sharedBy returns the identities that a record shares, with how, sorted.
func (c *town) sharedBy(key schema.Key) []string {
	c.t.Helper()
	found, err := schema.All(c.t.Context(), c.pool, "read shares", pgx.RowTo[string],
		`SELECT s.how || ' ' || l.identity FROM shares AS s JOIN links AS l ON l.id = s.named_id WHERE s.collection = $1 AND s.did = $2 AND s.rkey = $3 ORDER BY 1`, key.Collection, key.DID, key.Rkey)
	require.NoError(c.t, err)
	return found
}

// TestNotesAndArticlesAreShares: an article's newer revision replaces what it shared, and a
// deleted event shares nothing, even if a job that names it runs later.
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
	at := c.rows(`SELECT DISTINCT tableoid::regclass || ' ' || (now() - shared_at BETWEEN '59 min' AND '61 min') || ' ' || (now() - stored_at < '1 min') FROM shares`)
	require.Equal(t, []string{"shares_default true true"}, at, "the date is the author's, the day is that of storing")
	require.Equal(t, []string{""}, c.rows(`SELECT DISTINCT title FROM claims`), "what an article says of itself is no card of its links")

	c.event(article, "2", "[y](https://news.example/3)")
	c.work(article)
	require.Equal(t, []string{"post news.example/3"}, c.sharedBy(article))

	c.apply(schema.Batch{Deletions: []schema.Deletion{{Key: note, Rev: "~", At: time.Now(), Lasting: true}}})
	require.Empty(t, c.sharedBy(note))
	c.work(note)
	require.Empty(t, c.sharedBy(note))
	require.Equal(t, []string{"did:nostr:" + strings.Repeat("a", 64)}, c.rows(`SELECT DISTINCT did FROM shares`))
}
