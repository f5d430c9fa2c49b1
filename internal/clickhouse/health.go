package clickhouse

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/schema"
)

// indexLimit is how long the archive's store may have a segment that ClickHouse lacks.
const indexLimit = time.Hour

// backlog counts the segments in the archive's store that ClickHouse lacks.
type backlog struct {
	Segments  int64   // all in the store
	Unindexed int64   // those that ClickHouse lacks
	Age       float64 // since the oldest of these reached the store
}

func readBacklog(ctx context.Context, db schema.DB) (backlog, error) {
	const sql = `
SELECT count(*), count(*) FILTER (WHERE indexed_at IS NULL),
       coalesce(extract(epoch FROM clock_timestamp() - min(synced_at) FILTER (WHERE indexed_at IS NULL)), 0)::float8
FROM segments WHERE synced_at IS NOT NULL`
	return schema.One(ctx, db, "count the segments that ClickHouse lacks", pgx.RowToStructByPos[backlog], sql)
}

// healthOf returns what the index adds to the report of Weir's health; configured: there is a server.
func healthOf(configured bool) health.Feature {
	const unindexed, age, behind = "archive.unindexed", "archive.oldest_unindexed_seconds", "WeirIndexBehind"
	return health.Feature{
		Figures: []health.Figure{
			{Name: unindexed, Metric: "archive_unindexed_segments",
				Help: "Segments of the archive that ClickHouse does not have; 0 without WEIR_CLICKHOUSE."},
			{Name: age, Metric: "archive_unindexed_seconds",
				Help: "Time since the archive's store has the oldest segment that ClickHouse does not have; 0 without such a segment."},
		},
		Conditions: []health.Condition{{Name: behind, Severity: health.Warning,
			Do: "SELECT state, errors[array_upper(errors, 1)] ->> 'error' FROM river_job WHERE queue = 'index'"}},
		Read: func(ctx context.Context, db schema.DB, _ time.Time) (read health.Reading, err error) {
			if !configured {
				return read, nil
			}
			b, err := readBacklog(ctx, db)
			if err != nil {
				return read, err
			}
			read.Values = map[string]float64{unindexed: float64(b.Unindexed), age: b.Age}
			if since := health.Seconds(b.Age); since > indexLimit {
				read.Messages = map[string]string{behind: fmt.Sprintf("ClickHouse lacks %s, the oldest for %s",
					output.Count(b.Unindexed, "segment", "segments"), since)}
			}
			return read, nil
		},
	}
}
