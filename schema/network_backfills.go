package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// NetworkBackfill is an interval that is read from the archive of a Jetstream server.
type NetworkBackfill struct {
	ID          int64      `json:"id"`
	Gap         *int64     `json:"gap"`  // nil: it was requested
	From        time.Time  `json:"from"` // the interval
	To          time.Time  `json:"to"`
	Collections []string   `json:"collections"` // none: all that are stored
	RequestedAt time.Time  `json:"requested_at"`
	ReadTo      *time.Time `json:"read_to"`      // nil: nothing was read
	Host        string     `json:"host"`         // of the archive
	Events      int64      `json:"events"`       // that were read
	Records     int64      `json:"records"`      // that they changed
	Problem     string     `json:"problem"`      // why nothing is read for now
	UnreadSince *time.Time `json:"unread_since"` // nil: the archive could be read
	Complete    bool       `json:"complete"`
	Cancelled   bool       `json:"cancelled"`
}

// Open reports whether the backfill goes on.
func (b *NetworkBackfill) Open() bool { return !b.Complete && !b.Cancelled }

// Rest returns where the rest of the interval begins.
func (b *NetworkBackfill) Rest() time.Time {
	if b.ReadTo != nil {
		return *b.ReadTo
	}
	return b.From
}

const networkBackfill = `
SELECT id, gap_id AS gap, from_at AS "from", to_at AS "to", collections, requested_at, read_to, host, events, records, problem,
       unread_since, completed_at IS NOT NULL AS complete, cancelled_at IS NOT NULL AS cancelled
FROM network_backfills`

// FindNetworkBackfill returns a backfill. Its error wraps ErrNoRows if there is none.
func FindNetworkBackfill(ctx context.Context, db DB, id int64) (b NetworkBackfill, err error) {
	rows, err := db.Query(ctx, networkBackfill+` WHERE id = $1`, id)
	if err == nil {
		b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByNameLax[NetworkBackfill])
	}
	if err != nil {
		return b, fmt.Errorf("read the network backfill %d: %w", id, err)
	}
	return b, nil
}

// RequestNetworkBackfill requests an interval that ends now, and returns the id of the job.
func RequestNetworkBackfill(ctx context.Context, db DB, back time.Duration, collections []string) (int64, error) {
	return One(ctx, db, "request a network backfill", pgx.RowTo[int64], `SELECT enqueue_network_backfill($1, $2)`, back, collections)
}

// NetworkBackfills lists the open backfills and those of the last week, the last one first.
func NetworkBackfills(ctx context.Context, db DB) ([]NetworkBackfill, error) {
	return All(ctx, db, "read the network backfills", pgx.RowToStructByNameLax[NetworkBackfill], networkBackfill+`
WHERE requested_at > now() - interval '7 days' OR completed_at IS NULL AND cancelled_at IS NULL
ORDER BY completed_at IS NULL AND cancelled_at IS NULL DESC, id DESC
LIMIT 100`)
}

// BackfillGap adds the backfill of a gap, if the gap is open and has none. margin is added on both
// sides, because the clocks of servers differ.
func BackfillGap(ctx context.Context, tx pgx.Tx, gap int64, margin time.Duration) (id int64, err error) {
	const sql = `
WITH open AS (
    UPDATE gaps SET problem = '' WHERE id = $1 AND closed_at IS NULL RETURNING id, from_at, to_at
)
INSERT INTO network_backfills (gap_id, from_at, to_at) SELECT id, from_at - $2::interval, to_at + $2::interval FROM open
ON CONFLICT (gap_id) DO UPDATE SET problem = '', completed_at = NULL
RETURNING id`
	if err := tx.QueryRow(ctx, sql, gap, margin).Scan(&id); err != nil {
		return 0, fmt.Errorf("add the network backfill of gap %d: %w", gap, err)
	}
	return id, nil
}

