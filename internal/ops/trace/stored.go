package trace

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// StoredRecord is a stored record.
type StoredRecord struct {
	Rev       string          `json:"rev"`
	CID       string          `json:"cid"`
	CreatedAt time.Time       `json:"created_at"`
	IndexedAt time.Time       `json:"indexed_at"`
	Record    json.RawMessage `json:"record"`
}

// findRecord returns a record, or schema.ErrNoRows.
func findRecord(ctx context.Context, db schema.DB, k schema.Key) (StoredRecord, error) {
	const sql = `
SELECT rev AS rev, cid AS cid, created_at AS created_at, indexed_at AS indexed_at, record AS record
FROM records
WHERE collection = $1 AND did = $2 AND rkey = $3`
	return schema.One(ctx, db, "read the record", pgx.RowToStructByName[StoredRecord], sql, k.Collection, k.DID, k.Rkey)
}

// Tombstone is the newest deletion of a record.
type Tombstone struct {
	Rev       string     `json:"rev"`
	DeletedAt *time.Time `json:"deleted_at"` // nil: the tombstone stays
}

// findTombstone returns a record's tombstone, or schema.ErrNoRows.
func findTombstone(ctx context.Context, db schema.DB, k schema.Key) (Tombstone, error) {
	sql := `
SELECT t.rev AS rev, t.deleted_at AS deleted_at
FROM tombstones AS t
WHERE ` + schema.DeletesFrom("$1") + ` AND t.did = $2 AND t.rkey = $3
ORDER BY t.rev DESC
LIMIT 1`
	return schema.One(ctx, db, "read the tombstone", pgx.RowToStructByName[Tombstone], sql, k.Collection, k.DID, k.Rkey)
}

// Account decides whether an account counts.
type Account struct {
	DID      string   `json:"did"`
	Handle   string   `json:"handle,omitempty"`
	Status   string   `json:"status"`            // only active accounts count
	Followed bool     `json:"followed"`          // by a watch, or because Weir follows the whole network
	Watches  []string `json:"watches,omitempty"` // the targets of the watches that include it
	Problem  string   `json:"feed_problem,omitempty"`
}

// findAccount reads the standing of an account. An unknown account is active.
func findAccount(ctx context.Context, db schema.DB, did string) (Account, error) {
	const sql = `
SELECT v.did                                                   AS did,
       coalesce(a.handle, '')                                  AS handle,
       coalesce(a.status, 'active')                            AS status,
       NOT EXISTS (SELECT FROM watches) OR cardinality(w.targets) > 0 AS followed,
       w.targets                                               AS watches,
       coalesce(a.feed_problem, '')                            AS problem
FROM (VALUES ($1::text)) AS v (did)
LEFT JOIN accounts AS a ON a.did = v.did
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(w.target ORDER BY w.id), '{}') AS targets
    FROM watch_members AS m JOIN watches AS w ON w.id = m.watch_id
    WHERE m.did = v.did
) AS w`
	return schema.One(ctx, db, "read the standing of "+did, pgx.RowToStructByName[Account], sql, did)
}

// Job is a job of a record or its account.
type Job struct {
	ID          int64      `json:"id"`
	Kind        string     `json:"kind"`
	State       string     `json:"state"`
	Attempt     int        `json:"attempt"`
	MaxAttempts int        `json:"max_attempts"`
	Records     int        `json:"records"` // number of records in its batch
	CreatedAt   time.Time  `json:"created_at"`
	AttemptedAt *time.Time `json:"attempted_at,omitempty"`
	FinalizedAt *time.Time `json:"finalized_at,omitempty"`
	By          []string   `json:"attempted_by,omitempty"`
	Errors      []string   `json:"errors,omitempty"`
	Metadata    string     `json:"metadata,omitempty"` // JSON: the position in a feed, and River's log
}

// SearchedJobs is the number of newest jobs that a trace searches. There is no index on
// the arguments, because it would triple the cost of every job.
const SearchedJobs = 50_000

