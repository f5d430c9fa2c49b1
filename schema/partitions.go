package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// PartitionSpan is the shortest time that a partition of posts holds.
const PartitionSpan = 6 * time.Hour

const (
	partitionsBefore = 24 * time.Hour // how far before now the first partition begins
	partitionsAhead  = 48 * time.Hour // how far after now partitions are made
)

// SpanFor returns the time span of a new partition of posts for a retention; 0 keeps
// posts for ever. A query on posts may lock all partitions, so there must be tens of
// them, not hundreds.
func SpanFor(keep time.Duration) time.Duration {
	const day = 24 * time.Hour
	for _, s := range []struct{ upTo, span time.Duration }{
		{10 * day, PartitionSpan}, {20 * day, 12 * time.Hour}, {50 * day, day}, {150 * day, 3 * day}, {370 * day, 7 * day},
		{1500 * day, 30 * day},
	} {
		if keep > 0 && keep <= s.upTo {
			return s.span
		}
	}
	return 90 * day
}

// PartitionsFor returns the maximum number of partitions of posts for a retention,
// including posts_ahead and posts_default. 0, for ever, counts as ten years.
func PartitionsFor(keep time.Duration) int {
	span := SpanFor(keep)
	if keep == 0 {
		keep = 3650 * 24 * time.Hour
	}
	return PartitionsOver(keep, span)
}

// PartitionsOver returns the maximum number of partitions of a table if each covers a
// span.
func PartitionsOver(keep, span time.Duration) int {
	return int((keep+partitionsAhead)/span) + 4 // the first and the last partition, the one ahead, and the default partition
}

// EnsurePostPartitions makes the partitions of posts; keep is their retention, 0 for
// ever.
func EnsurePostPartitions(ctx context.Context, db DB, now time.Time, keep time.Duration) error {
	return EnsurePartitions(ctx, db, "posts", now, SpanFor(keep))
}

// EnsurePartitions makes the partitions of a table, each for a time span, from now to
// two days ahead. If there are none yet, it begins a day before now. Each partition is
// made in short transactions of its own. It returns ErrBusy if others use the table for
// longer than a moment. The finished partitions then stay. Rows of the missing ones are
// stored in the partition ahead or in the default partition until the next call.
func EnsurePartitions(ctx context.Context, db DB, table string, now time.Time, span time.Duration) error {
	made, err := readCovered(ctx, db, table)
	if err != nil {
		return err
	}
	at, last := now.Add(-partitionsBefore), now.Add(partitionsAhead)
	switch {
	case made.Ends.Before(at): // there are none, or only older ones
	case made.Begins.After(now) || !made.Whole: // the clock was set back
		at = now
	case made.Ends.After(last):
		return nil
	default:
		at = made.Ends
	}
	for ; at.Before(last.Add(span)); at = at.Add(span) {
		if at.After(last) {
			at = last
		}
		if err := ensurePartition(ctx, db, table, at, span); err != nil {
			return fmt.Errorf("make the partition of %s around %s: %w", table, at.UTC().Format(time.RFC3339), WithErrBusy(err))
		}
	}
	return nil
}

// covered is the time that the partitions of a table hold, without the one ahead and the default
// partition.
type covered struct {
	Begins, Ends time.Time // zero if there is no partition
	Whole        bool      // no time between them is missing
}

func readCovered(ctx context.Context, db DB, table string) (covered, error) {
	const sql = `
SELECT coalesce(min(p.begins), '0001-01-01 00:00:00+00') AS begins,
       coalesce(max(p.ends), '0001-01-01 00:00:00+00')   AS ends,
       coalesce(bool_and(p.follows), true)               AS whole
FROM (SELECT begins, ends, lower = lag(upper, 1, lower) OVER (ORDER BY lower) AS follows FROM partitions
    WHERE parent = $1 AND NOT ahead) AS p`
	return One(ctx, db, "look up when the partitions of "+table+" begin and end", pgx.RowToStructByName[covered], sql, table)
}

