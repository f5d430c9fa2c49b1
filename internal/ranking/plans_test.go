package ranking

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// planned is a database on one connection: how many blocks a statement reads shows which plan it got.
type planned struct {
	*popularity
	shared int
}

const (
	plannedLinks   = 15000 // each shared by two accounts
	plannedPopular = 7500  // sharers of link 2, and links that did:plc:busy shares
)

// newPlanned fills the tables. Few links are popular, one account is busy, and most links and accounts are neither. The
// statistics are none at all, or those of a moment when the tables had few rows.
func newPlanned(t *testing.T, statistics bool) *planned {
	t.Helper()
	config := schematest.New(t).Config()
	config.MaxConns, config.MinConns = 1, 0
	config.ConnConfig.RuntimeParams["plan_cache_mode"] = "auto"
	one, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(one.Close)
	p := &planned{popularity: &popularity{t, one, time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)}}
	for _, table := range []string{
		"links", "claims", "shares_default", "sharers", "link_counts", "claim_votes", "pending_counts", "subjects", "accounts",
	} {
		p.exec(one, `ALTER TABLE `+table+` SET (autovacuum_enabled = off)`)
	}
	p.fill(1, plannedLinks/20, 0)
	p.recount()
	if statistics {
		p.exec(one, `ANALYZE`)
	}
	p.fill(plannedLinks/20+1, plannedLinks, plannedPopular)
	p.recount()
	return p
}

// fill adds links, each with two sharers. So many accounts share link 2, and did:plc:busy shares so many links.
func (p *planned) fill(from, to, popular int) {
	p.Helper()
	p.exec(p.pool, `SET session_replication_role = replica`) // everything is counted later
	p.exec(p.pool, `
		INSERT INTO links (identity, url, site, first_seen)
		SELECT 's' || n % 500 || '.example/' || n, 'https://s' || n % 500 || '.example/' || n, 's' || n % 500 || '.example', $1
		FROM generate_series($2::int, $3::int) AS n`, p.now, from, to)
	p.exec(p.pool, `
		INSERT INTO claims (link_id, hash, url, site, title, words)
		SELECT id, decode(md5(id::text), 'hex'), url, site, 'Title ' || id, array_to_tsvector(ARRAY['title', id::text]) FROM links
		WHERE id >= $1`, from)
	// In no order, as after a while: rows of one link or account lie in many blocks.
	p.exec(p.pool, `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
SELECT s.did, 'c', 'r' || s.link, s.link, s.link, 'post', $1::timestamptz - s.age * interval '1 second', c.id
FROM (
    SELECT 'did:plc:' || l.id || n, l.id, l.id FROM links AS l CROSS JOIN generate_series(1, 2) AS n WHERE l.id >= $2::int
    UNION ALL SELECT 'did:plc:' || md5(n::text), 2, n FROM generate_series(1, $3::int) AS n
    UNION ALL SELECT 'did:plc:busy', n, n FROM generate_series(3, $3::int) AS n
) AS s (did, link, age)
JOIN claims AS c ON c.link_id = s.link
ORDER BY md5(s.did || s.link)`, p.now, from, popular)
	p.exec(p.pool, `RESET session_replication_role`)
}

func (p *planned) recount() {
	p.Helper()
	require.NoError(p, CountEverything(p.Context(), p.pool))
	for more := true; more; more = p.count().More {
	}
}

// share stores a post with a link, as a job of so many records does.
func (p *planned) share(identity, did string, keys int) {
	p.Helper()
	p.shared++
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: fmt.Sprint("p", p.shared)}
	of := link.Link{Identity: identity, URL: "https://" + identity, Site: "s.example", Card: link.Card{Title: "Title " + identity}}
	shares := []Share{{Key: k, Link: of, How: "post", SharedAt: p.now}}
	db, records := schema.NewLookups(p.pool, keys), []schema.Key{k}
	_, err := EnsureLinks(p.Context(), db, shares, p.now)
	require.NoError(p, err)
	_, _, err = FindSubjects(p.Context(), db, records)
	require.NoError(p, err)
	require.NoError(p, db.BeginFunc(p.Context(), func(tx pgx.Tx) error {
		q := &pgx.Batch{}
		(&Replacement{Records: records, Subjects: records, Before: records, Shares: shares}).Queue(q, p.now)
		return WriteShares(p.Context(), tx, q)
	}))
}

