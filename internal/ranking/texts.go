package ranking

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// maxText limits the text of a post, in characters. The network allows fewer.
const maxText = 3000

// postTexts returns the texts of those of the posts that are stored. It reads them as
// schema.Posts does.
func postTexts(ctx context.Context, db schema.DB, keys []schema.Key) (map[schema.Key]string, error) {
	texts := make(map[schema.Key]string, len(keys))
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
	_, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	// A prepared statement may get a generic plan, which locks all partitions.
	key, text := schema.Key{Collection: schema.PostCollection}, ""
	err := schema.Each(ctx, db, "read the texts of posts", []any{&key.DID, &key.Rkey, &text}, func() error {
		texts[key] = text
		return nil
	}, sql, pgx.QueryExecModeCacheDescribe, did, rkey, slices.Min(rkey), slices.Max(rkey), maxText)
	if err != nil {
		return nil, err
	}
	return texts, nil
}

// The collections of Nostr events that have texts.
const (
	NoteCollection    = "nostr.1"
	ArticleCollection = "nostr.30023"
)

// addNoteTexts adds the texts of notes and articles of Nostr that are stored; an article
// begins with its title.
func addNoteTexts(ctx context.Context, db schema.DB, keys []schema.Key, texts map[schema.Key]string) error {
	if len(keys) == 0 {
		return nil
	}
	const sql = `
SELECT k.collection, k.did, k.rkey, r.text
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT left(concat_ws(E'\n',
               CASE k.collection WHEN 'nostr.30023' THEN jsonb_path_query_first(r.record, '$.tags[*] ? (@[0] == "title")[1]') #>> '{}' END,
               r.record ->> 'content'), $4) AS text
    FROM records AS r
    WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey
    LIMIT 1
) AS r
WHERE r.text <> ''`
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	var key schema.Key
	var text string
	return schema.Each(ctx, db, "read the texts of notes", []any{&key.Collection, &key.DID, &key.Rkey, &text}, func() error {
		texts[key] = text
		return nil
	}, sql, collection, did, rkey, maxText)
}
