package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// CallSlot is the right to make one call now.
type CallSlot struct {
	Slot *int          // nil: all are taken
	Wait time.Duration // until the call may start; without a slot, until the next look
	Now  time.Time     // from when on to wait, by the database's clock
}

// TakeCallSlot reserves the next start of a call among all processes: at most
// slots at once, each at least spacing after the one before. A slot that is not
// given back is free again after ttl.
func TakeCallSlot(ctx context.Context, db DB, holder string, slots int, spacing, ttl time.Duration) (CallSlot, error) {
	const sql = `SELECT slot, wait, now_at FROM take_call_slot($1, $2, $3, $4)`
	return one(ctx, db, "reserve a call", pgx.RowToStructByPos[CallSlot], sql, holder, slots, spacing, ttl)
}

// GiveCallSlot gives a slot back.
func GiveCallSlot(ctx context.Context, db DB, slot int, holder string) error {
	if _, err := db.Exec(ctx, `SELECT give_call_slot($1, $2)`, holder, slot); err != nil {
		return fmt.Errorf("give back a call: %w", err)
	}
	return nil
}

// Feed is what is known of an account's feed.
type Feed struct {
	Handle  string
	Newest  *time.Time // the newest post of a complete backfill
	Problem string
}

// FindFeed answers what is known of an account's feed: nothing where the
// account has no row.
func FindFeed(ctx context.Context, db DB, did string) (Feed, error) {
	const sql = `
SELECT coalesce(a.handle, '') AS handle, a.feed_newest AS newest, coalesce(a.feed_problem, '') AS problem
FROM (VALUES ($1::text)) AS v (did)
LEFT JOIN accounts AS a ON a.did = v.did`
	return one(ctx, db, "read the feed's state of "+did, pgx.RowToStructByName[Feed], sql, did)
}

// FeedRead writes down that a feed has been read back to since, or why it could
// not be: problem. It closes the gaps that waited for it last.
func FeedRead(ctx context.Context, tx pgx.Tx, did string, since, newest, now time.Time, problem string) error {
	const feed = `
INSERT INTO accounts AS a (did, feed_newest, feed_read_at, feed_problem)
VALUES ($1, $2, CASE WHEN $4 = '' THEN $3::timestamptz END, $4)
ON CONFLICT (did) DO UPDATE
SET feed_newest  = greatest(a.feed_newest, excluded.feed_newest),
    feed_read_at = coalesce(excluded.feed_read_at, a.feed_read_at),
    feed_problem = excluded.feed_problem`
	if _, err := tx.Exec(ctx, feed, did, nilTime(newest), now, problem); err != nil {
		return fmt.Errorf("write down the feed of %s: %w", did, err)
	}
	// The gaps' rows are locked first: of two that end together, one sees that
	// nobody is left.
	const gaps = `
SELECT g.id FROM gaps AS g
WHERE g.closed_at IS NULL AND (g.from_at >= $2 OR $3)
  AND EXISTS (SELECT FROM gap_backfills AS b WHERE b.gap_id = g.id AND b.did = $1)
ORDER BY g.id
FOR UPDATE`
	ids, err := all(ctx, tx, "find the gaps of "+did, pgx.RowTo[int64], gaps, did, since, problem != "")
	if err != nil || len(ids) == 0 {
		return err
	}
	return checkOff(ctx, tx, did, ids, now, problem != "")
}

func checkOff(ctx context.Context, tx pgx.Tx, did string, gaps []int64, now time.Time, failed bool) error {
	const off = `DELETE FROM gap_backfills WHERE did = $1 AND gap_id = ANY ($2)`
	if _, err := tx.Exec(ctx, off, did, gaps); err != nil {
		return fmt.Errorf("check %s off its gaps: %w", did, err)
	}
	const close = `
UPDATE gaps AS g
SET unchecked  = g.unchecked + CASE WHEN $3 THEN 1 ELSE 0 END,
    closed_at  = CASE WHEN left_over.n = 0 THEN $2::timestamptz END,
    how_closed = CASE WHEN left_over.n = 0 THEN 'the feeds of ' || g.accounts || ' accounts were read'
                      || CASE WHEN g.unchecked + CASE WHEN $3 THEN 1 ELSE 0 END > 0
                              THEN ', but for ' || g.unchecked + CASE WHEN $3 THEN 1 ELSE 0 END || ' that could not be' ELSE '' END END
FROM (SELECT id, (SELECT count(*) FROM gap_backfills AS b WHERE b.gap_id = id) AS n FROM unnest($1::bigint[]) AS id) AS left_over
WHERE g.id = left_over.id`
	if _, err := tx.Exec(ctx, close, gaps, now, failed); err != nil {
		return fmt.Errorf("close gaps: %w", err)
	}
	return nil
}

