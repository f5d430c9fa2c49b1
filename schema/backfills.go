package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// APISlot is the right to make one call now.
type APISlot struct {
	Slot *int          // nil: all slots are taken
	Wait time.Duration // until the call may start; without a slot, until the next try
	Now  time.Time     // by the database's clock; Wait starts here
}

// TakeAPISlot reserves the start of a call. All processes together make at most
// slots calls at once, and start them at least spacing apart. A slot that is not
// released becomes free after ttl.
func TakeAPISlot(ctx context.Context, db DB, holder string, slots int, spacing, ttl time.Duration) (APISlot, error) {
	const sql = `SELECT slot, wait, now_at FROM take_api_slot($1, $2, $3, $4)`
	return One(ctx, db, "reserve a call", pgx.RowToStructByPos[APISlot], sql, holder, slots, spacing, ttl)
}

// ReleaseAPISlot frees a slot.
func ReleaseAPISlot(ctx context.Context, db DB, slot int, holder string) error {
	return Exec(ctx, db, "release a call", `SELECT release_api_slot($1, $2)`, holder, slot)
}

// Feed is the stored state of an account's feed.
type Feed struct {
	Handle           string
	Newest           *time.Time // the newest post of a complete backfill
	Problem          string
	CompleteSince    *time.Time // posts since then are stored or will be reread; nil: the account is not followed, or was never read
	RereadsRequested int        // how many rereads were requested
}

// FindFeed returns the state of an account's feed. It is empty if the account has
// no row.
func FindFeed(ctx context.Context, db DB, did string) (Feed, error) {
	const sql = `
SELECT coalesce(a.handle, '') AS handle, a.feed_newest AS newest, coalesce(a.feed_problem, '') AS problem,
       least(a.read_since, a.reread_since, (SELECT min(w.added_at) FROM watch_members AS w WHERE w.did = v.did)) AS complete_since,
       coalesce(a.reread_count, 0) AS rereads_requested
FROM (VALUES ($1::text)) AS v (did)
LEFT JOIN accounts AS a ON a.did = v.did`
	return One(ctx, db, "read the feed's state of "+did, pgx.RowToStructByName[Feed], sql, did)
}

// Reading is the result of reading an account's posts.
type Reading struct {
	Since            time.Time  // the start of the requested window
	CompleteSince    *time.Time // the stored posts are complete since then; nil: they could not be read
	Newest           time.Time  // the newest post seen
	Now              time.Time
	Problem          string // why the read is incomplete; empty: it is complete
	Compared         bool   // compared with the repository
	RereadsRequested int    // Feed.RereadsRequested, read before the account was
	RetryLater       bool   // the read or the comparison failed: try again later
	RequestedAgain   bool   // the job was promoted after it began
}

// RecordReading stores the result of reading an account's posts. It takes the
// account off the gaps that waited for this read, and closes the gaps that have no
// accounts left. If the read failed, and another one was requested since it began, RecordReading requests it: the
// account may have returned meanwhile.
func RecordReading(ctx context.Context, tx pgx.Tx, did string, r Reading) error {
	// The next attempt for an account that could not be read comes after as long as
	// it has been unreadable: at least an hour, at most a day.
	const feed = `
INSERT INTO accounts AS a (did, feed_newest, feed_read_at, feed_problem, read_since, reread_since, reread_at)
VALUES ($1, $2, CASE WHEN $4 = '' THEN $3::timestamptz END, $4, $5, CASE WHEN $7 THEN $6::timestamptz END,
    CASE WHEN $7 THEN $3::timestamptz + interval '1 hour' END)
ON CONFLICT (did) DO UPDATE
SET feed_newest  = greatest(a.feed_newest, excluded.feed_newest),
    feed_read_at = coalesce(excluded.feed_read_at, a.feed_read_at),
    feed_problem = excluded.feed_problem,
    read_since   = least(a.read_since, excluded.read_since),
    reread_since = CASE WHEN $8 AND a.reread_count = $9 THEN NULL ELSE least(a.reread_since, excluded.reread_since) END,
    reread_at    = CASE WHEN $7 THEN $3 + least(greatest($3 - least(a.reread_since, $6), interval '1 hour'), interval '1 day')
                   ELSE a.reread_at END
RETURNING a.reread_count <> $9`
	requested, err := One(ctx, tx, "store the state of the feed of "+did, pgx.RowTo[bool], feed, did, NullTime(r.Newest), r.Now, r.Problem,
		r.CompleteSince, r.Since, r.RetryLater, r.Compared, r.RereadsRequested)
	if err != nil {
		return err
	}
	if r.RetryLater && (requested || r.RequestedAgain) {
		const again = `SELECT enqueue_request(jsonb_build_object('account', $1::text, 'since', $2::timestamptz, 'priority', 1))`
		if err := Exec(ctx, tx, "request another read of "+did, again, did, r.Since); err != nil {
			return err
		}
	}
	return settleGaps(ctx, tx, did, r)
}

