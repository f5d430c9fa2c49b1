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

// DeclarationCollection is the collection in which accounts declare that nobody should recommend
// them. It is stored with posts, for ever.
const DeclarationCollection = "app.bsky.actor.contentVisibilityDeclaration"

// ListedRev is the revision of a post from a listing, because listings do not name
// revisions. It sorts before all real revisions, so that a stream or a repair
// overwrites the post.
const ListedRev = "2222222222222"

// Post is a stored post.
type Post struct {
	DID       string
	Rkey      string
	Rev       string
	CreatedAt time.Time
	IndexedAt time.Time
	Record    []byte // JSON; nil if the query omits it
}

// Posts reads stored posts by key, in no particular order, and skips those that are
// not stored. LATERAL and LIMIT force one lookup in one partition's index per post;
// otherwise the planner may read a whole day for a few hundred posts. The range of
// the keys limits which partitions are locked.
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

// LockPosts locks posts against writers until the transaction ends, in the order of
// the keys, and reads them without their records. It needs one index lookup per post,
// like Posts.
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
	// A prepared statement may get a generic plan, which locks all partitions.
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