// jobsOf lists at most 20 jobs, newest first, that process a record or backfill its
// account.
func jobsOf(ctx context.Context, db schema.DB, k schema.Key) ([]Job, error) {
	const sql = `
SELECT j.id AS id, j.kind AS kind, j.state::text AS state, j.attempt::int AS attempt, j.max_attempts::int AS max_attempts,
       CASE WHEN j.kind <> 'backfill_account' THEN jsonb_array_length(coalesce(j.args -> 'records',
           j.args -> 'posts')) + coalesce(jsonb_array_length(j.args -> 'reposts'), 0)
            + coalesce(jsonb_array_length(j.args -> 'others'), 0) ELSE 0 END AS records,
       j.created_at AS created_at, j.attempted_at AS attempted_at, j.finalized_at AS finalized_at, coalesce(j.attempted_by, '{}') AS by,
       ARRAY(SELECT e ->> 'error' FROM unnest(j.errors) AS e) AS errors,
       CASE WHEN j.metadata = '{}' THEN '' ELSE left(j.metadata::text, 4000) END AS metadata
FROM (SELECT * FROM river_job ORDER BY id DESC LIMIT $4) AS j
WHERE j.kind = ANY (ARRAY(SELECT p.kind FROM projections AS p))
      AND CASE WHEN jsonb_typeof(j.args -> 'records') = 'array' THEN j.args -> 'records' ? ($2 || '/' || $1 || '/' || $3)
               WHEN $1 = 'app.bsky.feed.post' THEN jsonb_typeof(j.args -> 'posts') = 'array' AND j.args -> 'posts' ? ($2 || '/' || $3)
               WHEN $1 = 'app.bsky.feed.repost' THEN jsonb_typeof(j.args -> 'reposts') = 'array' AND j.args -> 'reposts' ? ($2 || '/' || $3)
               ELSE jsonb_typeof(j.args -> 'others') = 'array' AND j.args -> 'others' ? ($2 || '/' || $1 || '/' || $3) END
   OR j.kind = 'backfill_account' AND j.args ->> 'did' = $2
ORDER BY j.id DESC
LIMIT 20`
	return schema.All(ctx, db, "find the jobs of the record", pgx.RowToStructByName[Job], sql, k.Collection, k.DID, k.Rkey, SearchedJobs)
}

// DeadLetter is a dead letter of a record.
type DeadLetter struct {
	ID       int64     `json:"id"`
	Stage    string    `json:"stage"`
	Cause    string    `json:"cause"`
	LastSeen time.Time `json:"last_seen"`
}

// deadLettersOf lists at most 20 dead letters of a record, newest first.
func deadLettersOf(ctx context.Context, db schema.DB, k schema.Key) ([]DeadLetter, error) {
	const sql = `
SELECT id AS id, stage AS stage, cause AS cause, last_seen AS last_seen
FROM dead_letters
WHERE collection = $1 AND did = $2 AND rkey = $3
ORDER BY last_seen DESC
LIMIT 20`
	return schema.All(ctx, db, "find the dead letters of the record", pgx.RowToStructByName[DeadLetter], sql, k.Collection, k.DID, k.Rkey)
}

// Gap is a gap, open or closed.
type Gap struct {
	Stream    string    `json:"stream"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Reason    string    `json:"reason"`
	HowClosed string    `json:"how_closed,omitempty"` // empty: it is open
}

// gapsAt lists at most 20 gaps that contain a time.
func gapsAt(ctx context.Context, db schema.DB, at time.Time) ([]Gap, error) {
	const sql = `
SELECT stream AS stream, from_at AS "from", to_at AS "to", reason AS reason,
    coalesce(how_closed, CASE WHEN closed_at IS NULL THEN '' ELSE 'closed' END) AS how_closed
FROM gaps
WHERE from_at <= $1 AND to_at >= $1
ORDER BY from_at
LIMIT 20`
	return schema.All(ctx, db, "find the gaps", pgx.RowToStructByName[Gap], sql, at)
}

// Fault is a fault of a record that an audit found.
type Fault struct {
	At     time.Time `json:"at"`
	Fault  string    `json:"fault"`
	Detail string    `json:"detail,omitempty"`
}

// faultsOf lists at most 20 faults of a record that audits found, latest first.
func faultsOf(ctx context.Context, db schema.DB, k schema.Key) ([]Fault, error) {
	const sql = `
SELECT a.ended_at AS at, f.fault AS fault, f.detail AS detail
FROM audit_faults AS f JOIN audits AS a ON a.id = f.audit_id
WHERE f.did = $1 AND f.collection = $2 AND f.rkey = $3
ORDER BY a.ended_at DESC
LIMIT 20`
	return schema.All(ctx, db, "find the faults of the record", pgx.RowToStructByName[Fault], sql, k.DID, k.Collection, k.Rkey)
}
