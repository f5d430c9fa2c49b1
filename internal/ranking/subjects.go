package ranking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/schema"
)

// A subject is a record that others repost or quote, usually a post. Its row in subjects names the
// links that the post itself contains. The row of a stored post is made from the post's own shares;
// the row of a stranger's post is fetched. A share through a subject counts only while the row
// names its link, so deleting one row ends the shares of everybody who reposted the post.

// SubjectInterval is how often the post of an account that is not followed is fetched again while
// its link is in a ranking: no stream delivers its deletion.
const SubjectInterval = 15 * time.Minute

// Through is a share through a reposted or quoted post.
type Through struct {
	schema.Key
	How      string // quote or repost
	SharedAt time.Time
	StoredAt time.Time // when the record was first stored
	Subject  schema.Key
	Links    []int64
	Text     string // of a quoting post
}

// send runs the queries of a batch in one round trip.
func send(ctx context.Context, db schema.Batcher, q *pgx.Batch) error {
	if q.Len() == 0 {
		return nil
	}
	return db.SendBatch(ctx, q).Close()
}

// database is a pool, or a transaction.
type database interface {
	schema.DB
	schema.Batcher
}

// syncSubjects gives the subjects among the records the links of their own shares. A
// subject that was fetched before its author was followed is now stored.
const syncSubjects = `
UPDATE subjects AS u
SET links = n.links, shown = true, fetched_at = NULL, fetch_at = NULL, tries = 0
FROM (
    SELECT u.did, u.collection, u.rkey,
           ARRAY(SELECT s.named_id FROM shares AS s
                 WHERE s.did = u.did AND s.collection = u.collection AND s.rkey = u.rkey
                     AND s.rkey BETWEEN $4 AND $5 AND s.subject_did IS NULL ORDER BY s.named_id) AS links
    FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
    CROSS JOIN LATERAL (
        SELECT u.did, u.collection, u.rkey FROM subjects AS u
        WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey LIMIT 1
    ) AS u
) AS n
WHERE u.did = n.did AND u.collection = n.collection AND u.rkey = n.rkey
  AND (u.links <> n.links OR u.fetched_at IS NOT NULL OR u.fetch_at IS NOT NULL)`

// SyncSubjects repeats the subject updates of Replacement after its commit, because FindSubjects
// may have added a row made from the earlier shares. It returns the subjects whose links have
// changed.
func SyncSubjects(ctx context.Context, db schema.DB, records []schema.Key) (changed []schema.Key, err error) {
	if len(records) == 0 {
		return nil, nil
	}
	collection, did, rkey := schema.Columns(len(records), func(i int) schema.Key { return records[i] })
	return schema.All(ctx, db, "update the subjects", pgx.RowToStructByPos[schema.Key], syncSubjects+` RETURNING u.collection, u.did, u.rkey`,
		pgx.QueryExecModeCacheDescribe, collection, did, rkey, slices.Min(rkey), slices.Max(rkey))
}

// ChangedSubject is a subject whose reposts and quotes must be projected again.
type ChangedSubject struct {
	ID int64
	schema.Key
	Linked bool // it has links
}

// ChangedSubjects returns the first changed subjects.
func ChangedSubjects(ctx context.Context, db schema.DB, limit int) ([]ChangedSubject, error) {
	const sql = `
SELECT c.id, c.collection, c.did, c.rkey,
       EXISTS (SELECT FROM subjects AS u WHERE u.did = c.did AND u.collection = c.collection AND u.rkey = c.rkey AND u.links <> '{}')
       OR EXISTS (SELECT FROM shares AS s WHERE s.did = c.did AND s.collection = c.collection AND s.rkey = c.rkey AND s.subject_did IS NULL)
FROM changed_subjects AS c
ORDER BY c.id LIMIT $1`
	return schema.All(ctx, db, "read the changed subjects", func(row pgx.CollectableRow) (c ChangedSubject, err error) {
		err = row.Scan(&c.ID, &c.Collection, &c.DID, &c.Rkey, &c.Linked)
		return c, err
	}, sql, limit)
}

