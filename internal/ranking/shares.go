// Package ranking stores the links that accounts share, with their cards, and ranks
// them. It owns the tables links and shares.
package ranking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// Share is one link that a record itself contains, with the card in the record.
type Share struct {
	schema.Key
	link.Link
	How      string // post
	SharedAt time.Time
	StoredAt time.Time // when the record was first stored; zero: now
	Text     string    // of the record
}

func linkOf(s Share) link.Link { return s.Link }

// RecordsWithShares returns those records that have shares. LATERAL and LIMIT force one index
// lookup per record, whatever the planner assumes.
func RecordsWithShares(ctx context.Context, db schema.DB, keys []schema.Key) ([]schema.Key, error) {
	const sql = `
SELECT k.collection, k.did, k.rkey
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (SELECT FROM shares AS s
    WHERE s.did = k.did AND s.collection = k.collection AND s.rkey = k.rkey AND s.rkey BETWEEN $4 AND $5 LIMIT 1) AS s`
	if len(keys) == 0 {
		return nil, nil
	}
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	// A prepared statement may get a generic plan, which locks all partitions.
	return schema.All(ctx, db, "find the records with shares", pgx.RowToStructByPos[schema.Key], sql,
		pgx.QueryExecModeCacheDescribe, collection, did, rkey, slices.Min(rkey), slices.Max(rkey))
}

// ReplaceShares replaces the shares of records that share through no subject. The caller must have
// locked the records. It returns schema.ErrBusy if one of the links expired or was merged
// meanwhile: try again.
func ReplaceShares(ctx context.Context, tx pgx.Tx, records []schema.Key, shares []Share, now time.Time) error {
	if _, err := EnsureLinks(ctx, tx, shares, now); err != nil {
		return err
	}
	q := &pgx.Batch{}
	(&Replacement{Records: records, Subjects: records, Before: records, Shares: shares}).Queue(q, now)
	return WriteShares(ctx, tx, q)
}

// WriteShares sends a batch with a queued Replacement. It returns schema.ErrBusy if one
// of the links expired or was merged meanwhile: try again.
func WriteShares(ctx context.Context, tx pgx.Tx, q *pgx.Batch) error {
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("write shares: %w", expiredMeanwhile(err))
	}
	return nil
}

// Replacement holds the new shares of some records. They replace all earlier shares of these
// records.
type Replacement struct {
	Records  []schema.Key // all of them
	Before   []schema.Key // those that may have shares
	Subjects []schema.Key // those that contain links, or did
	Shares   []Share
	Through  []Through
	Copies   []BridgedCopy // the records that are copies

	Changed bool // set when the queue was sent: a subject has other links than before
}

// Queue queues the statements that write the replacement. They add and delete shares, and give the
// subjects among the records their new links. The caller must have locked the records, and have
// added the links with EnsureLinks. If a link is missing, WriteShares returns schema.ErrBusy.
func (r *Replacement) Queue(q *pgx.Batch, now time.Time) {
	queueLock(q, r.Shares)
	queueCopies(q, r.Records, r.Copies)
	r.queueShares(q, column(r.Shares, func(s Share) []byte { return claimOf(s.Link).hash }), now)
	if len(r.Subjects) > 0 {
		collection, did, rkey := schema.Columns(len(r.Subjects), func(i int) schema.Key { return r.Subjects[i] })
		q.Queue(syncSubjects, collection, did, rkey, slices.Min(rkey), slices.Max(rkey)).Exec(func(done pgconn.CommandTag) error {
			r.Changed = done.RowsAffected() > 0
			return nil
		})
	}
}

// insertLinks adds the missing links, ordered by identity, and blocks those that a block concerns.
// LIMIT forces index lookups: without statistics, a scan of the whole table for each link looks
// cheap.
const insertLinks = `
WITH added AS (
    INSERT INTO links (identity, url, site, first_seen)
    SELECT i.identity, i.url, i.site, $4
    FROM unnest($1::text[], $2::text[], $3::text[]) AS i (identity, url, site)
    WHERE (SELECT l.id FROM links AS l WHERE l.identity = i.identity LIMIT 1) IS NULL
    ORDER BY i.identity
    ON CONFLICT (identity) DO NOTHING
    RETURNING id, identity, url
)
INSERT INTO blocked_links (link_id, block_id)
SELECT a.id, b.id FROM added AS a JOIN blocks AS b ON blocks_link(b, a.identity, a.url)`

// lockLinks locks the links of shares, in the order of their identities, so that ExpireClaims
// cannot delete a claim that a share is about to name. The shares would take the same locks a
// moment later.
const lockLinks = `
SELECT FROM unnest($1::text[]) AS i (identity)
CROSS JOIN LATERAL (SELECT FROM links AS l WHERE l.identity = i.identity LIMIT 1 FOR KEY SHARE OF l) AS l`

func queueLock(q *pgx.Batch, shares []Share) {
	if links := distinctLinks(column(shares, linkOf)); len(links) > 0 {
		q.Queue(lockLinks, column(links, identityOf))
	}
}

