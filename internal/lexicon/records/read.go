package records

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// States of a record that another refers to.
const (
	Stored  = "stored"
	Deleted = "deleted" // it was stored or seen, and its author deleted it
	Missing = "missing" // Weir has never stored it, or no longer does
	Hidden  = "hidden"  // its account is deactivated, suspended or the like, or not shown to strangers
)

// A Detail is a record with everything that is stored about it.
type Detail struct {
	Record
	Rev        string          `json:"rev"`
	Projection string          `json:"projection,omitempty"` // "projected", "parked", "missing" or "refused", as in the table verdicts
	Dangling   bool            `json:"dangling"`             // a record that it requires was deleted
	Problems   json.RawMessage `json:"problems"`             // why it is invalid or refused
	Warnings   json.RawMessage `json:"warnings"`             // the soft rules that the record breaks
	WaitsFor   []string        `json:"waits_for"`            // at-uris of records that it requires and that are not stored
	References References      `json:"references"`
	Referrers  Referrers       `json:"referrers"`
}

// A Reference is one reference in a record.
type Reference struct {
	Path     string `json:"path"` // a JSON pointer
	Kind     string `json:"kind"` // as in the table record_refs
	Target   string `json:"target"`
	URI      string `json:"uri,omitempty"`   // URI of the record that it names
	CID      string `json:"cid,omitempty"`   // CID of the version that it names
	State    string `json:"state,omitempty"` // of that record
	Dangling bool   `json:"dangling"`        // that record was deleted
	Declared bool   `json:"declared"`        // the schema says that this is a reference
}

// References is a part of a record's references, ordered by path.
type References struct {
	List []Reference `json:"list"`
	Next Cursor      `json:"next,omitempty"`
}

// A Referrer is a reference to a record in another one.
type Referrer struct {
	URI  string `json:"uri"` // URI of the record that refers
	Path string `json:"path"`
	Kind string `json:"kind"`

	key schema.Key
}

// Referrers is a part of a record's referrers, ordered by at-uri.
type Referrers struct {
	List []Referrer `json:"list"`
	Next Cursor     `json:"next,omitempty"`
}

// Status returns the state of a record: Stored, Deleted, Missing or Hidden.
func Status(ctx context.Context, db DB, k schema.Key) (string, error) {
	sql := `SELECT ` + state() + ` FROM (VALUES ($1::text, $2::text, $3::text)) AS k (collection, did, rkey)`
	return schema.One(ctx, db, "look for the record", pgx.RowTo[string], sql, k.Collection, k.DID, k.Rkey)
}

// state is the state of the record with the key k.
func state() string {
	return `CASE
        WHEN NOT (` + shown("k.did") + `) THEN 'hidden'
        WHEN EXISTS (SELECT FROM records AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey) THEN 'stored'
        WHEN EXISTS (SELECT FROM tombstones AS d WHERE d.collection = k.collection AND d.did = k.did AND d.rkey = k.rkey) THEN 'deleted'
        ELSE 'missing'
    END`
}

// Find returns a record, or schema.ErrNoRows.
func Find(ctx context.Context, db DB, k schema.Key) (Record, error) {
	found, err := readKeys(ctx, db, []schema.Key{k})
	if err == nil && len(found) == 0 {
		err = schema.ErrNoRows
	}
	if err != nil {
		return Record{}, err
	}
	return found[0], nil
}

// Read returns a record with the first of its references and referrers, or
// schema.ErrNoRows.
func Read(ctx context.Context, db DB, k schema.Key, limit int) (Detail, error) {
	const sql = `
SELECT r.cid, r.rev, r.indexed_at, r.record, coalesce(v.verdict, ''), coalesce(v.state, ''), coalesce(v.dangling, false),
    coalesce(v.problems, '[]'), coalesce(v.warnings, '[]'),
       ARRAY(SELECT 'at://' || p.to_did || '/' || p.to_collection || '/' || p.to_rkey FROM parked AS p
             WHERE p.did = r.did AND p.collection = r.collection AND p.rkey = r.rkey ORDER BY p.to_did, p.to_collection, p.to_rkey)
FROM records AS r
LEFT JOIN verdicts AS v ON v.did = r.did AND v.collection = r.collection AND v.rkey = r.rkey AND v.cid = r.cid
WHERE r.collection = $1 AND r.did = $2 AND r.rkey = $3`
	d, err := schema.One(ctx, db, "read the record", func(row pgx.CollectableRow) (d Detail, err error) {
		err = row.Scan(&d.CID, &d.Rev, &d.IndexedAt, &d.Value, &d.Verdict, &d.Projection, &d.Dangling, &d.Problems, &d.Warnings, &d.WaitsFor)
		d.key, d.URI, d.IndexedAt = k, k.URI(), d.IndexedAt.UTC()
		return d, err
	}, sql, k.Collection, k.DID, k.Rkey)
	if err != nil {
		return d, err
	}
	if d.References, err = ReadReferences(ctx, db, k, limit, ""); err != nil {
		return d, err
	}
	d.Referrers, err = ReadReferrers(ctx, db, k, limit, "")
	return d, err
}

