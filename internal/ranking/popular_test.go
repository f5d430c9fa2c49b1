package ranking

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// popularity is a database with a link shared by thousands, or an account that shares thousands of
// links.
type popularity struct {
	*testing.T
	pool *pgxpool.Pool
	now  time.Time
}

func (p *popularity) exec(db schema.DB, sql string, args ...any) {
	p.Helper()
	_, err := db.Exec(p.Context(), sql, args...)
	require.NoError(p, err)
}

func (p *popularity) count() Counted {
	p.Helper()
	done, err := Count(p.Context(), p.pool, p.now)
	require.NoError(p, err)
	return done
}

// sharers returns the displayed number of sharers of a link, corrected from the counts.
func (p *popularity) sharers(url string) int {
	p.Helper()
	page, err := Trending(p.Context(), p.pool, Query{At: p.now, Window: time.Hour, Limit: 5})
	require.NoError(p, err)
	require.False(p, page.Recounted)
	for _, l := range page.Links {
		if l.URL == url {
			return l.Sharers
		}
	}
	return 0
}

// pending runs a statement on a new connection, and returns how many rows it writes for the
// counter. It requires that none of them is used by other writers.
func (p *popularity) pending(sql string) (rows int) {
	p.Helper()
	conn, err := pgx.ConnectConfig(p.Context(), p.pool.Config().ConnConfig)
	require.NoError(p, err)
	defer conn.Close(p.Context()) // the connection is no longer needed
	tx, err := conn.Begin(p.Context())
	require.NoError(p, err)
	p.exec(tx, sql)
	found, err := tx.Query(p.Context(), `
		SELECT relname::text, (n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_xact_user_tables
		WHERE n_tup_ins + n_tup_upd + n_tup_del > 0`)
	require.NoError(p, err)
	var table string
	var n int
	_, err = pgx.ForEachRow(found, []any{&table, &n}, func() error {
		require.NotContains(p, []string{"links", "sharers", "link_counts", "count_state"}, table)
		if table == "pending_counts" {
			rows = n
		}
		return nil
	})
	require.NoError(p, err)
	require.NoError(p, tx.Commit(p.Context()))
	return rows
}

// check compares the counter's tables, and what readers see, with the shares.
func (p *popularity) check(limit int) {
	p.Helper()
	h := &history{pool: p.pool}
	h.check(p.T)
	h.compare(p.T,
		[]Query{{At: p.now, Window: time.Hour, Sort: Sharers, Limit: limit}, {At: p.now, Window: 24 * time.Hour, Sort: Speed, Limit: limit}})
}

// newPopularity creates a number of links, all shared by did:plc:busy a minute ago.
func newPopularity(t *testing.T, links int) *popularity {
	t.Helper()
	p := &popularity{t, schematest.New(t), time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)}
	p.exec(p.pool, `
		INSERT INTO links (identity, url, site, first_seen) SELECT n::text, n::text, 's', $1 FROM generate_series(1, $2::int) AS n`, p.now, links)
	p.exec(p.pool, `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) SELECT 'did:plc:busy', 'c', id::text, id, id, 'post', $1
		FROM links`, p.now.Add(-time.Minute))
	return p
}

// TestWriterDoesTheSameForAPopularLinkOrAccount hides an account that shares thousands of links,
// and shares a link of thousands once more. Each transaction writes one row for the counter and
// none that others use, and the next request includes the change.
func TestWriterDoesTheSameForAPopularLinkOrAccount(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const many = 4000
	p := newPopularity(t, many)
	p.exec(p.pool, `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'c', 'r', 1, 1, 'post', $1::timestamptz - n * interval '1 microsecond' FROM generate_series(2, $2::int) AS n`,
		p.now.Add(-time.Minute), many)
	p.count()
	require.Equal(t, many, p.sharers("1"))

	require.Equal(t, 1, p.pending(`INSERT INTO accounts (did, status) VALUES ('did:plc:busy', 'takendown')`))
	require.Equal(t, many-1, p.sharers("1"), "the request must correct thousands of links")
	require.Equal(t, many, p.count().Sharers)
	require.Equal(t, 1, p.pending(`UPDATE accounts SET status = 'active' WHERE did = 'did:plc:busy'`))
	require.Equal(t, many, p.sharers("1"))
	require.Equal(t, 1, p.pending(`DELETE FROM shares WHERE did = 'did:plc:2'`))
	require.Equal(t, many-1, p.sharers("1"))
	require.Equal(t, 0, p.pending(`UPDATE accounts SET handle = 'busy.example' WHERE did = 'did:plc:busy'`),
		"a new handle must not change what counts")

	// A step of the counter does not read either of them from the first share on.
	p.count()
	p.exec(p.pool,
		`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) VALUES ('did:plc:new', 'c', 'r', 1, 1, 'post', $1)`, p.now)
	require.Equal(t, Counted{Pending: 1, Sharers: 1, Links: 1}, p.count())
	p.check(2 * many)
}

