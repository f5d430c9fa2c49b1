package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Audit is the result of a comparison of the stored records with the accounts'
// repositories.
type Audit struct {
	Started  time.Time  `json:"started_at"`
	Ended    time.Time  `json:"ended_at"`
	From     *time.Time `json:"from"`     // the start of the compared records; nil: none were compared
	To       *time.Time `json:"to"`       // the end of the compared records
	Accounts int        `json:"accounts"` // to be compared
	Failures int        `json:"failures"` // of these, those that could not be compared
	Pending  int        `json:"pending"`  // left out, because their backfill is not complete
	Records  int        `json:"records"`  // records compared
	Missing  int        `json:"missing"`  // in the repository, not stored
	Extra    int        `json:"extra"`    // stored, not in the repository
	Stale    int        `json:"stale"`    // stored in another version than the repository's
	Score    *float64   `json:"score"`    // the fraction that agrees, 0 to 1; nil: no record was compared
	Repaired bool       `json:"repaired"`

	Compared []Compared `db:"-" json:"compared,omitempty"` // the accounts that were compared; set by the audit itself
}

// Compared is the part of an account that was compared.
type Compared struct {
	DID     string    `json:"did"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Records int       `json:"records"`
}

// The kinds of faults.
const (
	FaultMissing = "missing"
	FaultExtra   = "extra"
	FaultStale   = "stale"
	FaultUnread  = "unread" // the account could not be compared
)

// Fault is a difference that an audit found.
type Fault struct {
	DID        string `json:"did"`
	Collection string `json:"collection,omitempty"`
	Rkey       string `json:"rkey,omitempty"` // empty, like Collection: the whole account
	Fault      string `json:"fault"`
	Detail     string `json:"detail,omitempty"`
	Deleted    bool   `json:"-"` // the missing record has a tombstone
	Rev        string `json:"-"` // of the stored record
}

// AuditCandidate is an account that an audit can compare.
type AuditCandidate struct {
	DID   string
	Since time.Time // everything that the account wrote since then should be stored
}

// auditable selects the followed, visible accounts, and the time since which their
// records should be stored: the start of what was read or, if the account could not be
// read, one minute after it was followed. ready is false while a read is outstanding. If
// Weir follows the whole network, it selects the accounts of the latest posts, and for
// each the time of the first of these posts. Nostr accounts have no repository to
// compare with.
const auditable = `
    SELECT w.did, least(max(a.read_since), min(w.added_at) + interval '1 minute') AS since,
           coalesce(max(a.feed_problem), '') <> '' OR max(a.read_since) IS NOT NULL AND max(a.reread_since) IS NULL AS ready
    FROM watch_members AS w
    LEFT JOIN accounts AS a ON a.did = w.did
    WHERE (a.status IS NULL OR a.status = 'active') AND w.did NOT LIKE ` + NostrDIDs + `
    GROUP BY w.did
    UNION ALL
    SELECT l.did, min(l.indexed_at) + interval '1 minute', true
    FROM (
        SELECT did, indexed_at FROM posts
        WHERE NOT EXISTS (SELECT FROM watches)
        ORDER BY indexed_at DESC LIMIT 5000
    ) AS l
    WHERE NOT EXISTS (SELECT FROM accounts AS h WHERE h.did = l.did AND h.status <> 'active')
    GROUP BY l.did`

// AuditSample picks at most limit random accounts whose posts have been read.
// pending is the number of accounts that are not read yet.
func AuditSample(ctx context.Context, db DB, limit int) (sample []AuditCandidate, pending int, err error) {
	const pick = `SELECT a.did AS did, a.since AS since FROM (` + auditable + `) AS a WHERE a.ready ORDER BY random() LIMIT $1`
	if sample, err = All(ctx, db, "pick accounts to audit", pgx.RowToStructByName[AuditCandidate], pick, limit); err != nil {
		return nil, 0, err
	}
	const others = `SELECT count(*) FROM (` + auditable + `) AS a WHERE NOT a.ready`
	pending, err = One(ctx, db, "count accounts that cannot be audited yet", pgx.RowTo[int], others)
	return sample, pending, err
}

// SourceRecord is a record in its repository.
type SourceRecord struct {
	Rkey   string
	CID    string
	Record []byte // JSON
}

// Span is the range of a collection's records that a comparison covers: rkeys from Lower
// to below Upper and, if they are TIDs, from From to below To. Projected rows whose
// records have expired are covered from Since on.
type Span struct {
	Collection   string
	Lower, Upper string
	From, To     string
	Undated      bool     // compare rkeys that are not TIDs too
	Since        string   // at or before From
	Tables       []string // the Compared tables of the projections that read the collection
}

// OldestProjected returns the smallest rkey between since and from (exclusive) whose
// record has rows in the tables of a span, or from if there is none.
func OldestProjected(ctx context.Context, db DB, did string, in Span, since string) (string, error) {
	oldest := in.From
	for _, table := range in.Tables {
		const sql = `
			SELECT coalesce(min(p.rkey), $4) FROM %s AS p WHERE p.did = $1 AND p.collection = $2 AND p.rkey >= $3 AND p.rkey < $4 AND ` + isTID
		found, err := One(ctx, db, "find the oldest row of "+did+" in "+table, pgx.RowTo[string],
			fmt.Sprintf(sql, pgx.Identifier{table}.Sanitize()), did, in.Collection, since, oldest)
		if err != nil {
			return "", err
		}
		oldest = found
	}
	return oldest, nil
}

// isTID is true if the rkey of the row p is a TID.
const isTID = `p.rkey ~ '^[234567a-j][234567a-z]{12}$'`

// Compare returns the differences between the stored records of an account and those
// that its repository lists, within a span. others are further rkeys that the repository
// lists. An expired record is extra if projections still have rows of it but the
// repository no longer lists it.
func Compare(ctx context.Context, db DB, did string, in Span, listed []SourceRecord, others []string) ([]Fault, error) {
	// Naming the table keeps a plan from opening all partitions.
	const sql = `
WITH listed AS MATERIALIZED (
    SELECT l.rkey, l.cid, l.record FROM unnest($8::text[], $9::text[], $10::jsonb[]) AS l (rkey, cid, record)
), kept AS MATERIALIZED (
    SELECT p.rkey, p.rev, p.cid, p.record FROM %s AS p
    WHERE p.collection = $2 AND p.did = $1 AND p.rkey >= $3 AND p.rkey < $4
      AND CASE WHEN ` + isTID + ` THEN p.rkey >= $5 AND p.rkey < $6 ELSE $7 END
)%s
SELECT $1::text AS did,
       $2::text AS collection,
       coalesce(l.rkey, k.rkey) AS rkey,
       CASE WHEN k.rkey IS NULL THEN 'missing' WHEN l.rkey IS NULL THEN 'extra' ELSE 'stale' END AS fault,
       CASE WHEN k.rkey IS NULL AND t.rkey IS NOT NULL THEN 'a tombstone says that it was deleted'
            WHEN l.cid <> k.cid THEN 'another version is stored'
            WHEN l.record <> k.record THEN 'the stored record does not match its CID'
            ELSE '' END AS detail,
       k.rkey IS NULL AND t.rkey IS NOT NULL AS deleted,
       coalesce(k.rev, '') AS rev
FROM listed AS l
FULL JOIN kept AS k ON k.rkey = l.rkey
LEFT JOIN tombstones AS t ON t.collection = $2 AND t.did = $1 AND t.rkey = l.rkey
WHERE k.rkey IS NULL OR l.rkey IS NULL OR l.cid <> k.cid OR l.record <> k.record%s
ORDER BY 3`
	table := "records_other"
	if in.Collection == PostCollection {
		table = "posts"
	}
	projected, extra := "", ""
	if len(in.Tables) > 0 {
		projected, extra = projectedRows(table, in.Tables), `
UNION ALL
SELECT $1, $2, p.rkey, 'extra', 'it has expired, and was deleted', false, '' FROM projected AS p
WHERE p.rkey <> ALL ($11::text[]) AND NOT EXISTS (SELECT FROM listed AS l WHERE l.rkey = p.rkey)`
	}
	n := len(listed)
	rkey, cid := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	record := make(pgtype.FlatArray[json.RawMessage], n)
	for i, l := range listed {
		rkey[i], cid[i], record[i] = l.Rkey, l.CID, l.Record
	}
	args := []any{did, in.Collection, in.Lower, in.Upper, in.From, in.To, in.Undated, rkey, cid, record}
	if len(in.Tables) > 0 {
		args = append(args, pgtype.FlatArray[string](others), in.Since)
	}
	return All(ctx, db, "compare the records of "+did, pgx.RowToStructByName[Fault], fmt.Sprintf(sql, table, projected, extra), args...)
}

// projectedRows returns the part of Compare that finds the rkeys of rows whose records
// are not stored.
func projectedRows(records string, tables []string) string {
	const sql = `
    SELECT p.rkey FROM %s AS p
    WHERE p.collection = $2 AND p.did = $1 AND p.rkey >= $3 AND p.rkey < $4 AND p.rkey >= $12 AND p.rkey < $6 AND ` + isTID + `
      AND NOT EXISTS (SELECT FROM %s AS r WHERE r.collection = $2 AND r.did = $1 AND r.rkey = p.rkey)`
	selects := make([]string, len(tables))
	for i, table := range tables {
		selects[i] = fmt.Sprintf(sql, pgx.Identifier{table}.Sanitize(), records)
	}
	return ", projected AS MATERIALIZED (" + strings.Join(selects, "\n    UNION") + "\n)"
}

// DeleteRecords deletes records that no stream deleted, by the same rules as a stream:
// it leaves tombstones and keeps newer revisions. Call it before the transaction locks
// anything else.
func DeleteRecords(ctx context.Context, tx pgx.Tx, deletions []Deletion, projections Projections, hooks ...Hook) error {
	b := Batch{Deletions: deletions, Committer: Committer{Projections: projections, Hooks: hooks}}
	q := &pgx.Batch{}
	b.accounts().queueLocks(q, exclusively)
	b.queueTombstones(q)
	b.queueHooks(q)
	b.queueWrites(q, new([]Key)) // locks the rows
	b.queueDeletions(q, tx)
	return Send(ctx, tx, "delete records", q)
}

// RepairRecords replaces records by their repository's version, unless the stored
// revision is later, or the same row is stored: the stream may have brought it meanwhile.
// A later tombstone keeps a record deleted. It returns the keys of the records that it
// wrote. Call it before the transaction locks anything else, except through
// DeleteRecords.
func RepairRecords(ctx context.Context, tx pgx.Tx, writes []Write) (written []Key, err error) {
	if len(writes) == 0 {
		return nil, nil
	}
	const lock = `
SELECT count(*)
FROM (SELECT collection, did, rkey FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS k (collection, did, rkey, n)
    ORDER BY n) AS k
CROSS JOIN LATERAL (
    SELECT FROM records AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey LIMIT 1 FOR UPDATE
) AS r`
	const prepare = `
WITH w AS (
    SELECT w.* FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::jsonb[])
                    AS w (collection, did, rkey, rev, cid, created_at, record)
    WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status = 'deleted')
), unburied AS (
    DELETE FROM tombstones AS t USING w
    WHERE t.collection = w.collection AND t.did = w.did AND t.rkey = w.rkey AND t.rev <= w.rev
)
UPDATE records AS r SET rev = '' FROM w
WHERE r.collection = w.collection AND r.did = w.did AND r.rkey = w.rkey AND r.rev = w.rev
  AND (r.cid <> w.cid OR r.created_at <> w.created_at OR r.record <> w.record)`
	b := Batch{Writes: sortedWrites(writes)}
	columns := b.writeColumns(len(b.Writes))
	q := &pgx.Batch{}
	b.accounts().queueLocks(q, exclusively)
	q.Queue(lock, columns[:3]...)
	q.Queue(prepare, columns[:7]...)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return nil, fmt.Errorf("repair records: %w", err)
	}
	return StoreRecords(ctx, tx, writes)
}

// maxFaultsPerKind limits the stored faults of a kind in one audit. auditsKept is how
// long audits are kept.
const (
	maxFaultsPerKind = 1000
	auditRetention   = 90 * 24 * time.Hour
)

// StoreAudit stores the result of an audit and deletes old audits.
func StoreAudit(ctx context.Context, tx pgx.Tx, a Audit, faults []Fault) error {
	const audit = `
