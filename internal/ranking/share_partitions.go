package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-social/weir/schema"
)

const (
	sharesTable  = "shares"
	sharesAhead  = "shares_ahead"
	sharesOthers = "shares_default"
)

// EnsureDays makes the partitions of shares ahead of time, a day each, or more if shares
// are kept for longer than 50 days. It returns schema.ErrBusy if
// others use links or shares for longer than a moment. Shares of a missing day are
// stored in the partition ahead, or in the default partition.
func EnsureDays(ctx context.Context, db schema.DB, now time.Time, keep time.Duration) error {
	return schema.EnsurePartitions(ctx, db, sharesTable, now, daySpan(keep))
}

func daySpan(keep time.Duration) time.Duration { return max(24*time.Hour, schema.SpanFor(keep)) }

// ShareRelations returns the maximum number of tables and indexes that contain shares.
func ShareRelations(keep time.Duration) int {
	const indexes = 8 // of a partition
	return schema.PartitionsOver(keep, daySpan(keep)) * (1 + indexes)
}

// ExpiredDays lists the partitions of shares that end at or before a time, oldest first.
func ExpiredDays(ctx context.Context, db schema.DB, before time.Time) ([]string, error) {
	return schema.ExpiredPartitions(ctx, db, sharesTable, before)
}

// CompleteSince returns the time since which all shares are stored: the beginning of the oldest
// stored day or, if that is later, the time when the database was made.
func CompleteSince(ctx context.Context, db schema.DB) (time.Time, error) {
	made, err := schema.MadeAt(ctx, db)
	if err != nil {
		return made, err
	}
	oldest, err := schema.PartitionsSince(ctx, db, sharesTable)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		return made, nil
	case err == nil && oldest.Before(made):
		return made, nil
	}
	return oldest, err
}

// CompleteAfter returns the time since which all shares are stored, if it is after from, such as
// the beginning of a window; nil: all shares since from are stored.
func CompleteAfter(ctx context.Context, db schema.DB, from time.Time) (*time.Time, error) {
	since, err := CompleteSince(ctx, db)
	if err != nil || !since.After(from) {
		return nil, err
	}
	since = since.UTC()
	return &since, nil
}

// LinkRule decides which links stay without shares.
type LinkRule struct {
	Now     time.Time
	Sharers int           // a link that at least this many accounts share when some of its shares expire is kept
	Keep    time.Duration // how long it is kept from then on; 0: for ever
	Grace   time.Duration // how long other links stay without a share
}

// keptUntil returns the time at or before which a link must have been kept to expire.
func (r LinkRule) keptUntil() time.Time {
	if r.Keep == 0 {
		return time.Time{}
	}
	return r.Now.Add(-r.Keep)
}

// countingSharers is the number of accounts that share a link and count, as in the ranking.
func countingSharers(link string) string {
	return `(SELECT count(*) FROM (SELECT DISTINCT s.did FROM judged_shares AS s WHERE s.link_id = ` + link + ` AND s.why IS NULL) AS s)`
}

// CountLeaving counts the sharers of links that have a share in a partition: at most limit links,
// with ids above after. It stores those with enough sharers in leaving_links. It returns the last
// id, and the number of links. If the partition was dropped meanwhile, the number is 0.
func CountLeaving(
	ctx context.Context, db schema.DB, rule LinkRule, part string, after int64, limit int,
) (last int64, links int, err error) {
	// Most links have few shares. Only links with at least as many shares as the required sharers
	// are counted.
	sql := `
WITH leaving AS (
    SELECT DISTINCT p.link_id FROM %s AS p WHERE p.link_id > $1 ORDER BY p.link_id LIMIT $2
), counted AS (
    SELECT l.link_id, ` + countingSharers("l.link_id") + ` AS sharers
    FROM leaving AS l
    WHERE (SELECT count(*) FROM (SELECT FROM shares AS s WHERE s.link_id = l.link_id LIMIT $3) AS s) >= $3
), kept AS (
    INSERT INTO leaving_links (part, link_id, sharers, counted)
    SELECT to_regclass($4), c.link_id, c.sharers, $5 FROM counted AS c WHERE c.sharers >= $3
    ON CONFLICT (part, link_id) DO UPDATE SET sharers = excluded.sharers, counted = excluded.counted
), others AS (
    DELETE FROM leaving_links AS k
    WHERE k.part = to_regclass($4) AND k.link_id > $1
        AND (k.link_id <= (SELECT max(link_id) FROM leaving) OR (SELECT count(*) FROM leaving) < $2)
      AND k.link_id NOT IN (SELECT c.link_id FROM counted AS c WHERE c.sharers >= $3)
)
SELECT coalesce(max(link_id), $1), count(*) FROM leaving`
	type row struct {
		Last  int64
		Links int
	}
	found, err := schema.One(ctx, db, "count the sharers of the links of "+part, pgx.RowToStructByPos[row],
		fmt.Sprintf(sql, pgx.Identifier{part}.Sanitize()),
		after, limit, rule.Sharers, pgx.Identifier{part}.Sanitize(), rule.Now)
	if dropped, ok := errors.AsType[*pgconn.PgError](err); ok && dropped.Code == "42P01" {
		return after, 0, nil
	}
	return found.Last, found.Links, err
}