// AddChangedSubjects makes Weir project the reposts and quotes of subjects again.
func AddChangedSubjects(ctx context.Context, db schema.DB, subjects []schema.Key) error {
	const sql = `INSERT INTO changed_subjects (collection, did, rkey) SELECT * FROM unnest($1::text[], $2::text[], $3::text[])`
	collection, did, rkey := schema.Columns(len(subjects), func(i int) schema.Key { return subjects[i] })
	return schema.Exec(ctx, db, "have the reposts of posts projected again", sql, collection, did, rkey)
}

// SharesThrough returns at most limit records that share something through a subject,
// sorted by account, after a key.
func SharesThrough(ctx context.Context, db schema.DB, subject, after schema.Key, limit int) ([]schema.Key, error) {
	const sql = `
SELECT DISTINCT s.collection, s.did, s.rkey
FROM (
    SELECT s.did, s.collection, s.rkey FROM shares AS s
    WHERE s.subject_did = $1 AND s.subject_rkey = $2 AND s.subject_collection = $7 AND (s.did, s.collection, s.rkey) > ($3, $4, $5)
    ORDER BY s.did, s.collection, s.rkey
    LIMIT $6
) AS s
ORDER BY s.did, s.collection, s.rkey`
	return schema.All(ctx, db, "read the shares through a subject", pgx.RowToStructByPos[schema.Key], sql, subject.DID,
		subject.Rkey, after.DID, after.Collection, after.Rkey, limit, subject.Collection)
}

// DropDeadShares deletes those of the records' shares through a subject whose link the subject does
// not name, if the record has expired. A stored record is projected again instead: if its shares
// were deleted here, it would not be found when the subject changes again.
func DropDeadShares(ctx context.Context, db schema.DB, subject schema.Key, records []schema.Key) error {
	const sql = `
DELETE FROM shares AS s
USING unnest($3::text[], $4::text[], $5::text[]) AS k (collection, did, rkey)
WHERE s.did = k.did AND s.collection = k.collection AND s.rkey = k.rkey AND s.subject_did = $1 AND s.subject_rkey = $2
    AND s.subject_collection = $6
  AND NOT EXISTS (
      SELECT FROM subjects AS u
      WHERE u.did = $1 AND u.collection = $6 AND u.rkey = $2 AND s.named_id = ANY (u.links)
  )
  AND NOT EXISTS (SELECT FROM records AS r WHERE r.did = s.did AND r.collection = s.collection AND r.rkey = s.rkey)`
	collection, did, rkey := schema.Columns(len(records), func(i int) schema.Key { return records[i] })
	return schema.Exec(ctx, db, fmt.Sprintf("drop the shares through %s/%s", subject.DID, subject.Rkey), sql, subject.DID,
		subject.Rkey, collection, did, rkey, subject.Collection)
}

// DropChangedSubject removes a changed subject that has been processed.
func DropChangedSubject(ctx context.Context, db schema.DB, id int64) error {
	return schema.Exec(ctx, db, "drop a changed subject", `DELETE FROM changed_subjects WHERE id = $1`, id)
}

// DueSubject is a subject to fetch. Result is the outcome of the fetch.
type DueSubject struct {
	schema.Key
	FetchAt time.Time // identifies this request: a row that was deleted or stored meanwhile has another time
	Needed  bool      // it has not been shown yet, a record waits for it, or one of its links was shared inside the longest window
}

