package links

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestPlansMadeForEmptyTablesStayGood covers a connection that plans the statements of small jobs
// and batches once. It still looks up keys after the tables have grown and were not analyzed.
func TestPlansMadeForEmptyTablesStayGood(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	config := schematest.New(t).Config()
	config.MaxConns, config.MinConns = 1, 0
	one, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(one.Close)
	c := &town{author: newAuthor(t, one), w: worker(one), news: "https://news.example/1"}
	for _, table := range []string{"links", "claims", "subjects", "copies", "shares_default", "posts_default", "records_other", "waiting"} {
		c.execute(`ALTER TABLE ` + table + ` SET (autovacuum_enabled = off)`)
	}
	for _, table := range []string{"posts", "shares"} {
		c.execute(`SELECT ensure_partition($1, now(), '1 day')`, table)
	}
	// Every kind of statement: a post with a link, its repost, an edit, and deletions.
	round := func(n int) {
		post, again, quote, repost := fmt.Sprint("a/", n), fmt.Sprint("b/", n), fmt.Sprint("c/", n), fmt.Sprint("d/r", n)
		link := fmt.Sprint("https://news.example/", n)
		c.posts(post, "", link)
		c.posts(again, "", link)
		c.posts(quote, post)
		c.reposts(repost, post)
		c.project(repost, post, again, quote)
		c.posts(again, "", link+"/edited")
		c.project(again)
		c.deletes(quote)
		c.deletes(repost)
		c.project(quote, repost)
	}
	// read returns the blocks that a round reads.
	read := func(n int) (blocks int) {
		const sql = `
SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::int
FROM pg_statio_user_tables
WHERE relname LIKE ANY ('{links,claims,subjects,copies,shares%,posts%,records%,waiting}')`
		c.execute(`SELECT pg_stat_force_next_flush()`)
		before := count(t, one, sql)
		round(n)
		c.execute(`SELECT pg_stat_force_next_flush()`)
		return count(t, one, sql) - before
	}
	for n := range 10 {
		round(n)
	}
	few := read(100)
	const rows = 60_000
	c.execute(`INSERT INTO links (identity, url, site, first_seen) SELECT 'i' || n, 'u', 's', now()
		FROM generate_series(1, $1::int) AS n`, rows)
	c.execute(`INSERT INTO claims (link_id, hash, url, site) SELECT id, decode(md5(id::text), 'hex'), 'u', 's' FROM links WHERE url = 'u'`)
	c.execute(`INSERT INTO subjects (did, collection, rkey, links) SELECT 'did:plc:' || n, 'app.bsky.feed.post', n::text, ARRAY[n]
		FROM generate_series(1, $1::int) AS n`, rows)
	c.execute(`INSERT INTO copies (did, collection, rkey, of_did, of_collection, of_rkey)
		SELECT 'did:plc:' || n, 'app.bsky.feed.post', n::text, 'did:plc:' || n, 'nostr.1', 'x' FROM generate_series(1, $1::int) AS n`, rows)
	c.execute(`INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey)
		SELECT 'links', 'app.bsky.feed.repost', 'did:plc:' || n, n::text, 'app.bsky.feed.post', 'did:plc:x', n::text
		FROM generate_series(1, $1::int) AS n`, rows)
	c.execute(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT c, 'did:plc:' || n, n::text, '1', '', now(), '{}'
		FROM generate_series(1, $1::int) AS n, unnest('{app.bsky.feed.post,app.bsky.feed.repost}'::text[]) AS c`, rows)
	c.execute(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || id, 'app.bsky.feed.post', id::text, id, id, 'post', now() FROM links WHERE url = 'u'`)
	read(150) // discard the blocks that the inserts read
	many := read(200)
	t.Logf("%d blocks before, %d with %d rows in each table", few, many, rows)
	require.Less(t, many, 3*few, "plans read whole indexes")
}