// blocks returns how many blocks of tables and indexes a function reads.
func (p *planned) blocks(do func()) int {
	p.Helper()
	read := func() (n int) {
		p.exec(p.pool, `SELECT pg_stat_force_next_flush()`)
		const sql = `SELECT sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0))::int FROM pg_statio_user_tables`
		require.NoError(p, p.pool.QueryRow(p.Context(), sql).Scan(&n))
		return n
	}
	before := read()
	do()
	return read() - before
}

// TestPlansReadFewBlocks shows that no plan reads a whole table or index where a few rows are needed: without
// statistics, with those of small tables, and with true ones.
func TestPlansReadFewBlocks(t *testing.T) {
	t.Parallel()
	for _, statistics := range []bool{false, true} {
		t.Run(fmt.Sprintf("old statistics %t", statistics), func(t *testing.T) {
			t.Parallel()
			p := newPlanned(t, statistics)
			p.measure()
			p.exec(p.pool, `VACUUM ANALYZE`)
			p.measure()
		})
	}
}

// measure does everything once. The limits are a fifth above what good plans read, which
// depends on the order of the rows.
func (p *planned) measure() {
	p.Helper()
	page := func(q Query) func() {
		return func() {
			q.At, q.Limit = p.now, 20
			if q.Window == 0 {
				q.Window = 24 * time.Hour
			}
			found, err := Trending(p.Context(), p.pool, q)
			require.NoError(p, err)
			require.False(p, found.Recounted)
			require.NotEmpty(p, found.Links)
		}
	}
	for _, step := range []struct {
		name string
		most int
		do   func()
	}{
		{"store a share of a popular link", 520, func() { p.share("s2.example/2", "did:plc:new", 1) }},
		{"read it", 1100, page(Query{Sort: Sharers})},
		{"count it", 780, func() { p.count() }},
		{"store a share of a busy account", 520, func() { p.share(fmt.Sprint("new.example/", p.shared), "did:plc:busy", 1) }},
		{"store another one with others", 520, func() { p.share(fmt.Sprint("new.example/", p.shared), "did:plc:busy", 1000) }},
		{"count both", 640, func() { p.count() }},
		{"hide an account", 25, func() {
			p.exec(p.pool, `INSERT INTO accounts (did, status) VALUES ($1, 'takendown')`, fmt.Sprintf("did:plc:%d1", 100+p.shared))
		}},
		{"count without it", 640, func() { p.count() }},
		{"by sharers", 840, page(Query{Sort: Sharers})},
		{"by speed", 840, page(Query{Sort: Speed})},
		{"the newest", 950, page(Query{Sort: Newest})},
		{"of a site", 1050, page(Query{Sort: Sharers, Site: "s7.example"})},
		{"of an account", 310, page(Query{Sort: Sharers, By: "did:plc:1001"})},
		{"with the word of a popular link", 450, page(Query{Sort: Sharers, Text: "2"})},
		{"with a word", 770, page(Query{Sort: Sharers, Text: "1234"})},
		{"with the word of all links", 1720, page(Query{Sort: Sharers, Text: "title"})},
		{"the newest with it", 1500, page(Query{Sort: Newest, Text: "title"})},
		{"with a text of most addresses", 2600, page(Query{Sort: Sharers, Text: ".example/1"})},
		{"the newest with it", 1900, page(Query{Sort: Newest, Text: ".example/1"})},
		{"expire claims", 120, func() {
			_, err := ExpireClaims(p.Context(), p.pool, 100, 20)
			require.NoError(p, err)
		}},
		{"find links without shares", 110, func() {
			_, err := FindUnshared(p.Context(), p.pool, LinkRule{Now: p.now}, 100, 20)
			require.NoError(p, err)
		}},
	} {
		if read := p.blocks(step.do); read > step.most {
			p.Errorf("%s: %d blocks read, %d expected at most", step.name, read, step.most)
		}
	}
}