INSERT INTO audits (started_at, ended_at, from_at, to_at, accounts, failures, pending, records, missing, extra, stale, score, repaired)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
RETURNING id`
	id, err := One(ctx, tx, "store the audit", pgx.RowTo[int64], audit, a.Started, a.Ended, a.From, a.To, a.Accounts, a.Failures, a.Pending,
		a.Records, a.Missing, a.Extra, a.Stale, a.Score, a.Repaired)
	if err != nil {
		return err
	}
	const sql = `
INSERT INTO audit_faults (audit_id, did, collection, rkey, fault, detail)
SELECT $1, f.did, f.collection, f.rkey, f.fault, f.detail FROM (
    SELECT f.*, row_number() OVER (PARTITION BY f.fault ORDER BY f.did, f.collection, f.rkey) AS n
    FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) AS f (did, collection, rkey, fault, detail)
) AS f
WHERE f.n <= $7
ON CONFLICT DO NOTHING`
	n := len(faults)
	keys := newKeyColumns(n)
	fault, detail := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	for i, f := range faults {
		keys.set(i, Key{Collection: f.Collection, DID: f.DID, Rkey: f.Rkey})
		fault[i], detail[i] = f.Fault, Text(f.Detail)
	}
	if _, err := tx.Exec(ctx, sql, id, keys.did, keys.collection, keys.rkey, fault, detail, maxFaultsPerKind); err != nil {
		return fmt.Errorf("store the faults of the audit: %w", err)
	}
	_, err = Change(ctx, tx, "delete old audits", `DELETE FROM audits WHERE ended_at < $1`, a.Ended.Add(-auditRetention))
	return err
}

// LastAudit returns the audit that ended last, or ErrNoRows.
func LastAudit(ctx context.Context, db DB) (Audit, error) {
	const sql = `
SELECT started_at AS started, ended_at AS ended, from_at AS "from", to_at AS "to", accounts AS accounts, failures AS failures,
    pending AS pending, records AS records,
       missing AS missing, extra AS extra, stale AS stale, score AS score, repaired AS repaired
FROM audits
ORDER BY ended_at DESC, id DESC
LIMIT 1`
	return One(ctx, db, "read the last audit", pgx.RowToStructByName[Audit], sql)
}

// MadeAt returns when the database was made; no audit can be older. It returns the zero
// time if that is unknown.
func MadeAt(ctx context.Context, db DB) (time.Time, error) {
	at, err := One(ctx, db, "read the age of the database", pgx.RowTo[*time.Time], `SELECT min(applied_at) FROM weir_migration`)
	if err != nil || at == nil {
		return time.Time{}, err
	}
	return *at, nil
}
