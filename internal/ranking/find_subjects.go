package ranking

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Subjects are the ids of the links of subjects. A subject without links is missing.
type Subjects map[schema.Key][]int64

// FindSubjects returns the subjects that have links, and adds missing rows. Rows of
// stored posts are made from their shares. For other posts, if accounts are followed, it
// adds rows that must be fetched. due reports whether any row must be fetched now. A
// post that was fetched a while ago is fetched again. db must not be a transaction.
func FindSubjects(ctx context.Context, db database, keys []schema.Key) (found Subjects, due bool, err error) {
	if len(keys) == 0 {
		return nil, false, nil
	}
	found = Subjects{}
	missing, fetched, due, err := found.read(ctx, db, keys)
	if err != nil {
		return nil, false, err
	}
	for len(missing) > 0 {
		added, late, err := found.add(ctx, db, missing, fetched)
		if err != nil {
			return nil, false, err
		}
		due = due || late
		// A transaction that changed the shares at the same time did not see the rows
		// made from them.
		if missing, err = SyncSubjects(ctx, db, added); err != nil {
			return nil, false, err
		}
	}
	return found, due, nil
}

// read reads the subjects. missing are those that have shares but no row made from them
// or, if strangers' posts are fetched, no row at all.
func (found Subjects) read(ctx context.Context, db database, keys []schema.Key) (missing []schema.Key, fetched, due bool, err error) {
	// LIMIT forces one index lookup per subject, and the range of the keys limits which
	// partitions are opened.
	const sql = `
SELECT k.n, coalesce(u.links, '{}'), coalesce(u.due, false), w.any,
       NOT coalesce(u.own, false) AND (w.any OR (
           SELECT true FROM shares AS s
           WHERE s.did = k.did AND s.collection = k.collection AND s.rkey = k.rkey AND s.rkey BETWEEN $4 AND $5 AND s.subject_did IS NULL
           LIMIT 1
       ) IS NOT NULL)
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (collection, did, rkey, n)
CROSS JOIN (SELECT EXISTS (SELECT FROM watches) AS any) AS w
LEFT JOIN LATERAL (
    SELECT ARRAY(SELECT l.id FROM links AS l WHERE l.id = ANY (u.links) ORDER BY l.id) AS links, u.fetch_at <= now() AS due,
           u.fetched_at IS NULL AND u.fetch_at IS NULL AND u.links <> '{}' AS own
    FROM subjects AS u WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey LIMIT 1
) AS u ON true`
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	// A prepared statement may get a generic plan, which locks all partitions.
	var n int64
	var links []int64
	var now, incomplete bool
	err = schema.Each(ctx, db, "read the subjects", []any{&n, &links, &now, &fetched, &incomplete}, func() error {
		if due = due || now; len(links) > 0 {
			found[keys[n-1]] = slices.Clone(links)
		}
		if incomplete {
			missing = append(missing, keys[n-1])
		}
		return nil
	}, sql, pgx.QueryExecModeCacheDescribe, collection, did, rkey, slices.Min(rkey), slices.Max(rkey))
	if err != nil {
		return nil, false, false, err
	}
	return missing, fetched, due, nil
}

// readSubjects reads subjects with their links.
const readSubjects = `
SELECT u.collection, u.did, u.rkey, ARRAY(SELECT l.id FROM links AS l WHERE l.id = ANY (u.links) ORDER BY l.id) AS links,
    u.fetch_at <= now()
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT * FROM subjects AS u WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey LIMIT 1
) AS u`

