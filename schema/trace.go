package schema

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
)

// StoredRecord is a stored record.
type StoredRecord struct {
	Rev       string          `json:"rev"`
	CID       string          `json:"cid"`
	CreatedAt time.Time       `json:"created_at"`
	IndexedAt time.Time       `json:"indexed_at"`
	Record    json.RawMessage `json:"record"`
}

// FindRecord returns a record, or ErrNoRows.
func FindRecord(ctx context.Context, db DB, k Key) (StoredRecord, error) {
	const sql = `
SELECT rev AS rev, cid AS cid, created_at AS created_at, indexed_at AS indexed_at, record AS record
FROM records
WHERE collection = $1 AND did = $2 AND rkey = $3`
	return One(ctx, db, "read the record", pgx.RowToStructByName[StoredRecord], sql, k.Collection, k.DID, k.Rkey)
}

// Tombstone is the newest deletion of a record.
type Tombstone struct {
	Rev       string     `json:"rev"`
	DeletedAt *time.Time `json:"deleted_at"` // nil: the tombstone stays
}

// FindTombstone returns a record's tombstone, or ErrNoRows.
func FindTombstone(ctx context.Context, db DB, k Key) (Tombstone, error) {
	const sql = `SELECT rev AS rev, deleted_at AS deleted_at FROM tombstones WHERE collection = $1 AND did = $2 AND rkey = $3`
	return One(ctx, db, "read the tombstone", pgx.RowToStructByName[Tombstone], sql, k.Collection, k.DID, k.Rkey)
}

// AccountStanding holds the facts that decide whether an account counts.
type AccountStanding struct {
	DID      string   `json:"did"`
	Handle   string   `json:"handle,omitempty"`
	Status   string   `json:"status"`            // only active accounts count
	Followed bool     `json:"followed"`          // by a watch, or because Weir follows the whole network
	Watches  []string `json:"watches,omitempty"` // the targets of the watches that include it
	Problem  string   `json:"feed_problem,omitempty"`
}

// FindAccountStanding reads the standing of an account. An unknown account is active.
func FindAccountStanding(ctx context.Context, db DB, did string) (AccountStanding, error) {
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
	return One(ctx, db, "read the standing of "+did, pgx.RowToStructByName[AccountStanding], sql, did)
}

// FindDID returns the account that last had a handle, or ErrNoRows.
func FindDID(ctx context.Context, db DB, handle string) (string, error) {
	return One(ctx, db, "find the handle "+handle, pgx.RowTo[string], `SELECT did FROM accounts WHERE handle = $1 ORDER BY handle_at DESC NULLS LAST LIMIT 1`, handle)
}

// TracedJob is a job about a record or its account.
type TracedJob struct {
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

// TracedJobs is the number of newest jobs that a trace searches. There is no index on
// the arguments, because it would triple the cost of every job.
const TracedJobs = 50_000

// JobsOf lists at most 20 jobs, newest first, that process a record or backfill its
// account.
func JobsOf(ctx context.Context, db DB, k Key) ([]TracedJob, error) {
	const sql = `
SELECT j.id AS id, j.kind AS kind, j.state::text AS state, j.attempt::int AS attempt, j.max_attempts::int AS max_attempts,
       CASE WHEN j.kind <> 'backfill_account' THEN jsonb_array_length(coalesce(j.args -> 'records', j.args -> 'posts')) + coalesce(jsonb_array_length(j.args -> 'reposts'), 0)
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
	return All(ctx, db, "find the jobs of the record", pgx.RowToStructByName[TracedJob], sql, k.Collection, k.DID, k.Rkey, TracedJobs)
}

// TracedDeadLetter is a dead letter of a record.
type TracedDeadLetter struct {
	ID       int64     `json:"id"`
	Stage    string    `json:"stage"`
	Cause    string    `json:"cause"`
	LastSeen time.Time `json:"last_seen"`
}

// DeadLettersOf lists at most 20 dead letters of a record, newest first.
func DeadLettersOf(ctx context.Context, db DB, k Key) ([]TracedDeadLetter, error) {
	const sql = `
SELECT id AS id, stage AS stage, cause AS cause, last_seen AS last_seen
FROM dead_letters
WHERE collection = $1 AND did = $2 AND rkey = $3
ORDER BY last_seen DESC
LIMIT 20`
	return All(ctx, db, "find the dead letters of the record", pgx.RowToStructByName[TracedDeadLetter], sql, k.Collection, k.DID, k.Rkey)
}

// TracedGap is a gap, open or closed.
type TracedGap struct {
	Stream    string    `json:"stream"`
	From      time.Time `json:"from"`
	To        time.Time `json:"to"`
	Reason    string    `json:"reason"`
	HowClosed string    `json:"how_closed,omitempty"` // empty: it is open
}

// GapsAt lists at most 20 gaps that contain a time.
func GapsAt(ctx context.Context, db DB, at time.Time) ([]TracedGap, error) {
	const sql = `
SELECT stream AS stream, from_at AS "from", to_at AS "to", reason AS reason, coalesce(how_closed, CASE WHEN closed_at IS NULL THEN '' ELSE 'closed' END) AS how_closed
FROM gaps
WHERE from_at <= $1 AND to_at >= $1
ORDER BY from_at
LIMIT 20`
	return All(ctx, db, "find the gaps", pgx.RowToStructByName[TracedGap], sql, at)
}

// TracedFault is a fault of a record that an audit found.
type TracedFault struct {
	At     time.Time `json:"at"`
	Fault  string    `json:"fault"`
	Detail string    `json:"detail,omitempty"`
}

// FaultsOf lists at most 20 faults of a record that audits found, latest first.
func FaultsOf(ctx context.Context, db DB, k Key) ([]TracedFault, error) {
	const sql = `
SELECT a.ended_at AS at, f.fault AS fault, f.detail AS detail
FROM audit_faults AS f JOIN audits AS a ON a.id = f.audit_id
WHERE f.did = $1 AND f.collection = $2 AND f.rkey = $3
ORDER BY a.ended_at DESC
LIMIT 20`
	return All(ctx, db, "find the faults of the record", pgx.RowToStructByName[TracedFault], sql, k.DID, k.Collection, k.Rkey)
}