// EnsureLinks adds the missing links and claims. It uses a short transaction of its own: when a
// popular link is new, all transactions that share it wait for the one that adds it. short reports
// whether a new link belongs to a shortener. It returns schema.ErrBusy if a link expired meanwhile:
// try again.
func EnsureLinks(ctx context.Context, db schema.Batcher, shares []Share, now time.Time) (short bool, err error) {
	if len(shares) == 0 {
		return false, nil
	}
	q := &pgx.Batch{}
	links := column(shares, linkOf)
	queueLinks(q, links, now)
	queueShortLinks(q, links, &short)
	queueClaims(q, links)
	if err := db.SendBatch(ctx, q).Close(); err != nil {
		return false, fmt.Errorf("add links: %w", expiredMeanwhile(err))
	}
	return short, nil
}

// expiredMeanwhile adds schema.ErrBusy to the error of a link that was deleted, merged or split
// before its id was looked up, or afterwards.
func expiredMeanwhile(err error) error {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (refused.Code == "23503" || refused.Code == "23502" && (refused.ColumnName == "link_id" || refused.ColumnName == "named_id")) {
		return errors.Join(schema.ErrBusy, err)
	}
	return err
}

// column returns a value of each element, as a column.
func column[T, V any](all []T, of func(T) V) pgtype.FlatArray[V] {
	values := make(pgtype.FlatArray[V], len(all))
	for i, each := range all {
		values[i] = of(each)
	}
	return values
}

func identityOf(l link.Link) string { return l.Identity }

// distinctLinks returns one spelling per link, sorted by identity, so that concurrent transactions
// lock links in the same order.
func distinctLinks(links []link.Link) []link.Link {
	links = slices.SortedFunc(slices.Values(links), func(a, b link.Link) int {
		return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(b.URL, a.URL))
	})
	return slices.CompactFunc(links, func(a, b link.Link) bool { return a.Identity == b.Identity })
}

func queueLinks(q *pgx.Batch, links []link.Link, now time.Time) {
	if links = distinctLinks(links); len(links) > 0 {
		url := column(links, func(l link.Link) string { return l.URL })
		site := column(links, func(l link.Link) string { return l.Site })
		q.Queue(insertLinks, column(links, identityOf), url, site, now)
	}
}

// insertThrough adds shares through subjects. It omits links that the record itself contains.
const insertThrough = `
INSERT INTO shares
    AS s (did, collection, rkey, link_id, named_id, how, shared_at, stored_at, subject_did, subject_rkey, subject_collection, words, copied)
SELECT i.did, i.collection, i.rkey, l.counts_as, l.id, i.how, i.shared_at, i.stored_at, i.subject_did, i.subject_rkey,
    i.subject_collection, i.words::tsvector,
       ` + isCopy + `
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
    $9::timestamptz[], $10::text[], $11::text[])
     AS i (collection, did, rkey, link_id, subject_did, subject_rkey, how, shared_at, stored_at, words, subject_collection)
CROSS JOIN LATERAL (SELECT l.id, l.counts_as FROM links AS l WHERE l.id = i.link_id LIMIT 1) AS l
ON CONFLICT (did, collection, rkey, named_id) DO UPDATE
SET how = excluded.how, shared_at = excluded.shared_at, words = excluded.words, copied = excluded.copied
WHERE s.subject_did IS NOT NULL
    AND (s.how, s.shared_at, s.words, s.copied) IS DISTINCT FROM (excluded.how, excluded.shared_at, excluded.words, excluded.copied)`

// isCopy is true if the record of i is a copy. LIMIT forces an index lookup.
const isCopy = `(SELECT true FROM copies AS c WHERE c.did = i.did AND c.collection = i.collection AND c.rkey = i.rkey LIMIT 1) IS NOT NULL`

// insertShares adds shares. An expired link has no id or no claim here, and the share is refused.
const insertShares = `
INSERT INTO shares
    AS s (did, collection, rkey, link_id, named_id, how, shared_at, stored_at, claim_id, words, gift, subject_collection, copied)
SELECT i.did, i.collection, i.rkey, CASE WHEN c.id IS NOT NULL THEN l.counts_as END, l.id, i.how, i.shared_at, i.stored_at, c.id,
    i.words::tsvector, i.gift, NULL,
       ` + isCopy + `
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[], $8::bytea[],
    $9::text[], $10::text[])
     AS i (collection, did, rkey, identity, how, shared_at, stored_at, hash, words, gift)
LEFT JOIN LATERAL (SELECT l.id, l.counts_as FROM links AS l WHERE l.identity = i.identity LIMIT 1) AS l ON true
LEFT JOIN LATERAL (SELECT c.id FROM claims AS c WHERE c.link_id = l.id AND c.hash = i.hash LIMIT 1) AS c ON true
ON CONFLICT (did, collection, rkey, named_id) DO UPDATE
SET how = excluded.how, shared_at = excluded.shared_at, subject_did = NULL, subject_collection = NULL, subject_rkey = NULL,
    claim_id = excluded.claim_id, words = excluded.words, gift = excluded.gift, copied = excluded.copied
WHERE (s.how, s.shared_at, s.claim_id, s.words, s.gift, s.copied)
      IS DISTINCT FROM (excluded.how, excluded.shared_at, excluded.claim_id, excluded.words, excluded.gift, excluded.copied)`