// TestWriterDoesTheSameForAPopularRecord covers a record that thousands of records name as their
// original, and one that thousands repost or quote. A writer that deletes, edits or stores such a
// record writes one row for all of them, and the next request includes the change.
func TestWriterDoesTheSameForAPopularRecord(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const many = 1000
	p := newPopularity(t, 3)
	p.exec(p.pool, `
		INSERT INTO copies (did, collection, rkey, of_did, of_collection, of_rkey)
		SELECT 'did:nostr:' || n, 'nostr.1', 'r', 'did:plc:busy', 'c', '2' FROM generate_series(1, $1::int) AS n`, many)
	p.exec(p.pool, `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, copied)
		SELECT 'did:nostr:' || n, 'nostr.1', 'r', 2, 2, 'post', $1::timestamptz + n * interval '1 microsecond', true
		FROM generate_series(1, $2::int) AS n`, p.now.Add(-time.Minute), many)
	p.exec(p.pool, `INSERT INTO subjects (did, collection, rkey, links) VALUES ('did:plc:author', 'app.bsky.feed.post', 's', '{3}')`)
	p.exec(p.pool, `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, subject_did, subject_collection, subject_rkey)
SELECT 'did:plc:' || n, 'c', 'r', 3, 3, 'repost', $1::timestamptz + n * interval '1 microsecond', 'did:plc:author',
    'app.bsky.feed.post', 's' FROM generate_series(1, $2::int) AS n`, p.now.Add(-time.Minute), many)
	p.count()
	step := func(rows int, sql string, copied, through int) {
		t.Helper()
		require.Equal(t, rows, p.pending(sql), sql)
		require.Equal(t, []int{copied, through}, []int{p.sharers("2"), p.sharers("3")}, sql)
		p.count()
		require.Equal(t, []int{copied, through}, []int{p.sharers("2"), p.sharers("3")}, sql)
	}
	step(0, `SELECT`, 1, many+1)
	step(3, `UPDATE shares SET link_id = 1, named_id = 1 WHERE did = 'did:plc:busy' AND rkey = '2'`, many, many+1)
	step(3, `UPDATE shares SET link_id = 2, named_id = 2 WHERE did = 'did:plc:busy' AND rkey = '2'`, 1, many+1)
	step(2, `DELETE FROM shares WHERE did = 'did:plc:busy' AND rkey = '2'`, many, many+1)
	step(2, `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		VALUES ('did:plc:busy', 'c', '2', 2, 2, 'post', '2026-07-04 12:00Z')`, 1, many+1)
	step(1, `DELETE FROM subjects`, 1, 1)
	step(1, `INSERT INTO subjects (did, collection, rkey, links) VALUES ('did:plc:author', 'app.bsky.feed.post', 's', '{3}')`, 1, many+1)
	require.NoError(t, RecountCopies(t.Context(), p.pool,
		[]schema.Key{{Collection: "c", DID: "did:plc:busy", Rkey: "2"}, {Collection: "c", DID: "did:plc:busy", Rkey: "3"}}))
	require.Equal(t, 1, p.count().Pending)
	p.check(many)
}

// TestLostVoteReadsTheOthersOnlyIfItWasTheEarliest covers an account that shares a popular link
// again: its vote is withdrawn and cast anew. The thousands of other votes are not read for that.
func TestLostVoteReadsTheOthersOnlyIfItWasTheEarliest(t *testing.T) {
	t.Parallel()
	const many = 2000
	p := newPopularity(t, 1)
	p.exec(p.pool, historyClaims, nil)
	const share = `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
		SELECT 'did:plc:' || n, 'c', $1, 1, 1, 'post', $2::timestamptz + n * interval '1 microsecond', 11
		FROM generate_series($3::int, $4::int) AS n`
	p.exec(p.pool, share, "r", p.now.Add(-time.Minute), 1, many)
	p.count()
	p.exec(p.pool, `VACUUM ANALYZE`)
	read := func(account int) (rows int) {
		t.Helper()
		tx, err := p.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.Background()) // rolled back
		s, err := readState(t.Context(), tx)
		require.NoError(t, err)
		link, did := int64(1), fmt.Sprintf("did:plc:%d", account)
		var asked pending
		asked.add(&link, &did, nil, nil)
		p.exec(tx, `UPDATE shares SET claim_id = 13 WHERE did = $1`, did) // another title
		c, err := readChangesAndVotes(t.Context(), tx, asked, s)
		require.NoError(t, err)
		count := func() (n int) {
			require.NoError(t, tx.QueryRow(t.Context(), `SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'sharers'`).Scan(&n))
			return n
		}
		before := count()
		sums, err := sumVotes(t.Context(), tx, c.ballots())
		require.NoError(t, err)
		require.Equal(t, many-1, sums[claimed{11, 1}].title.n)
		earliest := 1
		if account == 1 {
			earliest = 2
		}
		require.Equal(t, fmt.Sprintf("at://did:plc:%d/c/r", earliest), sums[claimed{11, 1}].title.uri)
		return count() - before
	}
	require.Zero(t, read(many/2))
	require.Positive(t, read(1))
}

