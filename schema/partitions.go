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
		{10 * day, PartitionSpan}, {20 * day, 12 * time.Hour}, {50 * day, day}, {150 * day, 3 * day}, {370 * day, 7 * day}, {1500 * day, 30 * day},
	} {
		if keep > 0 && keep <= s.upTo {
			return s.span
		}
	}
	return 90 * day
}

// PartitionsFor returns the maximum number of partitions of posts for a retention,
// including posts_ahead and posts_default. For ever counts as ten years.
func PartitionsFor(keep time.Duration) int {
	span := SpanFor(keep)
	if keep == 0 {
		keep = 3650 * 24 * time.Hour
	}
	return int((keep+partitionsAhead)/span) + 4 // the first and the last partition, posts_ahead and posts_default
}

// EnsurePostPartitions makes the partitions of posts from now to two days ahead. If
// there are none yet, it begins a day before now. keep is the retention of posts; 0
// keeps them for ever. Each partition is made in short transactions of its own. It
// returns ErrBusy if others use posts for longer than a moment. Then the finished
// partitions stay, and posts of the missing ones are stored in posts_ahead or
// posts_default until the next call.
func EnsurePostPartitions(ctx context.Context, db DB, now time.Time, keep time.Duration) error {
	until, err := PostPartitionsUntil(ctx, db)
	if err != nil {
		return err
	}
	at := now.Add(-partitionsBefore)
	if until.After(at) {
		at = until
	}
	if at.After(now) {
		at = now
	}
	span, last := SpanFor(keep), now.Add(partitionsAhead)
	for {
		if err := ensurePostPartition(ctx, db, at, span); err != nil {
			return fmt.Errorf("make the partition of posts around %s: %w", at.UTC().Format(time.RFC3339), withErrBusy(err))
		}
		if at.Equal(last) {
			return nil
		}
		if at = at.Add(span); at.After(last) {
			at = last
		}
	}
}

// ensurePostPartition makes the partition of a moment. After a pause it first makes one
// for the whole pause. A constraint, made before a partition is split off posts_ahead,
// saves a scan of posts_default under a lock.
func ensurePostPartition(ctx context.Context, db DB, at time.Time, span time.Duration) error {
	const ahead = `SELECT EXISTS (SELECT FROM post_partitions WHERE part = 'posts_ahead' AND tid_floor($1) >= lower)`
	for made := true; made; {
		next, err := One(ctx, db, "find its place", pgx.RowTo[bool], ahead, at)
		for more := next; err == nil && more; {
			more, err = One(ctx, db, "prepare posts_default", pgx.RowTo[bool], `SELECT prepare_posts_default()`)
		}
		if err != nil {
			return err
		}
		if made, err = One(ctx, db, "make it", pgx.RowTo[bool], `SELECT ensure_post_partition($1, $2)`, at, span); err != nil {
			return err
		}
	}
	return nil
}

// PostPartitionsUntil returns the end of the last partition of posts, or the zero time
// if there is none.
func PostPartitionsUntil(ctx context.Context, db DB) (time.Time, error) {
	const sql = `SELECT coalesce(max(ends), '0001-01-01 00:00:00+00') FROM post_partitions WHERE part <> 'posts_ahead'`
	return One(ctx, db, "look up when the last partition of posts ends", pgx.RowTo[time.Time], sql)
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
