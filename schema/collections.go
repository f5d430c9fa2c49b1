package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// kindsIn returns the beginning of a query: the CTE kinds contains the collections in a
// table, and a NULL. There are few collections and many rows, so it finds each next
// collection with one lookup in an index that begins with the collection. records_other
// has the collections other than posts.
func kindsIn(table string) string {
	return `
WITH RECURSIVE kinds (collection) AS (
    SELECT min(collection) FROM ` + table + `
    UNION ALL
    SELECT (SELECT min(t.collection) FROM ` +
		table + ` AS t WHERE t.collection > k.collection) FROM kinds AS k WHERE k.collection IS NOT NULL
)`
}

// CollectionsIn lists the collections in a table. The table needs an index that begins
// with them.
func CollectionsIn(ctx context.Context, db DB, table string) ([]string, error) {
	sql := kindsIn(table) + `
SELECT k.collection FROM kinds AS k WHERE k.collection IS NOT NULL`
	return All(ctx, db, "list the collections in "+table, pgx.RowTo[string], sql)
}

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
	return All(ctx, db, "list the stored collections", pgx.RowTo[string], sql, after, limit)
}

// OtherCollectionsOf lists at most limit collections, except posts, from one name
// to below another, that have stored records of an account.
func OtherCollectionsOf(ctx context.Context, db DB, did, from, to string, limit int) ([]string, error) {
	const sql = `
WITH RECURSIVE stored (collection) AS (
    (SELECT r.collection FROM records_other AS r WHERE r.collection >= $2 AND r.collection < $3 ORDER BY r.collection LIMIT 1)
    UNION ALL
    SELECT (SELECT r.collection FROM records_other AS r WHERE r.collection > s.collection AND r.collection < $3 ORDER BY r.collection
        LIMIT 1)
    FROM stored AS s WHERE s.collection IS NOT NULL
)
SELECT s.collection FROM stored AS s
WHERE EXISTS (SELECT FROM records_other AS r WHERE r.collection = s.collection AND r.did = $1)
LIMIT $4`
	return All(ctx, db, "list the stored collections of "+did, pgx.RowTo[string], sql, did, from, to, limit)
}

// CollectionsUnder lists at most limit collections, except posts, that have stored
// records and begin with a prefix, which ends in a dot.
func CollectionsUnder(ctx context.Context, db DB, prefix string, limit int) ([]string, error) {
	const sql = `
WITH RECURSIVE stored (collection) AS (
    (SELECT r.collection FROM records_other AS r WHERE r.collection > $1 ORDER BY r.collection LIMIT 1)
    UNION ALL
    SELECT (SELECT r.collection FROM records_other AS r WHERE r.collection > s.collection ORDER BY r.collection LIMIT 1)
    FROM stored AS s WHERE starts_with(s.collection, $1)
)
SELECT s.collection FROM stored AS s WHERE starts_with(s.collection, $1) LIMIT $2`
	return All(ctx, db, "list the stored collections under "+prefix, pgx.RowTo[string], sql, prefix, limit)
}

// StoresPosts reports whether any post is stored.
func StoresPosts(ctx context.Context, db DB) (bool, error) {
	return One(ctx, db, "look for posts", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM posts)`)
}
