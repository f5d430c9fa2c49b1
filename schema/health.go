package schema

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Depth is the depth of a queue. The counts are limited, because they are read every few
// seconds and must cost the same for a deep queue.
type Depth struct {
	Name      string     `json:"name"`
	Paused    bool       `json:"paused"`    // by a person, in River UI
	Available int64      `json:"available"` // ready to run
	Running   int64      `json:"running"`
	Retryable int64      `json:"retryable"` // failed, waiting for a retry
	Scheduled int64      `json:"scheduled"`
	Oldest    *time.Time `json:"oldest"` // when the job that has waited longest became available
}

// The maximum number of jobs of a queue that are counted in each state. A count that is
// one larger means more, so that a configured limit of this size can be exceeded. Each
// counted job can cost two microseconds, so the less important states have a lower limit.
const (
	CountedJobs   = 50_000 // available, retryable
	CountedOthers = 10_000 // running, scheduled
)

// Queues reads the depths of the named queues, the projections' queues, and all
// queues that a worker has served.
func Queues(ctx context.Context, db DB, names []string) ([]Depth, error) {
	const sql = `
SELECT q.name                                  AS name,
       r.paused_at IS NOT NULL                 AS paused,
       count_jobs(q.name, 'available', $2 + 1) AS available,
       count_jobs(q.name, 'running', $3 + 1)   AS running,
       count_jobs(q.name, 'retryable', $2 + 1) AS retryable,
       count_jobs(q.name, 'scheduled', $3 + 1) AS scheduled,
       oldest_job(q.name)                      AS oldest
FROM (SELECT unnest($1::text[]) UNION SELECT queue FROM projections UNION SELECT unnest(queues) FROM projections UNION SELECT name
    FROM river_queue) AS q (name)
LEFT JOIN river_queue AS r ON r.name = q.name
ORDER BY q.name`
	return All(ctx, db, "read the queues", pgx.RowToStructByName[Depth], sql, names, CountedJobs, CountedOthers)
}

// DeepestQueue counts the available jobs of each queue, up to most, and returns the
// largest count.
func DeepestQueue(ctx context.Context, db DB, queues []string, most int) (int, error) {
	const sql = `SELECT coalesce(max(count_jobs(q.name, 'available', $2)), 0) FROM unnest($1::text[]) AS q (name)`
	return One(ctx, db, "count the jobs of "+strings.Join(queues, ", "), pgx.RowTo[int], sql, queues, most)
}

// Totals are figures of the whole database.
type Totals struct {
	Follows         int64   // accounts followed; 0 with the whole network
	FailedWatches   int64   // watches whose last sync failed
	Gaps            int64   // open
	GapSeconds      float64 // total time that the open gaps cover
	GapAccounts     int64   // total number of accounts that they wait for
	GapAccountsLeft int64   // those of GapAccounts that are not done yet
	StuckGaps       int64   // open gaps that cannot be closed
	GapProblem      string  // why they cannot be closed; empty if StuckGaps is 0
	DeadLetters     int64   // open and retrying
	Desynchronized  int64   // accounts that must be compared with their repositories
	Bytes           int64   // of the database on disk
}