// PromoteBackfills gives unfinished backfill jobs the given priority, start and
// window, each only where it is better than the job's. reasons are the tags of the
// priorities: a better priority replaces the tag. It returns the ids of the jobs
// that are still unfinished.
func PromoteBackfills(ctx context.Context, tx pgx.Tx, ids []int64, priority int, reasons []string, since, at time.Time) ([]int64, error) {
	const sql = `
UPDATE river_job
SET priority     = least(priority, $2),
    tags         = CASE WHEN priority > $2 THEN ($6::text[])[$2:$2] || array_remove(tags, ($6::varchar[])[priority]) ELSE tags END,
    args         = CASE WHEN (args ->> 'since')::timestamptz > $3 THEN jsonb_set(args, '{since}', to_jsonb($5::text)) ELSE args END
                   || jsonb_build_object('requests', coalesce((args ->> 'requests')::int, 0) + 1,
                                         'not_before', greatest((args ->> 'not_before')::timestamptz, $4)),
    scheduled_at = CASE WHEN state <> 'running' THEN least(scheduled_at, $4) ELSE scheduled_at END
WHERE id = ANY ($1) AND state IN ` + UnfinishedStates + `
RETURNING id`
	return All(ctx, tx, "promote backfills", pgx.RowTo[int64], sql, ids, priority, since, at, since.UTC().Format(time.RFC3339Nano), reasons)
}

// LockFeed locks an account's row. Call it before LockJob: a sync locks in that
// order.
func LockFeed(ctx context.Context, tx pgx.Tx, did string) error {
	return Exec(ctx, tx, "lock the feed of "+did,
		`INSERT INTO accounts AS a (did) VALUES ($1) ON CONFLICT (did) DO UPDATE SET feed_problem = a.feed_problem`, did)
}

// LockJob locks a job's row and reads its current arguments and priority: the job
// may have been promoted since it started.
func LockJob(ctx context.Context, tx pgx.Tx, id int64, args any) (priority int, err error) {
	var raw []byte
	if err := tx.QueryRow(ctx, `SELECT priority, args FROM river_job WHERE id = $1 FOR UPDATE`, id).Scan(&priority, &raw); err != nil {
		return 0, fmt.Errorf("lock job %d: %w", id, err)
	}
	if err := json.Unmarshal(raw, args); err != nil {
		return 0, fmt.Errorf("read the arguments of job %d: %w", id, err)
	}
	return priority, nil
}

// Backfills counts backfill jobs by state.
type Backfills struct {
	Waiting    int `json:"waiting"`
	Running    int `json:"running"`
	Failing    int `json:"failing"`     // waiting for a retry
	Done       int `json:"done"`        // in the last hour
	LastMinute int `json:"last_minute"` // the part of Done in the last minute
	Posts      int `json:"posts"`       // posts stored by the jobs of the last hour and the running jobs
}

// CountBackfills counts backfill jobs, except rereads that are not due yet.
func CountBackfills(ctx context.Context, db DB, now time.Time) (Backfills, error) {
	const sql = `
SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'scheduled'))                     AS waiting,
       count(*) FILTER (WHERE state = 'running')                                                  AS running,
       count(*) FILTER (WHERE state = 'retryable')                                                AS failing,
       count(*) FILTER (WHERE state = 'completed')                                                AS done,
       count(*) FILTER (WHERE state = 'completed' AND finalized_at > $1::timestamptz - interval '1 minute') AS last_minute,
       coalesce(sum((jsonb_path_query_first(metadata, 'strict $.**.posts') #>> '{}')::bigint), 0)  AS posts
FROM river_job
WHERE kind IN ('backfill_account', 'request_backfill')
  AND NOT (kind = 'request_backfill' AND state = 'scheduled')
  AND (state IN ` + UnfinishedStates + `
       OR kind = 'backfill_account' AND state = 'completed' AND finalized_at > $1::timestamptz - interval '1 hour')`
	return One(ctx, db, "count backfills", pgx.RowToStructByName[Backfills], sql, now)
}

// RequestBackfill requests a backfill of an account, given by handle or DID, through
// the SQL function enqueue_backfill. It returns the id of the job.
func RequestBackfill(ctx context.Context, db DB, account string, back time.Duration) (int64, error) {
	return One(ctx, db, "request backfills", pgx.RowTo[int64], `SELECT enqueue_backfill($1, $2)`, account, back)
}

// RequestAllBackfills requests a backfill of every followed account.
func RequestAllBackfills(ctx context.Context, db DB, back time.Duration) (int64, error) {
	return One(ctx, db, "request backfills", pgx.RowTo[int64], `SELECT enqueue_backfill_all($1)`, back)
}