// ReadReferences returns a part of a record's references. They belong to one version of the
// record: if it is edited between two pages, some may be missing or occur twice.
func ReadReferences(ctx context.Context, db DB, k schema.Key, limit int, after Cursor) (page References, err error) {
	of, from := "references "+k.URI(), position{}
	if after != "" {
		if from, err = after.read(of); err != nil {
			return page, err
		}
	}
	sql := `
SELECT k.path, k.kind, k.target, coalesce('at://' || k.did || '/' || k.collection || '/' || k.rkey, ''), coalesce(k.cid, ''),
       CASE WHEN k.rkey IS NULL THEN '' ELSE ` + state() + ` END, k.dangling, k.declared
FROM (
    SELECT r.path, r.kind, r.target, r.to_collection AS collection, r.to_did AS did, r.to_rkey AS rkey, r.cid, r.dangling, r.declared
    FROM record_refs AS r
    WHERE r.did = $1 AND r.collection = $2 AND r.rkey = $3
    ORDER BY r.path COLLATE "C", r.target COLLATE "C"
    OFFSET $4 LIMIT $5
) AS k
ORDER BY k.path COLLATE "C", k.target COLLATE "C"`
	page.List, err = schema.All(ctx, db, "read the references of a record", pgx.RowToStructByPos[Reference], sql, k.DID, k.Collection, k.Rkey,
		from.Skip, limit+1)
	if len(page.List) > limit {
		page.List = page.List[:limit]
		page.Next = position{Of: of, Skip: from.Skip + limit}.cursor()
	}
	for i := range page.List { // targets that were deleted since the reference was stored
		page.List[i].Dangling = page.List[i].Dangling || page.List[i].State == Deleted
	}
	return page, err
}

// ReadReferrers returns a part of the references to a record, which need not be stored.
func ReadReferrers(ctx context.Context, db DB, k schema.Key, limit int, after Cursor) (page Referrers, err error) {
	of, from := "referrers "+k.URI(), position{}
	if after != "" {
		if from, err = after.read(of); err != nil {
			return page, err
		}
	}
	sql := `
SELECT r.collection, r.did, r.rkey, r.path, r.kind
FROM record_refs AS r
WHERE r.to_did = $1 AND r.to_collection = $2 AND r.to_rkey = $3 AND (r.did, r.collection, r.rkey, r.path COLLATE "C") > ($4, $5, $6, $7)
    AND` + shown("r.did") + `
ORDER BY r.did, r.collection, r.rkey, r.path COLLATE "C"
LIMIT $8`
	page.List, err = schema.All(ctx, db, "read the referrers of a record", func(row pgx.CollectableRow) (r Referrer, err error) {
		err = row.Scan(&r.key.Collection, &r.key.DID, &r.key.Rkey, &r.Path, &r.Kind)
		r.URI = r.key.URI()
		return r, err
	}, sql, k.DID, k.Collection, k.Rkey, from.Key.DID, from.Key.Collection, from.Key.Rkey, string(from.Path), limit+1)
	if len(page.List) > limit {
		page.List = page.List[:limit]
		last := page.List[limit-1]
		page.Next = position{Of: of, Key: last.key, Path: []byte(last.Path)}.cursor()
	}
	return page, err
}

// An Account is the owner of records.
type Account struct {
	DID    string
	Status string // "active", "withheld", or another reason why its records are hidden
}

// FindAccount returns the account with a DID or a handle. An account that Weir does not know
// is active. For an unknown handle it returns schema.ErrNoRows.
func FindAccount(ctx context.Context, db DB, identifier string) (Account, error) {
	did := schema.HandleOwner
	if len(identifier) > 4 && identifier[:4] == "did:" {
		did = `SELECT $1::text AS did`
	}
	sql := `
SELECT k.did, CASE WHEN coalesce(a.status, 'active') = 'active' AND` + schema.Withheld("k.did") + `THEN 'withheld'
    ELSE coalesce(a.status, 'active') END
FROM (` + did + `) AS k LEFT JOIN accounts AS a ON a.did = k.did`
	return schema.One(ctx, db, "find the account", pgx.RowToStructByPos[Account], sql, identifier)
}