// DropDay drops a partition of shares. dropped is false if there is none. It returns
// schema.ErrBusy if others use shares for longer than a moment. Count its links first.
func DropDay(ctx context.Context, db schema.Batcher, part string) (dropped bool, err error) {
	// The authors of some records date them later than their rkeys do, and copies may be later than
	// their originals. Only if shares are kept for less than the longest window can there be many
	// such shares.
	pending := fmt.Sprintf(`
WITH late AS (
    SELECT s.link_id, s.did, NULL AS subject_did, NULL AS subject_rkey FROM %[1]s AS s WHERE s.shared_at > now() - $1::interval
    UNION
    SELECT NULL, NULL, s.did, s.rkey FROM copies AS c
    JOIN %[1]s AS s ON s.did = c.of_did AND s.collection = c.of_collection AND s.rkey = c.of_rkey
    LIMIT $2::int + 1
)
INSERT INTO pending_counts (link_id, did, subject_did, subject_rkey)
SELECT link_id, did, subject_did, subject_rkey FROM late WHERE (SELECT count(*) FROM late) <= $2::int
UNION ALL
SELECT NULL, NULL, NULL, NULL WHERE (SELECT count(*) FROM late) > $2::int`, pgx.Identifier{part}.Sanitize())
	dropped, err = schema.DropPartition(ctx, db, part, func(q *pgx.Batch) { q.Queue(pending, LongestWindow, countBatch) })
	if gone, ok := errors.AsType[*pgconn.PgError](err); ok && gone.Code == "42P01" {
		return false, nil
	}
	return dropped, err
}

// MarkKept marks at most limit links of dropped partitions as kept, or the links that they have
// been merged into since, and returns how many. It waits for other transactions that mark them: the
// search for links without shares relies on the marks. It is a separate step, so that dropping a
// partition does not hold its lock for that long.
func MarkKept(ctx context.Context, db schema.DB, limit int) (int, error) {
	const sql = `
WITH taken AS (
    DELETE FROM leaving_links
    WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM leaving_links AS k
        WHERE NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = k.part)
        ORDER BY k.part, k.link_id LIMIT $1 FOR UPDATE OF k
    ))
    RETURNING link_id, sharers, counted
), kept AS (
    SELECT l.counts_as AS link_id, max(t.sharers) AS sharers, max(t.counted) AS counted
    FROM taken AS t
    CROSS JOIN LATERAL (SELECT l.counts_as FROM links AS l WHERE l.id = t.link_id LIMIT 1) AS l
    GROUP BY l.counts_as
), marked AS (
    UPDATE links AS l SET kept_sharers = greatest(l.kept_sharers, k.sharers), kept_at = greatest(l.kept_at, k.counted)
    FROM kept AS k
    WHERE l.id = k.link_id
)
SELECT count(*) FROM taken`
	return schema.One(ctx, db, "mark the links that are kept", pgx.RowTo[int], sql, limit)
}

// ExpireOtherShares deletes at most limit shares of the default partition that were
// stored at or before a time, and at most limit of the partition ahead. It marks their
// links as kept if they have enough sharers. It returns how many it deleted, and skips
// locked rows.
func ExpireOtherShares(ctx context.Context, db schema.DB, rule LinkRule, before time.Time, limit int) (int, error) {
	// The links are marked before a share is locked, because workers lock them in this order.
	sql := `
WITH old AS (
    SELECT s.did, s.collection, s.rkey, s.named_id, s.link_id FROM %[1]s AS s WHERE s.stored_at <= $1 ORDER BY s.stored_at LIMIT $2
), counted AS MATERIALIZED (
    SELECT o.link_id, ` + countingSharers("o.link_id") + ` AS sharers
    FROM (SELECT DISTINCT link_id FROM old) AS o
), marked AS (
    UPDATE links AS l SET kept_sharers = greatest(l.kept_sharers, c.sharers), kept_at = $3
    FROM counted AS c
    WHERE l.id = c.link_id AND c.sharers >= $4
    RETURNING 1
), going AS (
    SELECT s.did, s.collection, s.rkey, s.named_id
    FROM old AS o
    JOIN %[1]s AS s USING (did, collection, rkey, named_id)
    WHERE (SELECT count(*) FROM marked) >= 0
    FOR UPDATE OF s SKIP LOCKED
)
DELETE FROM shares AS s USING going AS g
WHERE s.did = g.did AND s.collection = g.collection AND s.rkey = g.rkey AND s.named_id = g.named_id`
	ahead, err := schema.One(ctx, db, "find "+sharesAhead, pgx.RowTo[bool], `SELECT to_regclass($1) IS NOT NULL`, sharesAhead)
	tables := []string{sharesOthers}
	if ahead {
		tables = append(tables, sharesAhead)
	}
	n := 0
	for _, table := range tables {
		if err != nil {
			return n, err
		}
		done, failed := db.Exec(ctx, fmt.Sprintf(sql, table), before, limit, rule.Now, rule.Sharers)
		if failed != nil {
			err = fmt.Errorf("expire the shares of %s: %w", table, failed)
		}
		n += int(done.RowsAffected())
	}
	return n, err
}