// DueSubjects returns at most limit subjects that must be fetched at now: first those without
// links, which records wait for, then those whose links were shared last. If the whole network is
// followed, there are none. A time too far in the future was written while a clock was ahead, and
// is due too.
func DueSubjects(ctx context.Context, db schema.DB, now time.Time, limit int) ([]DueSubject, error) {
	const sql = `
WITH due AS (
    (SELECT u.did, u.collection, u.rkey, u.fetch_at, u.links FROM subjects AS u
     WHERE u.fetch_at <= $1 AND EXISTS (SELECT FROM watches)
     ORDER BY u.fetch_at LIMIT 10000)
    UNION ALL
    (SELECT u.did, u.collection, u.rkey, u.fetch_at, u.links FROM subjects AS u
     WHERE u.fetch_at > $4 AND EXISTS (SELECT FROM watches)
     ORDER BY u.fetch_at LIMIT 10000)
)
SELECT d.collection, d.did, d.rkey, d.fetch_at,
       d.links = '{}' OR coalesce(shared.at > $2, false)
       OR EXISTS (SELECT FROM waiting AS w WHERE w.for_did = d.did AND w.for_collection = d.collection AND w.for_rkey = d.rkey)
FROM due AS d
CROSS JOIN LATERAL (
    SELECT max(one.at) AS at
    FROM unnest(d.links) AS n (id)
    JOIN links AS l ON l.id = n.id
    CROSS JOIN LATERAL (SELECT s.shared_at AS at FROM shares AS s WHERE s.link_id = l.counts_as ORDER BY s.shared_at DESC LIMIT 1) AS one
) AS shared
ORDER BY d.links <> '{}', shared.at DESC NULLS LAST, d.fetch_at
LIMIT $3`
	return schema.All(ctx, db, "choose the subjects to fetch", func(row pgx.CollectableRow) (d DueSubject, err error) {
		err = row.Scan(&d.Collection, &d.DID, &d.Rkey, &d.FetchAt, &d.Needed)
		return d, err
	}, sql, now, now.Add(-LongestWindow), limit, now.Add(SubjectInterval+time.Minute))
}

// FetchedSubject is a subject as the AppView returned it.
type FetchedSubject struct {
	DueSubject
	Shown bool
	Links []link.Link
}

const (
	shownTries = 8                // attempts to fetch a post that the AppView does not show, until the next repost of it
	firstRetry = 30 * time.Second // wait before the second attempt; doubled each time
)

// StoreSubjects stores fetched subjects and returns those that have links. These remain due until
// FetchAgain. So if a process dies before it has released the records that wait for them, the work
// begins anew. A subject whose row was deleted, stored or requested again meanwhile is skipped. One
// with a tombstone counts as not shown: the AppView may lag behind the stream.
func StoreSubjects(ctx context.Context, tx pgx.Tx, fetched []FetchedSubject, now time.Time) (linked []DueSubject, err error) {
	const store = `
UPDATE subjects AS u
SET links      = CASE WHEN n.deleted THEN '{}' ELSE n.links END,
    shown      = n.shown AND NOT n.deleted,
    fetched_at = $1::timestamptz,
    tries      = CASE WHEN n.shown THEN 0 ELSE u.tries + 1 END,
    fetch_at   = CASE WHEN n.deleted OR n.shown AND n.links = '{}' THEN NULL
                      WHEN n.shown THEN u.fetch_at
                      WHEN u.tries + 1 < $3::int THEN $1::timestamptz + least($2::interval, $4::interval * 2 ^ least(u.tries, 16)) END
FROM (
    SELECT f.collection, f.did, f.rkey, f.fetch_at, f.shown,
           EXISTS (SELECT FROM tombstones AS t WHERE t.collection = f.collection AND t.did = f.did AND t.rkey = f.rkey) AS deleted,
           ARRAY(SELECT DISTINCT l.id FROM unnest($10::int[], $11::text[]) AS i (n, identity)
               JOIN links AS l ON l.identity = i.identity WHERE i.n = f.n ORDER BY l.id) AS links
    FROM unnest($5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::boolean[])
         WITH ORDINALITY AS f (collection, did, rkey, fetch_at, shown, n)
) AS n
WHERE u.did = n.did AND u.collection = n.collection AND u.rkey = n.rkey AND u.fetch_at = n.fetch_at
RETURNING u.collection, u.did, u.rkey, n.fetch_at, u.links <> '{}'`
	n := len(fetched)
	collection, did, rkey := schema.Columns(n, func(i int) schema.Key { return fetched[i].Key })
	at := column(fetched, func(f FetchedSubject) time.Time { return f.FetchAt })
	shown := column(fetched, func(f FetchedSubject) bool { return f.Shown })
	var of pgtype.FlatArray[int32]
	var identity pgtype.FlatArray[string]
	var links []link.Link
	for i := range fetched {
		for _, l := range fetched[i].Links {
			of, identity, links = append(of, int32(i+1)), append(identity, l.Identity), append(links, l) // a page of posts
		}
	}
	q := &pgx.Batch{}
	queueLinks(q, links, now)
	queueShortLinks(q, links, new(bool)) // the job of the next minute finds them
	q.Queue(store, now, SubjectInterval, shownTries, firstRetry, collection, did, rkey, at, shown, of,
		identity).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var d DueSubject
			var has bool
			if err := rows.Scan(&d.Collection, &d.DID, &d.Rkey, &d.FetchAt, &has); err != nil {
				return err
			}
			if has {
				linked = append(linked, d)
			}
		}
		return rows.Err()
	})
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return nil, fmt.Errorf("store subjects: %w", expiredMeanwhile(err))
	}
	return linked, nil
}