// BackfillableGap returns an open gap whose network backfill was not given up. ok is false if there
// is none.
func BackfillableGap(ctx context.Context, db DB, gap int64) (g Gap, ok bool, err error) {
	const sql = `
SELECT g.stream, g.from_at AS "from", g.to_at AS "to", g.reason
FROM gaps AS g
WHERE g.id = $1 AND g.closed_at IS NULL
  AND NOT EXISTS (SELECT FROM network_backfills AS n WHERE n.gap_id = g.id AND n.cancelled_at IS NOT NULL)`
	found, err := All(ctx, db, fmt.Sprintf("read gap %d", gap), pgx.RowToStructByNameLax[Gap], sql, gap)
	if err != nil || len(found) == 0 {
		return g, false, err
	}
	return found[0], true, nil
}

// NetworkProgress is what was read of an interval.
type NetworkProgress struct {
	Host    string
	ReadTo  time.Time
	Events  int
	Records int
	Begins  time.Time // of the archive
}

// MoveNetworkBackfill stores that everything before a time was read. The gap is then exactly the
// rest, unless the archive does not have its beginning.
func MoveNetworkBackfill(ctx context.Context, pool *pgxpool.Pool, b NetworkBackfill, p NetworkProgress, margin time.Duration) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		const rest = `
UPDATE gaps AS g SET from_at = $2
WHERE g.id = $1 AND g.closed_at IS NULL AND g.from_at < $2 AND g.to_at > $2 AND g.from_at >= $3
  AND NOT EXISTS (SELECT FROM gaps AS o WHERE o.stream = g.stream AND o.from_at = $2 AND o.to_at = g.to_at)`
		if b.Gap != nil {
			if _, err := tx.Exec(ctx, rest, *b.Gap, p.ReadTo.Add(-margin), p.Begins); err != nil {
				return fmt.Errorf("store the rest of gap %d: %w", *b.Gap, err)
			}
		}
		const sql = `
UPDATE network_backfills
SET read_to = greatest(read_to, least($2, to_at)), host = $3, events = events + $4, records = records + $5, problem = '',
    unread_since = CASE WHEN $2 <= read_to THEN unread_since END
WHERE id = $1`
		if _, err := tx.Exec(ctx, sql, b.ID, p.ReadTo, p.Host, p.Events, p.Records); err != nil {
			return fmt.Errorf("move the network backfill %d: %w", b.ID, err)
		}
		return nil
	})
}

// SetNetworkBackfillProblem stores why nothing is read.
func SetNetworkBackfillProblem(ctx context.Context, db DB, id int64, problem string) error {
	return Exec(ctx, db, fmt.Sprintf("store the problem of network backfill %d", id),
		`UPDATE network_backfills SET problem = $2, unread_since = NULL WHERE id = $1 AND problem <> $2`, id, problem)
}

// FailNetworkBackfill stores why the archive cannot be read, and returns how long that has been so.
func FailNetworkBackfill(ctx context.Context, db DB, id int64, problem string) (time.Duration, error) {
	const sql = `
UPDATE network_backfills SET problem = $2, unread_since = coalesce(unread_since, now()) WHERE id = $1 RETURNING now() - unread_since`
	return One(ctx, db, fmt.Sprintf("store why network backfill %d reads nothing", id), pgx.RowTo[time.Duration], sql, id, Text(problem))
}

// IntervalSealed reports whether an archive that is sealed up to a time has everything of the interval
// of a backfill. That is so if the streams are read from the host of the archive, their last events are
// sealed, and they had nothing unread at a time after the interval by any clock. Of a gap, it is the stream
// of the gap, and its last event came after the gap. Of a requested interval, it is every stream that is read.
func IntervalSealed(ctx context.Context, db DB, b NetworkBackfill, host string, sealed, after time.Time) (bool, error) {
	const sql = `
SELECT coalesce(bool_and(s.host = $2 AND coalesce(s.last_event_at BETWEEN coalesce(g.to_at, '-infinity') AND $3, false)), false)
FROM streams AS s LEFT JOIN gaps AS g ON g.id = $1
WHERE s.caught_up_at > $4 AND CASE WHEN $1::bigint IS NULL THEN ` + ofRepositories + ` ELSE s.name = g.stream END`
	return One(ctx, db, "read whether an interval is sealed", pgx.RowTo[bool], sql, b.Gap, host, sealed, after)
}