// ReadTotals reads the totals.
func ReadTotals(ctx context.Context, db DB) (Totals, error) {
	const sql = `
SELECT (SELECT count(DISTINCT did) FROM watch_members)                                            AS follows,
       (SELECT count(*) FROM watches WHERE problem <> '')                                   AS failed_watches,
       (SELECT count(*) FROM gaps WHERE closed_at IS NULL)                                  AS gaps,
       (SELECT coalesce(sum(extract(epoch FROM to_at - from_at)), 0)::float8
        FROM gaps WHERE closed_at IS NULL)                                                  AS gap_seconds,
       (SELECT coalesce(sum(accounts), 0)::bigint FROM gaps WHERE closed_at IS NULL)        AS gap_accounts,
       (SELECT coalesce(sum(accounts - checked - unchecked), 0)::bigint
        FROM gaps WHERE closed_at IS NULL)                                                  AS gap_accounts_left,
       (SELECT count(*) FROM gaps WHERE closed_at IS NULL AND problem <> '')                AS stuck_gaps,
       (SELECT coalesce(string_agg(DISTINCT problem, '; '), '')
        FROM gaps WHERE closed_at IS NULL AND problem <> '')                                AS gap_problem,
       (SELECT count(*) FROM dead_letters WHERE state IN ('open', 'retrying'))             AS dead_letters,
       (SELECT count(*) FROM resyncs WHERE desynchronized_at IS NOT NULL)                   AS desynchronized,
       pg_database_size(current_database())                                                 AS bytes`
	return One(ctx, db, "read the totals", pgx.RowToStructByName[Totals], sql)
}

// DatabaseBytes returns the size of the database on disk.
func DatabaseBytes(ctx context.Context, db DB) (int64, error) {
	return One(ctx, db, "read the size of the database", pgx.RowTo[int64], `SELECT pg_database_size(current_database())`)
}

// Sum is a named figure.
type Sum struct {
	Name  string
	Value float64
}

// TableSizes returns the bytes of each table on disk, with its indexes and
// partitions.
func TableSizes(ctx context.Context, db DB) ([]Sum, error) {
	const sql = `
SELECT r.relname                                                                                   AS name,
       coalesce((SELECT sum(pg_total_relation_size(t.relid)) FROM pg_partition_tree(r.oid) AS t),
                pg_total_relation_size(r.oid))::float8                                             AS value
FROM pg_class AS r
WHERE r.relnamespace = quote_ident(current_schema())::regnamespace AND r.relkind IN ('r', 'p') AND NOT r.relispartition`
	return All(ctx, db, "read the sizes of the tables", pgx.RowToStructByName[Sum], sql)
}

// DeadRows returns the number of dead rows of each table, with its partitions.
func DeadRows(ctx context.Context, db DB) ([]Sum, error) {
	const sql = `
SELECT r.relname AS name, sum(t.n_dead_tup)::float8 AS value
FROM pg_stat_user_tables AS t
JOIN pg_class AS r ON r.oid = coalesce(pg_partition_root(t.relid), t.relid)
WHERE t.schemaname = current_schema()
GROUP BY r.relname`
	return All(ctx, db, "read the dead rows of the tables", pgx.RowToStructByName[Sum], sql)
}

// CountNewDeadLetters counts the dead letters first seen after since that were neither
// retried nor dismissed. Each is counted for the first pattern that covers its
// collection; patterns are names, and prefixes such as pub.layers.*. The last count is
// for collections that no pattern covers.
func CountNewDeadLetters(ctx context.Context, db DB, since time.Time, patterns []string) ([]int64, error) {
	const sql = `
WITH pattern AS (
    SELECT p.pattern, p.n FROM unnest($2::text[]) WITH ORDINALITY AS p (pattern, n)
), letter AS (
    SELECT (SELECT min(p.n) FROM pattern AS p
            WHERE d.collection = p.pattern OR right(p.pattern, 1) = '*' AND starts_with(d.collection, rtrim(p.pattern, '*'))) AS n
    FROM dead_letters AS d
    WHERE d.state IN ('open', 'retrying') AND d.first_seen > $1
)
SELECT count(l.n) + CASE WHEN s.n > cardinality($2::text[]) THEN (SELECT count(*) FROM letter WHERE n IS NULL) ELSE 0 END
FROM generate_series(1, cardinality($2::text[]) + 1) AS s (n)
LEFT JOIN letter AS l ON l.n = s.n
GROUP BY s.n ORDER BY s.n`
	return All(ctx, db, "count new dead letters", pgx.RowTo[int64], sql, since, append([]string{}, patterns...))
}
