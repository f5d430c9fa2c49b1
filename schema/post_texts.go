package schema

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// maxText bounds the text of a post, in characters. The network allows fewer.
const maxText = 3000

// PostTexts returns the texts of those of the posts that are stored. It reads them as
// Posts does.
func PostTexts(ctx context.Context, db DB, keys []Key) (map[Key]string, error) {
	texts := make(map[Key]string, len(keys))
	if len(keys) == 0 {
		return texts, nil
	}
	const sql = `
SELECT p.did, p.rkey, p.text
FROM unnest($1::text[], $2::text[]) AS k (did, rkey)
CROSS JOIN LATERAL (
    SELECT p.did, p.rkey, left(p.record ->> 'text', $5) AS text
    FROM posts AS p
    WHERE p.collection = 'app.bsky.feed.post' AND p.did = k.did AND p.rkey = k.rkey AND p.rkey >= $3 AND p.rkey <= $4
    LIMIT 1
) AS p
WHERE p.text <> ''`
	did, rkey := make(pgtype.FlatArray[string], len(keys)), make(pgtype.FlatArray[string], len(keys))
	for i, k := range keys {
		did[i], rkey[i] = k.DID, k.Rkey
	}
	// A prepared statement may get a generic plan, which locks all partitions.
	rows, err := db.Query(ctx, sql, pgx.QueryExecModeCacheDescribe, did, rkey, slices.Min(rkey), slices.Max(rkey), maxText)
	if err == nil {
		key, text := Key{Collection: PostCollection}, ""
		_, err = pgx.ForEachRow(rows, []any{&key.DID, &key.Rkey, &text}, func() error {
			texts[key] = text
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read the texts of posts: %w", err)
	}
	return texts, nil
}