// FindUnshared examines at most limit links with ids above after. It stores those without a share
// in unshared_links, except those that are kept or merged into others, and removes those that are
// shared again. It reads a range of both indexes, so that millions of links take seconds.
func FindUnshared(ctx context.Context, db schema.DB, rule LinkRule, after int64, limit int) (Examined, error) {
	const sql = `
WITH next AS (
    SELECT l.id, l.kept_at, l.merged_into FROM links AS l WHERE l.id > $1 ORDER BY l.id LIMIT $2
), ends AS (
    SELECT coalesce(max(id), $1) AS last, count(*) AS n FROM next
), shared AS (
    SELECT DISTINCT s.link_id FROM shares AS s WHERE s.link_id > $1 AND s.link_id <= (SELECT last FROM ends)
), found AS (
    INSERT INTO unshared_links (link_id, since)
    SELECT n.id, $3 FROM next AS n
    WHERE n.merged_into IS NULL AND NOT EXISTS (SELECT FROM shared AS s WHERE s.link_id = n.id) AND (n.kept_at IS NULL OR n.kept_at <= $4)
    ON CONFLICT (link_id) DO NOTHING
    RETURNING 1
), again AS (
    DELETE FROM unshared_links AS u USING shared AS s
    WHERE u.link_id = s.link_id AND u.link_id > $1 AND u.link_id <= (SELECT last FROM ends)
)
SELECT e.last, e.n, (SELECT count(*) FROM found) FROM ends AS e`
	return schema.One(ctx, db, "find links without shares", pgx.RowToStructByPos[Examined], sql, after, limit, rule.Now, rule.keptUntil())
}

// Examined is the result of examining some links.
type Examined struct {
	Last  int64 // the highest id
	Links int
	Found int // newly found links without a share
}

// ExpireLinks examines at most limit links whose grace is over. It deletes those that still have no
// share and are not kept, with the links merged into them. It returns schema.ErrBusy if a worker
// has just shared one of them. Links that others use, such as a worker that is sharing one, stay due
// and do not count as examined.
func ExpireLinks(ctx context.Context, db schema.DB, rule LinkRule, limit int) (Expired, error) {
	// A share locks its link until it is committed. If it was committed after this statement began,
	// the foreign key refuses the deletion.
	const sql = `
WITH due AS (
    SELECT u.link_id FROM unshared_links AS u WHERE u.since <= $1 ORDER BY u.since LIMIT $2 FOR UPDATE SKIP LOCKED
), judged AS (
    SELECT d.link_id AS id, l.id IS NOT NULL AND l.merged_into IS NULL AND NOT EXISTS (SELECT FROM shares AS s WHERE s.link_id = l.id)
           AND (l.kept_at IS NULL OR l.kept_at <= $3) AS goes
    FROM due AS d
    LEFT JOIN links AS l ON l.id = d.link_id
), going AS (
    SELECT l.id FROM judged AS j
    JOIN links AS l ON l.id = j.id
    WHERE j.goes AND l.merged_into IS NULL AND (l.kept_at IS NULL OR l.kept_at <= $3)
    FOR UPDATE OF l SKIP LOCKED
), gone AS (
    DELETE FROM links AS l USING going AS g WHERE l.id = g.id RETURNING 1
), settled AS (
    DELETE FROM unshared_links AS u USING judged AS j
    WHERE u.link_id = j.id AND (NOT j.goes OR EXISTS (SELECT FROM going AS g WHERE g.id = j.id))
    RETURNING 1
)
SELECT (SELECT count(*) FROM settled), (SELECT count(*) FROM gone)`
	done, err := schema.One(ctx, db, "expire links", pgx.RowToStructByPos[Expired], sql, rule.Now.Add(-rule.Grace), limit, rule.keptUntil())
	return done, expiredMeanwhile(err)
}

// Expired is the result of one call of ExpireLinks.
type Expired struct {
	Examined int // links whose grace is over and that nobody uses
	Deleted  int
}
