package schema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PostCollection is the collection whose partition is posts.
const PostCollection = "app.bsky.feed.post"

// ListedRev is the revision of a post that a listing brought: listings do not
// name revisions. It sorts before any real one, so that whatever the stream or a
// repair says of the post wins.
const ListedRev = "2222222222222"

// Post is a stored post.
type Post struct {
	DID       string
	Rkey      string
	Rev       string
	CreatedAt time.Time
	IndexedAt time.Time
	Record    []byte // JSON; nil where a query leaves it out
}

// Posts reads the current rows of posts, in no order; those that are not stored
// are left out. LATERAL and LIMIT keep it a look into one partition's index per
// post: left to itself the planner may read a whole day for a few hundred. The
// range of the keys keeps it from locking the partitions that hold none of them.
func Posts(ctx context.Context, db DB, keys []Key) ([]Post, error) {
	const sql = `
SELECT p.did        AS did,
       p.rkey       AS rkey,
       p.rev        AS rev,
       p.created_at AS created_at,
       p.indexed_at AS indexed_at,
       p.record     AS record
FROM unnest($1::text[], $2::text[]) AS k (did, rkey)
CROSS JOIN LATERAL (
    SELECT p.did, p.rkey, p.rev, p.created_at, p.indexed_at, p.record
    FROM posts AS p
    WHERE p.collection = 'app.bsky.feed.post' AND p.did = k.did AND p.rkey = k.rkey AND p.rkey >= $3 AND p.rkey <= $4
    LIMIT 1
) AS p`
	return collectPosts(ctx, db, sql, keys)
}

// LockPosts locks the rows of posts against writers until the transaction ends,
// in the order of the keys, and reads them without their records. A look into an
// index per post, as in Posts.
func LockPosts(ctx context.Context, tx pgx.Tx, keys []Key) ([]Post, error) {
	const sql = `
SELECT p.did        AS did,
       p.rkey       AS rkey,
       p.rev        AS rev,
       p.created_at AS created_at,
       p.indexed_at AS indexed_at,
       NULL::jsonb  AS record
FROM (SELECT did, rkey FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (did, rkey, n) ORDER BY n) AS k
CROSS JOIN LATERAL (
    SELECT p.did, p.rkey, p.rev, p.created_at, p.indexed_at
    FROM posts AS p
    WHERE p.collection = 'app.bsky.feed.post' AND p.did = k.did AND p.rkey = k.rkey AND p.rkey >= $3 AND p.rkey <= $4
    LIMIT 1
    FOR SHARE
) AS p`
	return collectPosts(ctx, tx, sql, keys)
}

func collectPosts(ctx context.Context, db DB, sql string, keys []Key) ([]Post, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	did, rkey := make(pgtype.FlatArray[string], len(keys)), make(pgtype.FlatArray[string], len(keys))
	for i, k := range keys {
		did[i], rkey[i] = k.DID, k.Rkey
	}
	// A named statement is planned for any range at times, and that plan locks every partition.
	rows, err := db.Query(ctx, sql, pgx.QueryExecModeCacheDescribe, did, rkey, slices.Min(rkey), slices.Max(rkey))
	if err != nil {
		return nil, fmt.Errorf("read posts: %w", err)
	}
	posts, err := pgx.AppendRows(make([]Post, 0, len(keys)), rows, pgx.RowToStructByPos[Post])
	if err != nil {
		return nil, fmt.Errorf("read posts: %w", err)
	}
	return posts, nil
}