// TestPageReadsTheLatestSharersOfAPopularLink shows that a page does not read all sharers, though
// most links have few.
func TestPageReadsTheLatestSharersOfAPopularLink(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const many, others = 4000, 4000
	p := newPopularity(t, others)
	const share = `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) SELECT 'did:plc:' || n, 'c', `
	p.exec(p.pool, share+`'r', 1, 1, 'post', $1::timestamptz - n * interval '1 microsecond' FROM generate_series(2, $2::int) AS n`,
		p.now.Add(-time.Minute), many)
	p.exec(p.pool, share+`id::text, id, id, 'post', $1::timestamptz - random() * interval '50 minutes' FROM links, generate_series(1,`+
		` 2) AS n WHERE id > 1 ORDER BY random()`, p.now.Add(-2*time.Minute))
	for more := true; more; more = p.count().More {
	}
	p.exec(p.pool, `CREATE INDEX shuffled ON sharers (md5(did || link_id::text))`) // the physical order that the rows have after a while
	p.exec(p.pool, `CLUSTER sharers USING shuffled`)
	p.exec(p.pool, `DROP INDEX shuffled`)
	p.exec(p.pool, `VACUUM ANALYZE`)
	db := &fetching{Pool: p.pool}
	page, err := Trending(t.Context(), db, Query{At: p.now, Window: time.Hour, Limit: 5})
	require.NoError(t, err)
	require.Equal(t, many, page.Links[0].Sharers)
	require.Equal(t, []string{"did:plc:busy", "did:plc:2", "did:plc:3"}, page.Links[0].SharedBy)
	require.Less(t, db.rows, 50)
}

// fetching counts the rows of sharers, and of the shares, that its last transaction fetched.
type fetching struct {
	*pgxpool.Pool
	rows, shares int
}

func (f *fetching) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := f.Pool.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	before, err := fetched(ctx, tx)
	return fetchingTx{tx, f, before}, err
}

// fetched returns how many rows of sharers and of shares a connection has fetched. Only differences
// are meaningful.
func fetched(ctx context.Context, tx pgx.Tx) (n [2]int, err error) {
	const sql = `
SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FILTER (WHERE relname = 'sharers')::int,
    sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FILTER (WHERE relname ~ '^shares_')::int
FROM pg_stat_xact_user_tables`
	err = tx.QueryRow(ctx, sql).Scan(&n[0], &n[1])
	return n, err
}

type fetchingTx struct {
	pgx.Tx
	to     *fetching
	before [2]int
}

func (t fetchingTx) Rollback(ctx context.Context) error {
	after, err := fetched(ctx, t)
	t.to.rows, t.to.shares = after[0]-t.before[0], after[1]-t.before[1]
	return errors.Join(err, t.Tx.Rollback(ctx))
}

// TestPageOfFewLinksReadsNoSharersOfThePopularOnes filters by a site, by an account and by a text,
// which each match a popular link and others.
func TestPageOfFewLinksReadsNoSharersOfThePopularOnes(t *testing.T) {
	t.Parallel()
	const many, claims = 5000, 500
	p := newPopularity(t, many)
	p.exec(p.pool, `UPDATE links SET site = 'few' WHERE id <= 20`)
	p.exec(p.pool, `
		INSERT INTO claims (id, link_id, hash, url, site, title, words) OVERRIDING SYSTEM VALUE
		SELECT n, 1, decode(md5(n::text), 'hex'), 'u', 's', 'heron', 'heron:1' FROM generate_series(1, $1::int) AS n`, 2*claims)
	// Half of the claims no longer have a share.
	p.exec(p.pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
SELECT 'did:plc:' || n, 'c', 'r', 1, 1, 'post', $1::timestamptz - n * interval '1 second', 1 + n % $2::int
FROM generate_series(2, $3::int) AS n`, p.now.Add(-time.Minute), claims, many)
	p.exec(p.pool, `
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:2', 'c', n::text, n, n, 'post', $1::timestamptz FROM generate_series(2, 20) AS n`, p.now.Add(-time.Minute))
	for more := true; more; more = p.count().More {
	}
	p.exec(p.pool, `ANALYZE`)
	for _, sort := range []Sort{Sharers, Speed, Newest} {
		for _, q := range []Query{{Site: "few"}, {By: "did:plc:2"}, {Text: "heron"}} {
			q.At, q.Window, q.Sort, q.Limit, q.Bare = p.now, 24*time.Hour, sort, 50, true
			db := &fetching{Pool: p.pool}
			page, err := Trending(t.Context(), db, q)
			require.NoError(t, err)
			require.NotEmpty(t, page.Links)
			require.Less(t, db.rows, 200, "%+v", q)
			require.Less(t, db.shares, 2*many, "%+v", q)
		}
	}
}
