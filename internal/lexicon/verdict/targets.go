package verdict

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// A Target is the state of a record that others refer to.
type Target struct {
	CID  string // of the stored version; empty: it is not stored
	Gone bool   // it was deleted, or its account was
}

// Targets returns the state of records. Records that are neither stored nor gone are
// missing. Their collections must be outside the partition of posts.
func Targets(ctx context.Context, db schema.DB, keys []schema.Key) (map[schema.Key]Target, error) {
	const sql = `
SELECT k.collection, k.did, k.rkey, coalesce(r.cid, ''),
       r.cid IS NULL AND EXISTS (SELECT FROM tombstones AS t WHERE t.collection = k.collection AND t.did = k.did AND t.rkey = k.rkey)
       OR EXISTS (SELECT FROM accounts AS a WHERE a.did = k.did AND a.status = 'deleted')
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
LEFT JOIN LATERAL (
    SELECT r.cid FROM records_other AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey LIMIT 1
) AS r ON true`
	found := make(map[schema.Key]Target, len(keys))
	if len(keys) == 0 {
		return found, nil
	}
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	var key schema.Key
	var t Target
	err := schema.Each(ctx, db, "look for the targets of references", []any{&key.Collection, &key.DID, &key.Rkey, &t.CID, &t.Gone},
		func() error {
			if t.Gone {
				t.CID = ""
			}
			if t != (Target{}) {
				found[key] = t
			}
			return nil
		}, sql, collection, did, rkey)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Content returns the stored JSON of a record, or nil if it is not stored.
func Content(ctx context.Context, db schema.DB, key schema.Key) ([]byte, error) {
	const sql = `SELECT record FROM records_other WHERE collection = $1 AND did = $2 AND rkey = $3`
	found, err := schema.All(ctx, db, "read "+key.URI(), pgx.RowTo[[]byte], sql, key.Collection, key.DID, key.Rkey)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// Sizes returns the sizes of records' JSON, in bytes. Records that are not stored are
// missing.
func Sizes(ctx context.Context, db schema.DB, keys []schema.Key) (map[schema.Key]int, error) {
	const sql = `
SELECT r.collection, r.did, r.rkey, octet_length(r.record::text)
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
JOIN records_other AS r USING (collection, did, rkey)`
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	sizes := make(map[schema.Key]int, len(keys))
	var key schema.Key
	var size int
	err := schema.Each(ctx, db, "read the sizes of records", []any{&key.Collection, &key.DID, &key.Rkey, &size}, func() error {
		sizes[key] = size
		return nil
	}, sql, collection, did, rkey)
	if err != nil {
		return nil, err
	}
	return sizes, nil
}