// StartGap writes down whose feeds a gap waits for: every followed account, but
// for those that another shard of the same root had when the gap opened. It
// answers them, and the gap's beginning; ok is false when the gap is closed. A
// gap that concerns nobody is closed at once.
func StartGap(ctx context.Context, tx pgx.Tx, gap int64, now time.Time) (dids []string, from time.Time, ok bool, err error) {
	err = tx.QueryRow(ctx, `SELECT from_at, closed_at IS NULL FROM gaps WHERE id = $1 FOR UPDATE`, gap).Scan(&from, &ok)
	if err != nil || !ok {
		if err != nil {
			err = fmt.Errorf("read gap %d: %w", gap, err)
		}
		return nil, from, ok, err
	}
	const sql = `
WITH waiting AS (
    INSERT INTO gap_backfills (gap_id, did)
    SELECT DISTINCT $1::bigint, w.did
    FROM watched AS w
    WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status <> 'active')
      AND NOT EXISTS (
          SELECT FROM gaps AS g
          JOIN streams AS s ON s.name = g.stream
          JOIN stream_accounts AS a ON a.root = coalesce(s.root, s.name) AND a.did = w.did
          WHERE g.id = $1 AND a.stream <> g.stream AND a.assigned_at < g.opened_at
      )
    ON CONFLICT DO NOTHING
    RETURNING did
), counted AS (
    UPDATE gaps SET accounts = accounts + (SELECT count(*) FROM waiting), problem = '' WHERE id = $1
)
SELECT did FROM waiting ORDER BY did`
	if dids, err = all(ctx, tx, fmt.Sprintf("find whom gap %d concerns", gap), pgx.RowTo[string], sql, gap); err != nil {
		return nil, from, ok, err
	}
	const nobody = `
UPDATE gaps SET closed_at = $2, how_closed = 'no account that is followed could be read'
WHERE id = $1 AND NOT EXISTS (SELECT FROM gap_backfills WHERE gap_id = $1)`
	if _, err := tx.Exec(ctx, nobody, gap, now); err != nil {
		return nil, from, ok, fmt.Errorf("close gap %d: %w", gap, err)
	}
	return dids, from, ok, nil
}

// PromoteBackfills gives unfinished backfill jobs a better priority, an earlier
// start and a wider window, where these are better. It answers which of the jobs
// are unfinished still.
func PromoteBackfills(ctx context.Context, tx pgx.Tx, ids []int64, priority int, since, at time.Time) ([]int64, error) {
	const sql = `
UPDATE river_job
SET priority     = least(priority, $2),
    args         = CASE WHEN (args ->> 'since')::timestamptz > $3 THEN jsonb_set(args, '{since}', to_jsonb($5::text)) ELSE args END
                   || jsonb_build_object('asked', coalesce((args ->> 'asked')::int, 0) + 1,
                                         'not_before', greatest((args ->> 'not_before')::timestamptz, $4)),
    scheduled_at = CASE WHEN state IN ('available', 'scheduled') THEN least(scheduled_at, $4) ELSE scheduled_at END
WHERE id = ANY ($1) AND state IN ` + unfinished + `
RETURNING id`
	return all(ctx, tx, "promote backfills", pgx.RowTo[int64], sql, ids, priority, since, at, since.UTC().Format(time.RFC3339Nano))
}

// LockFeed locks an account's row, before its job's: the order of a sync.
func LockFeed(ctx context.Context, tx pgx.Tx, did string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO accounts AS a (did) VALUES ($1) ON CONFLICT (did) DO UPDATE SET feed_problem = a.feed_problem`, did); err != nil {
		return fmt.Errorf("lock the feed of %s: %w", did, err)
	}
	return nil
}

// Unwaited are accounts that open gaps wait for though no unfinished backfill
// is left: somebody dropped it, or it failed for good. since is the beginning of
// the earliest of these gaps.
func Unwaited(ctx context.Context, tx pgx.Tx) (dids []string, since time.Time, err error) {
	const sql = `
SELECT b.did, min(min(g.from_at)) OVER ()
FROM gap_backfills AS b
JOIN gaps AS g ON g.id = b.gap_id AND g.closed_at IS NULL
WHERE NOT EXISTS (SELECT FROM river_job AS j WHERE j.kind = 'backfill_account' AND j.args ->> 'did' = b.did
                  AND j.state IN ` + unfinished + `)
GROUP BY b.did`
	rows, err := tx.Query(ctx, sql)
	if err != nil {
		return nil, since, fmt.Errorf("find whom gaps wait for in vain: %w", err)
	}
	var did string
	_, err = pgx.ForEachRow(rows, []any{&did, &since}, func() error { dids = append(dids, did); return nil })
	return dids, since, err
}

// LockJob locks a job's row and reads its arguments and priority as they are
// now: somebody may have promoted it since it started.
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
	Failing    int `json:"failing"`     // wait for another try
	Done       int `json:"done"`        // in the hour before
	LastMinute int `json:"last_minute"` // of these, in the last minute
	Posts      int `json:"posts"`       // stored by those of the hour, and by those running
}

// CountBackfills counts them.
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
  AND (state IN ` + unfinished + `
       OR kind = 'backfill_account' AND state = 'completed' AND finalized_at > $1::timestamptz - interval '1 hour')`
	return one(ctx, db, "count backfills", pgx.RowToStructByName[Backfills], sql, now)
}

// RequestBackfill asks for an account's feed, by handle or DID, as the SQL
// function enqueue_backfill does. It answers the id of the job that asks.
func RequestBackfill(ctx context.Context, db DB, account string, back time.Duration) (int64, error) {
	return one(ctx, db, "ask for backfills", pgx.RowTo[int64], `SELECT enqueue_backfill($1, $2)`, account, back)
}

// RequestAllBackfills asks for the feed of every followed account.
func RequestAllBackfills(ctx context.Context, db DB, back time.Duration) (int64, error) {
	return one(ctx, db, "ask for backfills", pgx.RowTo[int64], `SELECT enqueue_backfill_all($1)`, back)
}
