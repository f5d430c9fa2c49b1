package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/schema"
)

// unindexedSegments lists the first segments in the store that ClickHouse does not have,
// limited to most.
func unindexedSegments(ctx context.Context, db schema.DB, most int) ([]int64, error) {
	const sql = `SELECT number FROM segments WHERE indexed_at IS NULL AND synced_at IS NOT NULL ORDER BY number LIMIT $1`
	return schema.All(ctx, db, "list the segments to index", pgx.RowTo[int64], sql, most)
}

// unindexedSegment reads a segment in the store that ClickHouse does not have. It returns
// ErrNoRows if ClickHouse has it. generation is the number of calls of indexAgain.
func unindexedSegment(ctx context.Context, db schema.DB, number int64) (m archive.Manifest, generation int, err error) {
	const sql = `SELECT index_generation FROM segments WHERE number = $1 AND indexed_at IS NULL AND synced_at IS NOT NULL`
	// A process that reads it before indexAgain finds an unsettled attempt, and reads it
	// again later.
	if generation, err = schema.One(ctx, db, "read a segment", pgx.RowTo[int], sql, number); err != nil {
		return m, 0, err
	}
	m, err = catalog.SyncedSegment(ctx, db, number)
	return m, generation, err
}

// marks accesses the columns of segments that record attempts to insert a segment into
// ClickHouse. All times are by the database's clock. Each call is a transaction of its own.
type marks struct{ DB schema.DB }

// Begun returns the last attempt that was begun, and how long ago that was; 0: none.
func (m marks) Begun(ctx context.Context, segment int64) (attempt int, ago time.Duration, err error) {
	const sql = `SELECT index_attempt, coalesce(clock_timestamp() - index_begun_at, '0') FROM segments WHERE number = $1`
	last, err := schema.One(ctx, m.DB, "read the attempts to index a segment", pgx.RowToStructByPos[struct {
		Attempt int
		Ago     time.Duration
	}], sql, segment)
	return last.Attempt, last.Ago, err
}

// Begin records that an attempt begins. It returns false if another attempt was begun after
// the attempt last.
func (m marks) Begin(ctx context.Context, segment int64, last int) (bool, error) {
	const sql = `
UPDATE segments
SET index_attempt = index_attempt + 1, index_begun_at = clock_timestamp()
WHERE number = $1 AND index_attempt = $2 AND indexed_at IS NULL`
	tag, err := m.DB.Exec(ctx, sql, segment, last)
	if err != nil {
		return false, fmt.Errorf("begin to index segment %d: %w", segment, err)
	}
	return tag.RowsAffected() == 1, nil
}

// Indexed records that ClickHouse has a segment, unless another attempt was begun after the
// attempt last: then the rows may have been deleted meanwhile.
func (m marks) Indexed(ctx context.Context, segment int64, last int) error {
	const sql = `UPDATE segments SET indexed_at = clock_timestamp() WHERE number = $1 AND index_attempt = $2`
	if _, err := m.DB.Exec(ctx, sql, segment, last); err != nil {
		return fmt.Errorf("mark segment %d as indexed: %w", segment, err)
	}
	return nil
}

// indexAgain makes all segments unindexed and returns their number. Running attempts then
// count as superseded: none of them can mark its segment as indexed, and nothing is
// inserted until they are settled. Afterwards ClickHouse gets everything again, including
// what it has lost.
func indexAgain(ctx context.Context, db schema.DB) (int64, error) {
	const sql = `
UPDATE segments
SET index_generation = index_generation + 1, index_attempt = index_attempt + 1, index_begun_at = clock_timestamp(), indexed_at = NULL`
	tag, err := db.Exec(ctx, sql)
	if err != nil {
		return 0, fmt.Errorf("make all segments unindexed: %w", err)
	}
	return tag.RowsAffected(), nil
}