// ofRepositories selects the streams of the network of repositories.
const ofRepositories = `(wire <> '` + WireRecording + `' AND NOT starts_with(name, 'nostr:'))`

// GiveUpNetworkBackfill cancels the backfill of a gap.
func GiveUpNetworkBackfill(ctx context.Context, tx pgx.Tx, id int64, problem string) error {
	return Exec(ctx, tx, fmt.Sprintf("give up the network backfill %d", id),
		`UPDATE network_backfills SET cancelled_at = now(), problem = $2 WHERE id = $1`, id, Text(problem))
}

// EndNetworkBackfill completes a backfill, and closes its gap. If the archive begins later than the
// gap, what is before stays open.
func EndNetworkBackfill(ctx context.Context, tx pgx.Tx, b NetworkBackfill, begins, now time.Time) error {
	problem := ""
	if begins.After(b.From) {
		problem = "the archive of " + b.Host + " begins at " + begins.UTC().Format(time.RFC3339)
	}
	const gap = `
UPDATE gaps AS g
SET closed_at  = CASE WHEN $2 <= g.from_at OR $3 = '' THEN $4::timestamptz END,
    how_closed = CASE WHEN $2 <= g.from_at
        OR $3 = ''
            THEN 'the interval was read from the archive of ' || n.host || ': ' || n.events ||
                ' events, which changed ' || n.records || ' records' END,
    problem    = CASE WHEN $2 <= g.from_at OR $3 = '' THEN '' ELSE $3 END,
    to_at      = CASE WHEN $2 <= g.from_at OR $3 = '' THEN g.to_at ELSE least(g.to_at, $2) END
FROM network_backfills AS n
WHERE n.id = $1 AND g.id = n.gap_id AND g.closed_at IS NULL`
	if _, err := tx.Exec(ctx, gap, b.ID, begins, problem, now); err != nil {
		return fmt.Errorf("close the gap of network backfill %d: %w", b.ID, err)
	}
	return Exec(ctx, tx, fmt.Sprintf("end the network backfill %d", b.ID),
		`UPDATE network_backfills SET completed_at = $2, problem = $3 WHERE id = $1`, b.ID, now, problem)
}

// StreamsAdvanced reports whether a stream of the network of repositories has advanced since a
// time: what is written later comes from there.
func StreamsAdvanced(ctx context.Context, db DB, since time.Time) (bool, error) {
	const sql = `
SELECT EXISTS (SELECT FROM streams WHERE ` + ofRepositories + ` AND greatest(advanced_at, caught_up_at) > $1)`
	return One(ctx, db, "read whether a stream has advanced", pgx.RowTo[bool], sql, since)
}

// NetworkBackfillsWithoutJob returns the open backfills without an unfinished job, because it was
// deleted or failed for good.
func NetworkBackfillsWithoutJob(ctx context.Context, db DB) ([]int64, error) {
	const sql = `
SELECT n.id
FROM network_backfills AS n
WHERE n.completed_at IS NULL AND n.cancelled_at IS NULL
  AND NOT EXISTS (SELECT FROM river_job AS j WHERE j.kind = 'backfill_network' AND (j.args ->> 'backfill')::bigint = n.id
                  AND j.state IN ` + UnfinishedStates + `)
ORDER BY n.id
LIMIT 100`
	return All(ctx, db, "find the network backfills without a job", pgx.RowTo[int64], sql)
}

// CancelNetworkBackfills cancels the requested backfills that are not complete, and returns their
// number.
func CancelNetworkBackfills(ctx context.Context, db DB) (int64, error) {
	n, err := Change(ctx, db, "cancel the network backfills",
		`UPDATE network_backfills SET cancelled_at = now() WHERE gap_id IS NULL AND completed_at IS NULL AND cancelled_at IS NULL`)
	return int64(n), err
}
