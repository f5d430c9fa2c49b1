package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// WatchTargets returns at most limit targets of watches, in alphabetical order.
func WatchTargets(ctx context.Context, db DB, limit int) ([]string, error) {
	return All(ctx, db, "list the targets of the watches", pgx.RowTo[string], `SELECT DISTINCT target FROM watches ORDER BY target LIMIT $1`, limit)
}

// ReadFollowingOf counts the accounts that the watches of a target include: all of
// them, or those that are followed by the target's follows, or those that are not.
func ReadFollowingOf(ctx context.Context, db DB, target string, second *bool) (Following, error) {
	const sql = `
WITH chosen AS (SELECT w.* FROM watches AS w WHERE w.target = $1 AND ($2::boolean IS NULL OR (w.kind = 'second-degree') = $2))
SELECT count(*)                                                         AS watches,
       (SELECT count(DISTINCT m.did) FROM watch_members AS m WHERE m.watch_id IN (SELECT c.id FROM chosen AS c)) AS accounts,
       CASE WHEN count(*) = 1 THEN min(c.kind) ELSE '' END              AS kind,
       $1::text                                                         AS target,
       CASE WHEN count(*) = 1 THEN min(c.at_least) ELSE 0 END           AS at_least
FROM chosen AS c`
	return One(ctx, db, "count the accounts of a watch", pgx.RowToStructByName[Following], sql, target, second)
}

// HasWatch reports whether a watch has the target.
func HasWatch(ctx context.Context, db DB, target string) (bool, error) {
	return One(ctx, db, "find the watch", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM watches AS w WHERE w.target = $1)`, target)
}
