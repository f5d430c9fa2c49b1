package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// OtherCollections lists at most limit collections, except posts, that have stored
// records and sort after a name. It needs one index lookup per collection.
func OtherCollections(ctx context.Context, db DB, after string, limit int) ([]string, error) {
	const sql = `
WITH RECURSIVE stored (collection) AS (
    (SELECT r.collection FROM records_other AS r WHERE r.collection > $1 ORDER BY r.collection LIMIT 1)
    UNION ALL
    SELECT (SELECT r.collection FROM records_other AS r WHERE r.collection > s.collection ORDER BY r.collection LIMIT 1)
    FROM stored AS s WHERE s.collection IS NOT NULL
)
SELECT s.collection FROM stored AS s WHERE s.collection IS NOT NULL LIMIT $2`
	return all(ctx, db, "list the stored collections", pgx.RowTo[string], sql, after, limit)
}

// OtherCollectionsOf lists at most limit collections, except posts, from one name
// to below another, that have stored records of an account.
func OtherCollectionsOf(ctx context.Context, db DB, did, from, to string, limit int) ([]string, error) {
	const sql = `
WITH RECURSIVE stored (collection) AS (
    (SELECT r.collection FROM records_other AS r WHERE r.collection >= $2 AND r.collection < $3 ORDER BY r.collection LIMIT 1)
    UNION ALL
    SELECT (SELECT r.collection FROM records_other AS r WHERE r.collection > s.collection AND r.collection < $3 ORDER BY r.collection LIMIT 1)
    FROM stored AS s WHERE s.collection IS NOT NULL
)
SELECT s.collection FROM stored AS s
WHERE EXISTS (SELECT FROM records_other AS r WHERE r.collection = s.collection AND r.did = $1)
LIMIT $4`
	return all(ctx, db, "list the stored collections of "+did, pgx.RowTo[string], sql, did, from, to, limit)
}

// StoresPosts reports whether any post is stored.
func StoresPosts(ctx context.Context, db DB) (bool, error) {
	return one(ctx, db, "look for posts", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM posts)`)
}
