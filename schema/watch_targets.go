package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// WatchTargets returns at most limit targets of watches, in alphabetical order.
func WatchTargets(ctx context.Context, db DB, limit int) ([]string, error) {
	return All(ctx, db, "list the targets of the watches", pgx.RowTo[string], `SELECT DISTINCT target FROM watches ORDER BY target LIMIT $1`,
		limit)
}

// ReadFollowingOf counts the accounts that the watches of a target include. If
// second is nil, it counts all its watches; if true, only those of the kind
// second-degree; if false, only the others.
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

// Progress says how far the follow lists and the past posts of accounts have been
// read.
type Progress struct {
	Watches  int
	Unread   int // watches whose list was never read to its end
	Problems int // of these, those whose last read failed
	Accounts int // members
	Read     int // of these, those whose past posts were read to the end of a window
	Posts    int // that are stored, of anybody; ManyPosts: as many, or more
}

// ManyPosts is how many posts ReadProgress counts.
const ManyPosts = 10_000

// ReadProgress returns the progress of the watches of a target, or of all watches
// if target is empty.
func ReadProgress(ctx context.Context, db DB, target string) (Progress, error) {
	const sql = `
WITH chosen AS (SELECT w.* FROM watches AS w WHERE $1 IN ('', w.target)),
members AS (SELECT DISTINCT m.did FROM watch_members AS m WHERE m.watch_id IN (SELECT c.id FROM chosen AS c))
SELECT (SELECT count(*) FROM chosen)                                                            AS watches,
       (SELECT count(*) FROM chosen AS c WHERE c.synced_at IS NULL)                             AS unread,
       (SELECT count(*) FROM chosen AS c WHERE c.synced_at IS NULL AND c.problem <> '')         AS problems,
       (SELECT count(*) FROM members)                                                           AS accounts,
       (SELECT count(*) FROM members AS m JOIN accounts AS a ON a.did = m.did WHERE a.feed_read_at IS NOT NULL) AS read,
       (SELECT count(*) FROM (SELECT FROM records AS r WHERE r.collection IN ('app.bsky.feed.post', 'nostr.1') LIMIT $2) AS r)  AS posts`
	return One(ctx, db, "read how far the follow lists were read", pgx.RowToStructByName[Progress], sql, target, ManyPosts)
}
