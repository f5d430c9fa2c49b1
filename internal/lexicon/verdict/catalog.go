package verdict

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// The sources of schemas.
const (
	SourceFolder   = "folder"
	SourceResolved = "resolved"
)

// A Document is a schema file.
type Document struct {
	NSID      string
	JSON      json.RawMessage
	Source    string
	Authority string // the account that published it; empty: none
}

// Hash returns a hash of the document.
func (d *Document) Hash() string {
	sum := sha256.Sum256(d.JSON)
	return hex.EncodeToString(sum[:])
}

// versionOf is the version of the stored catalog. It changes with every document, and with
// the strictly compared collections.
const versionOf = `SELECT coalesce(encode(sha256(string_agg(d.line, E'\n' ORDER BY d.line)::bytea), 'hex'), '')
FROM (SELECT nsid || ' ' || hash FROM lexicons UNION ALL SELECT 'strict ' || pattern FROM strict_lexicons) AS d (line)`

// LockCatalog locks the stored catalog against changes until the transaction ends, and
// returns its version.
func LockCatalog(ctx context.Context, tx pgx.Tx) (version string, err error) {
	q := &pgx.Batch{}
	q.Queue(`LOCK TABLE lexicons IN ROW SHARE MODE`)
	q.Queue(versionOf).QueryRow(func(row pgx.Row) error { return row.Scan(&version) })
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return "", fmt.Errorf("lock the lexicons: %w", err)
	}
	return version, nil
}

// Documents returns the stored schemas, by name.
func Documents(ctx context.Context, db schema.DB) ([]Document, error) {
	const sql = `SELECT nsid, document, source, coalesce(authority, '') FROM lexicons ORDER BY nsid`
	return schema.All(ctx, db, "read the lexicons", pgx.RowToStructByPos[Document], sql)
}

// Strict returns the collections that are compared strictly: names and prefixes.
func Strict(ctx context.Context, db schema.DB) ([]string, error) {
	const sql = `SELECT pattern FROM strict_lexicons ORDER BY pattern`
	return schema.All(ctx, db, "read what is compared strictly", pgx.RowTo[string], sql)
}

// A Change is a change of the stored catalog.
type Change struct {
	Source    string
	Documents []Document // they replace those with the same names
	// Whole: Documents are the only ones of their source, and Strict lists everything that
	// is compared strictly.
	Whole  bool
	Strict []string // names and prefixes of collections
}

// Apply changes the stored catalog. It returns its version and whether that has changed.
// It waits for the transactions that judge with the old catalog. If load returns an error,
// because the documents cannot be used together, nothing is changed.
func (c *Change) Apply(ctx context.Context, tx pgx.Tx, load func([]Document) error) (version string, changed bool, err error) {
	if _, err := tx.Exec(ctx, `LOCK TABLE lexicons IN EXCLUSIVE MODE`); err != nil {
		return "", false, fmt.Errorf("lock the lexicons: %w", err)
	}
	before, err := schema.One(ctx, tx, "read the version of the lexicons", pgx.RowTo[string], versionOf)
	if err != nil {
		return "", false, err
	}
	const upsert = `
INSERT INTO lexicons AS l (nsid, document, hash, source, authority)
SELECT d.nsid, d.document, d.hash, $4, nullif(d.authority, '')
FROM unnest($1::text[], $2::jsonb[], $3::text[], $5::text[]) AS d (nsid, document, hash, authority)
ON CONFLICT (nsid) DO UPDATE
SET document = excluded.document, hash = excluded.hash, source = excluded.source, authority = excluded.authority,
    loaded_at = excluded.loaded_at
WHERE (l.hash, l.source, l.authority) IS DISTINCT FROM (excluded.hash, excluded.source, excluded.authority)
  AND (l.source = excluded.source OR excluded.source = 'folder')`
	n := len(c.Documents)
	nsid, json_, hash, authority := make([]string, n), make([]json.RawMessage, n), make([]string, n), make([]string, n)
	for i := range c.Documents {
		d := &c.Documents[i]
		nsid[i], json_[i], hash[i], authority[i] = d.NSID, d.JSON, d.Hash(), d.Authority
	}
	q := &pgx.Batch{}
	if c.Whole {
		strict := append([]string{}, c.Strict...)
		q.Queue(`DELETE FROM lexicons WHERE source = $1 AND nsid <> ALL ($2::text[])`, c.Source, nsid)
		q.Queue(`DELETE FROM strict_lexicons WHERE pattern <> ALL ($1::text[])`, strict)
		q.Queue(`INSERT INTO strict_lexicons (pattern) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING`, strict)
	}
	q.Queue(upsert, nsid, json_, hash, c.Source, authority)
	q.Queue(versionOf).QueryRow(func(row pgx.Row) error { return row.Scan(&version) })
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return "", false, fmt.Errorf("store lexicons: %w", err)
	}
	if version == before {
		return version, false, nil
	}
	all, err := Documents(ctx, tx)
	if err != nil {
		return "", false, err
	}
	return version, true, load(all)
}

// Collections returns the collections that have verdicts.
func Collections(ctx context.Context, db schema.DB) ([]string, error) {
	return schema.CollectionsIn(ctx, db, "verdicts")
}

// Outdated returns at most limit records of a collection whose verdicts were made with
// another schema than the one with the given hash, sorted, after a key.
func Outdated(ctx context.Context, db schema.DB, collection, hash string, after schema.Key, limit int) ([]schema.Key, error) {
	const sql = `
SELECT collection, did, rkey FROM verdicts
WHERE collection = $1 AND schema_hash <> $2 AND (did, rkey) > ($3, $4)
ORDER BY did, rkey LIMIT $5`
	return schema.All(ctx, db, "read what was judged with another schema", pgx.RowToStructByPos[schema.Key], sql, collection, hash, after.DID,
		after.Rkey, limit)
}