func (r *Replacement) queueShares(q *pgx.Batch, claims pgtype.FlatArray[[]byte], now time.Time) {
	n := len(r.Shares)
	collection, did, rkey := schema.Columns(n, func(i int) schema.Key { return r.Shares[i].Key })
	identity, how := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	at, stored := make(pgtype.FlatArray[time.Time], n), make(pgtype.FlatArray[time.Time], n)
	said, gifts := make(pgtype.FlatArray[*string], n), make(pgtype.FlatArray[*string], n)
	for i := range r.Shares {
		s := &r.Shares[i]
		if i > 0 && s.Key == r.Shares[i-1].Key && s.Text == r.Shares[i-1].Text {
			said[i] = said[i-1]
		} else {
			said[i] = words.Vector(s.Text)
		}
		identity[i], how[i], at[i], stored[i] = s.Identity, s.How, s.SharedAt, s.StoredAt
		if s.StoredAt.IsZero() {
			stored[i] = now
		}
		if s.Gift != "" {
			gifts[i] = &s.Gift
		}
	}
	t := newThroughColumns(r.Through)
	// LATERAL and LIMIT force one index lookup per record: most of them have nothing to
	// remove.
	const remove = `
DELETE FROM shares AS s
USING (
    SELECT s.did, s.collection, s.rkey, s.named_id
    FROM unnest($1::text[], $2::text[], $3::text[]) AS r (collection, did, rkey)
    CROSS JOIN LATERAL (
        SELECT s.did, s.collection, s.rkey, s.named_id, s.subject_did, s.subject_collection, s.subject_rkey FROM shares AS s
        WHERE s.did = r.did AND s.collection = r.collection AND s.rkey = r.rkey AND s.rkey BETWEEN $8 AND $9
        LIMIT 1000
    ) AS s
    WHERE NOT EXISTS (
        SELECT FROM unnest($4::text[], $5::text[], $6::text[], $7::text[]) AS i (collection, did, rkey, identity)
        JOIN links AS l ON l.identity = i.identity
        WHERE i.did = s.did AND i.collection = s.collection AND i.rkey = s.rkey AND l.id = s.named_id
    )
      AND NOT EXISTS (
        SELECT FROM unnest($10::text[], $11::text[], $12::text[], $13::bigint[], $14::text[], $15::text[], $16::text[])
                 AS t (collection, did, rkey, link_id, subject_did, subject_rkey, subject_collection)
        WHERE t.did = s.did AND t.collection = s.collection AND t.rkey = s.rkey AND t.link_id = s.named_id
          AND t.subject_did = s.subject_did AND t.subject_rkey = s.subject_rkey AND t.subject_collection = s.subject_collection
    )
) AS gone
WHERE s.did = gone.did AND s.collection = gone.collection AND s.rkey = gone.rkey AND s.named_id = gone.named_id`
	if len(r.Before) > 0 {
		oldCollection, oldDID, oldRkey := schema.Columns(len(r.Before), func(i int) schema.Key { return r.Before[i] })
		sql := remove
		if len(r.Before) > schema.FewKeys { // see schema.Lookups
			sql += ` AND s.rkey BETWEEN $8 AND $9`
		}
		q.Queue(sql, oldCollection, oldDID, oldRkey, collection, did, rkey, identity, slices.Min(oldRkey), slices.Max(oldRkey),
			t.collection, t.did, t.rkey, t.link, t.subjectDID, t.subjectRkey, t.subjectCollection)
	}
	if n > 0 {
		q.Queue(insertShares, collection, did, rkey, identity, how, at, stored, claims, said, gifts)
	}
	if len(r.Through) > 0 {
		q.Queue(insertThrough, t.collection, t.did, t.rkey, t.link, t.subjectDID, t.subjectRkey, t.how, t.at, t.stored, t.said,
			t.subjectCollection)
	}
}

// throughColumns holds shares through subjects as columns, one row per link.
type throughColumns struct {
	collection, did, rkey, how                 pgtype.FlatArray[string]
	subjectDID, subjectCollection, subjectRkey pgtype.FlatArray[string]
	link                                       pgtype.FlatArray[int64]
	at, stored                                 pgtype.FlatArray[time.Time]
	said                                       pgtype.FlatArray[*string]
}

func newThroughColumns(all []Through) (c throughColumns) {
	for i := range all {
		t := &all[i]
		said := words.Vector(t.Text)
		for _, link := range t.Links {
			c.collection, c.did, c.rkey = append(c.collection, t.Collection), append(c.did, t.DID), append(c.rkey, t.Rkey)
			c.subjectDID, c.subjectCollection, c.subjectRkey = append(c.subjectDID, t.Subject.DID), append(c.subjectCollection,
				t.Subject.Collection), append(c.subjectRkey, t.Subject.Rkey)
			c.link, c.how = append(c.link, link), append(c.how, t.How)
			c.at, c.stored, c.said = append(c.at, t.SharedAt), append(c.stored, t.StoredAt), append(c.said, said)
		}
	}
	return c
}