// ensurePartition makes the partition that contains a time. After a pause it first makes
// one for the whole pause. A constraint, added before a partition is split off the one
// ahead, saves a scan of the default partition under a lock.
func ensurePartition(ctx context.Context, db DB, table string, at time.Time, span time.Duration) error {
	const ahead = `SELECT EXISTS (SELECT FROM partitions WHERE parent = $1 AND ahead AND tid_floor($2) >= lower)`
	for made := true; made; {
		next, err := One(ctx, db, "find its place", pgx.RowTo[bool], ahead, table, at)
		for more := next; err == nil && more; {
			more, err = One(ctx, db, "prepare the default partition", pgx.RowTo[bool], `SELECT prepare_default_partition($1)`, table)
		}
		if err != nil {
			return err
		}
		if made, err = One(ctx, db, "make it", pgx.RowTo[bool], `SELECT ensure_partition($1, $2, $3)`, table, at, span); err != nil {
			return err
		}
	}
	return nil
}

// PartitionsUntil returns the end of the last partition of a table, or the zero time if
// there is none.
func PartitionsUntil(ctx context.Context, db DB, table string) (time.Time, error) {
	made, err := readCovered(ctx, db, table)
	return made.Ends, err
}

// PartitionsSince returns the beginning of the first partition of a table, or
// ErrNoRows.
func PartitionsSince(ctx context.Context, db DB, table string) (time.Time, error) {
	const sql = `SELECT begins FROM partitions WHERE parent = $1 ORDER BY lower LIMIT 1`
	return One(ctx, db, "look up when the first partition of "+table+" begins", pgx.RowTo[time.Time], sql, table)
}

// ExpiredPartitions lists the partitions of a table that end at or before a time,
// oldest first.
func ExpiredPartitions(ctx context.Context, db DB, table string, before time.Time) ([]string, error) {
	const sql = `SELECT part FROM partitions WHERE parent = $1 AND NOT ahead AND upper <= tid_floor($2) ORDER BY lower`
	return All(ctx, db, "list the partitions of "+table, pgx.RowTo[string], sql, table, before)
}

// DropPartition drops a partition. dropped is false if there is none. It returns ErrBusy
// if others use the table for longer than a moment. leaving, which may be nil, adds
// statements that run in the same transaction, after the table is locked and before its
// rows are gone.
func DropPartition(ctx context.Context, db Batcher, name string, leaving func(*pgx.Batch)) (dropped bool, err error) {
	q := &pgx.Batch{}
	if leaving != nil {
		q.Queue(`SELECT lock_partition($1)`, name)
		leaving(q)
	}
	q.Queue(`SELECT drop_partition($1)`, name).QueryRow(func(row pgx.Row) error { return row.Scan(&dropped) })
	if err := db.SendBatch(ctx, q).Close(); err != nil {
		return false, fmt.Errorf("drop the partition %s: %w", name, WithErrBusy(err))
	}
	return dropped, nil
}

// Batcher sends several statements at once. Outside a transaction they run as one.
type Batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// RecordTree is the number of relations that store records. A query without a range
// of keys locks them all.
type RecordTree struct {
	Tables, Indexes int
	PerTable        int // indexes of one partition
}

// ReadRecordTree counts the relations that store records.
func ReadRecordTree(ctx context.Context, db DB) (RecordTree, error) {
	const sql = `
SELECT count(DISTINCT t.relid)                                                          AS tables,
       count(i.indexrelid)                                                              AS indexes,
       count(i.indexrelid) FILTER (WHERE t.relid = to_regclass('posts_default')::oid)   AS per_table
FROM pg_partition_tree('records') AS t
LEFT JOIN pg_index AS i ON i.indrelid = t.relid`
	return One(ctx, db, "count the partitions of records", pgx.RowToStructByName[RecordTree], sql)
}