// add adds the missing rows, and reads these subjects again.
func (found Subjects) add(
	ctx context.Context, db schema.Batcher, keys []schema.Key, fetched bool,
) (added []schema.Key, due bool, err error) {
	// The locks make a deletion of the post wait: it then deletes the new row too.
	// LATERAL and LIMIT force one index lookup per subject, which is skipped if the
	// subject is known.
	const add = `
WITH own AS (
    SELECT s.did, s.collection, s.rkey, s.named_id
    FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
    CROSS JOIN LATERAL (
        SELECT FROM (SELECT) AS unknown
        WHERE NOT EXISTS (
            SELECT FROM subjects AS u
            WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey AND u.fetched_at IS NULL
                AND u.fetch_at IS NULL AND u.links <> '{}'
        )
        LIMIT 1
    ) AS unknown
    CROSS JOIN LATERAL (
        SELECT s.did, s.collection, s.rkey, s.named_id FROM shares AS s
        WHERE s.did = k.did AND s.collection = k.collection AND s.rkey = k.rkey AND s.rkey BETWEEN $4 AND $5 AND s.subject_did IS NULL
        LIMIT 1000
        FOR SHARE
    ) AS s
)
INSERT INTO subjects AS u (did, collection, rkey, links)
SELECT did, collection, rkey, array_agg(named_id ORDER BY named_id) FROM own GROUP BY did, collection, rkey ORDER BY did, collection, rkey
ON CONFLICT (did, collection, rkey) DO UPDATE SET links = excluded.links, shown = true, fetched_at = NULL, fetch_at = NULL, tries = 0
RETURNING collection, did, rkey`
	const fetch = `
INSERT INTO subjects AS u (did, collection, rkey, fetch_at)
SELECT k.did, k.collection, k.rkey, now()
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
WHERE EXISTS (SELECT FROM watches)
  AND k.collection = 'app.bsky.feed.post'
  AND NOT EXISTS (
      SELECT FROM subjects AS u
      WHERE u.did = k.did AND u.collection = k.collection AND u.rkey = k.rkey
        AND (u.fetch_at IS NOT NULL OR u.fetched_at IS NULL OR u.fetched_at > now() - $4::interval)
  )
  AND NOT EXISTS (SELECT FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = k.did AND p.rkey = k.rkey)
  AND NOT EXISTS (SELECT FROM tombstones AS t WHERE t.collection = k.collection AND t.did = k.did AND t.rkey = k.rkey)
ORDER BY k.did, k.collection, k.rkey
ON CONFLICT (did, collection, rkey) DO UPDATE SET fetch_at = excluded.fetch_at WHERE u.fetch_at IS NULL AND u.fetched_at IS NOT NULL`
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	q := &pgx.Batch{}
	q.Queue(add, collection, did, rkey, slices.Min(rkey), slices.Max(rkey)).Query(func(rows pgx.Rows) (err error) {
		added, err = pgx.CollectRows(rows, pgx.RowToStructByPos[schema.Key])
		return err
	})
	if fetched {
		q.Queue(fetch, collection, did, rkey, SubjectInterval)
	}
	for _, key := range keys {
		delete(found, key)
	}
	q.Queue(readSubjects, collection, did, rkey).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var key schema.Key
			var links []int64
			var now *bool
			if err := rows.Scan(&key.Collection, &key.DID, &key.Rkey, &links, &now); err != nil {
				return err
			}
			due = due || now != nil && *now
			if len(links) > 0 {
				found[key] = links
			}
		}
		return rows.Err()
	})
	if err := db.SendBatch(ctx, q).Close(); err != nil {
		return nil, false, fmt.Errorf("find the subjects: %w", err)
	}
	return added, due, nil
}

// NamedLinks returns the links of shares, by the records that share them. Subjects that
// are made from these shares will have these links.
func NamedLinks(ctx context.Context, db schema.DB, shares []Share) (Subjects, error) {
	if len(shares) == 0 {
		return nil, nil
	}
	const sql = `
SELECT i.n, l.id
FROM unnest($1::text[]) WITH ORDINALITY AS i (identity, n)
JOIN links AS l ON l.identity = i.identity
ORDER BY l.id`
	found := Subjects{}
	var n, id int64
	err := schema.Each(ctx, db, "read the links of subjects", []any{&n, &id}, func() error {
		key := shares[n-1].Key
		found[key] = append(found[key], id)
		return nil
	}, sql, column(column(shares, linkOf), identityOf))
	if err != nil {
		return nil, err
	}
	return found, nil
}