// FetchAgain sets the time at which subjects are fetched again, unless they were requested again meanwhile; nil:
// not until the next repost of one.
func FetchAgain(ctx context.Context, db schema.DB, due []DueSubject, to *time.Time) error {
	const sql = `
UPDATE subjects AS u SET fetch_at = $5
FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) AS k (collection, did, rkey, fetch_at)
WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey AND u.fetch_at = k.fetch_at`
	if len(due) == 0 {
		return nil
	}
	collection, did, rkey := schema.Columns(len(due), func(i int) schema.Key { return due[i].Key })
	at := column(due, func(d DueSubject) time.Time { return d.FetchAt })
	return schema.Exec(ctx, db, "change when subjects are fetched", sql, collection, did, rkey, at, to)
}

// ExpireIdle examines at most limit subjects, and as many copies, that were last examined at or before
// a time. It deletes those that no share needs and no record waits for, and marks the others as
// examined now. It returns how many it examined. A copy stays as long as its record is stored, because
// a repost may share again when its subject arrives.
func ExpireIdle(ctx context.Context, db schema.DB, before, now time.Time, limit int) (examined int, err error) {
	for _, of := range []struct{ table, needed string }{{"subjects", `
EXISTS (SELECT FROM shares AS s WHERE s.subject_did = i.did AND s.subject_rkey = i.rkey)
OR EXISTS (SELECT FROM waiting AS w WHERE w.for_did = i.did AND w.for_collection = i.collection AND w.for_rkey = i.rkey)`}, {"copies", `
EXISTS (SELECT FROM shares AS s WHERE s.did = i.did AND s.collection = i.collection AND s.rkey = i.rkey)
OR EXISTS (SELECT FROM records AS r WHERE r.did = i.did AND r.collection = i.collection AND r.rkey = i.rkey)`}} {
		sql := `
WITH old AS (
    SELECT i.did, i.collection, i.rkey, (` + of.needed + `) AS needed
    FROM ` + of.table + ` AS i WHERE i.checked_at <= $1 ORDER BY i.checked_at LIMIT $3
    FOR UPDATE SKIP LOCKED
), kept AS (
    UPDATE ` + of.table + ` AS i SET checked_at = $2
    FROM old AS o WHERE i.did = o.did AND i.collection = o.collection AND i.rkey = o.rkey AND o.needed
), gone AS (
    DELETE FROM ` + of.table + ` AS i
    USING old AS o WHERE i.did = o.did AND i.collection = o.collection AND i.rkey = o.rkey AND NOT o.needed
)
SELECT count(*) FROM old`
		n, err := schema.One(ctx, db, "expire "+of.table, pgx.RowTo[int], sql, before, now, limit)
		if err != nil {
			return examined, err
		}
		examined += n
	}
	return examined, nil
}
