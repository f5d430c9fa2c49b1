package records

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// A Record is a stored record, as its author wrote it.
type Record struct {
	URI       string          `json:"uri"`
	CID       string          `json:"cid"`
	IndexedAt time.Time       `json:"indexed_at"`        // when Weir first stored it
	Verdict   string          `json:"verdict,omitempty"` // "valid", "invalid", "unknown"; empty: not judged yet
	Value     json.RawMessage `json:"value"`

	key schema.Key
}

// A Page is a part of a list of records.
type Page struct {
	Records []Record
	Next    Cursor // empty at the end
}

// A Cursor is an opaque position in a list.
type Cursor string

// position is the content of a cursor. Its fields are those by which a list is sorted.
type position struct {
	Of   string     // the list; in a cursor that was read, its hash
	At   time.Time  // when the record was stored
	Rank float32    // how well the record matches
	Key  schema.Key // of the record
	Path []byte     // path of a reference in the record; as bytes, which JSON does not make six times as long
	Skip int        // number of references of a record to skip
}

// maxCursor limits a cursor, in bytes. The longest keys and paths need less, so every
// cursor fits into the header of a request.
const maxCursor = 10 << 10

// hash returns a short text that is the same for the same text. The name of a list, or
// the description of a view, may be long.
func hash(of string) string {
	sum := sha256.Sum256([]byte(of))
	return hex.EncodeToString(sum[:8])
}

func (p position) cursor() Cursor {
	p.At, p.Of = p.At.UTC(), hash(p.Of)
	raw, _ := json.Marshal(p) // it has no field that cannot be written
	return Cursor(base64.RawURLEncoding.EncodeToString(raw))
}

// read returns the position of the last entry of the page before. The cursor is
// untrusted.
func (c Cursor) read(of string) (p position, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(string(c))
	if len(c) > maxCursor || err != nil || json.Unmarshal(raw, &p) != nil || p.Of != hash(of) || p.Skip < 0 || p.At.Year() < 0 ||
		p.At.Year() > 9999 {
		return p, ErrCursor
	}
	for _, text := range []string{p.Key.DID, p.Key.Collection, p.Key.Rkey, string(p.Path)} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return p, ErrCursor
		}
	}
	return p, nil
}

// A record may have a megabyte, and a page of them is in memory.
const (
	pageBytes  = 4 << 20
	readAtOnce = 8
)

// List returns a page of the records of a collection, most recently stored first.
func List(ctx context.Context, db DB, collection string, limit int, after Cursor) (Page, error) {
	of := "list " + collection
	from := position{At: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
	if after != "" {
		var err error
		if from, err = after.read(of); err != nil {
			return Page{}, err
		}
	}
	sql := `
SELECT r.did, r.rkey, r.indexed_at
FROM records AS r
WHERE r.collection = $1 AND (r.indexed_at, r.did, r.rkey) < ($2, $3, $4) AND` + shown("r.did") + `
ORDER BY r.indexed_at DESC, r.did DESC, r.rkey DESC
LIMIT $5`
	found, err := schema.All(ctx, db, "list the records of "+collection, func(row pgx.CollectableRow) (p position, err error) {
		p.Of, p.Key.Collection = of, collection
		err = row.Scan(&p.Key.DID, &p.Key.Rkey, &p.At)
		return p, err
	}, sql, collection, from.At, from.Key.DID, from.Key.Rkey, limit+1)
	if err != nil {
		return Page{}, err
	}
	more := len(found) > limit
	found = found[:min(len(found), limit)]
	keys := make([]schema.Key, len(found))
	for i := range found {
		keys[i] = found[i].Key
	}
	read, n, err := values(ctx, db, keys)
	if err != nil {
		return Page{}, err
	}
	page := Page{Records: read}
	if n < len(keys) || more {
		page.Next = found[n-1].cursor()
	}
	return page, nil
}

// ListOf returns records of one account and collection, in the order of their keys, or
// in reverse. after is the key of the last record on the page before.
func ListOf(
	ctx context.Context, db DB, did, collection string, limit int, after string, reverse bool,
) (page []Record, next string, err error) {
	order, beyond := "DESC", "<"
	if reverse {
		order, beyond = "ASC", ">"
	}
	sql := fmt.Sprintf(`
SELECT r.collection, r.did, r.rkey
FROM records AS r
WHERE r.collection = $1 AND r.did = $2 AND ($3 = '' OR r.rkey %s $3)
ORDER BY r.rkey %s
LIMIT $4`, beyond, order)
	keys, err := schema.All(ctx, db, "list the records of an account", pgx.RowToStructByPos[schema.Key], sql, collection, did, after, limit+1)
	if err != nil {
		return nil, "", err
	}
	more := len(keys) > limit
	keys = keys[:min(len(keys), limit)]
	page, n, err := values(ctx, db, keys)
	if err == nil && (more || n < len(keys)) {
		next = keys[n-1].Rkey
	}
	return page, next, err
}

// values reads records in the order of their keys, until their total size reaches a
// limit. n is the number of keys that it has read. Records that no longer exist are
// omitted.
func values(ctx context.Context, db DB, keys []schema.Key) (found []Record, n int, err error) {
	size := 0
	for part := range slices.Chunk(keys, readAtOnce) {
		read, err := readKeys(ctx, db, part)
		if err != nil {
			return nil, 0, err
		}
		for i := range read {
			size += len(read[i].Value)
		}
		found, n = append(found, read...), n+len(part)
		if size > pageBytes {
			break
		}
	}
	return found, n, nil
}

func readKeys(ctx context.Context, db DB, keys []schema.Key) ([]Record, error) {
	const sql = `
SELECT r.collection, r.did, r.rkey, r.cid, r.indexed_at, coalesce(v.verdict, ''), r.record
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (collection, did, rkey, n)
JOIN records AS r ON r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey
LEFT JOIN verdicts AS v ON v.did = r.did AND v.collection = r.collection AND v.rkey = r.rkey AND v.cid = r.cid
ORDER BY k.n`
	collections, dids, rkeys := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	return schema.All(ctx, db, "read records", func(row pgx.CollectableRow) (r Record, err error) {
		err = row.Scan(&r.key.Collection, &r.key.DID, &r.key.Rkey, &r.CID, &r.IndexedAt, &r.Verdict, &r.Value)
		r.URI, r.IndexedAt = r.key.URI(), r.IndexedAt.UTC()
		return r, err
	}, sql, collections, dids, rkeys)
}
