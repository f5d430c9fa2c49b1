package work

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/schema"
)

// The limits of the conditions.
const (
	openLimit   = 30 * time.Minute // since the oldest commit that the store does not have
	syncLimit   = 5 * time.Minute  // since the oldest segment was sealed that the store does not have
	forgetLimit = 24 * time.Hour   // since a segment was due to be compared with what must be forgotten
	listLimit   = time.Hour        // since the oldest account was forgotten that is on no list in the store
)

// Health returns what the archive adds to the report of Weir's health, if its segments are compared with what must be
// forgotten once per interval.
func Health(forget time.Duration) health.Feature {
	const behind, forgets, lists = "WeirArchiveBehind", "WeirForgetBehind", "WeirForgottenLists"
	figures := []health.Figure{
		{Name: "archive.rows", Metric: "archive_open_commits", Help: "Commits that the archive's store does not have yet."},
		{Name: "archive.bytes", Metric: "archive_open_bytes", Help: "The size of what the archive's store does not have yet, decompressed."},
		{Name: "archive.oldest_seconds", Metric: "archive_oldest_seconds",
			Help: "Time since the oldest commit that the archive's store does not have yet; 0 if it has all."},
		{Name: "archive.unsynced", Metric: "archive_unsynced_segments", Help: "Sealed segments that are not in the archive's store yet."},
		{Name: "archive.oldest_unsynced_seconds", Metric: "archive_unsynced_seconds",
			Help: "Time since the oldest segment was sealed that is not in the archive's store yet; 0 if all are."},
		{Name: "archive.segments", Metric: "archive_segments", Help: "Segments in the archive's store."},
		{Name: "archive.stored_bytes", Metric: "archive_stored_bytes", Help: "The size of the segments in the archive's store."},
		{Name: "archive.archived_records", Metric: "archive_records", Help: "Records of the segments in the archive's store."},
		{Name: "archive.forget.overdue_seconds", Metric: "archive_forget_overdue_seconds",
			Help: "Time since the segment was due that has waited longest to be compared with what must be forgotten; 0 if none is due."},
		{Name: "archive.forget.failing", Metric: "archive_forget_failing_segments",
			Help: "Segments that could not be compared with what must be forgotten. Expect zero: such a file is damaged or missing."},
		{Name: "archive.forget.unlisted_seconds", Metric: "archive_unlisted_seconds",
			Help: "Time since the oldest forgotten account that is on no list in the archive's store; 0 if all are."},
		{Name: "archive.forget.unreadable_lists", Metric: "archive_unreadable_lists",
			Help: "Lists of forgotten accounts in the archive's store that cannot be read. Expect zero: exports and rebuilds fail."},
	}
	return health.Feature{
		Figures: figures,
		Conditions: []health.Condition{
			{
				Name: behind, Severity: health.Warning,
				Do: "SELECT kind, state, errors[array_upper(errors, 1)] ->> 'error' FROM river_job WHERE queue = 'archive'",
			},
			{Name: forgets, Severity: health.Warning,
				Do: "SELECT args, state, errors[array_upper(errors, 1)] ->> 'error' FROM river_job WHERE kind = 'forget_segment'; weir archive verify"},
			{Name: lists, Severity: health.Warning,
				Do: "SELECT * FROM unreadable_lists; SELECT state, errors[array_upper(errors, 1)] ->> 'error' FROM river_job WHERE kind = " +
					"'list_forgotten'"},
		},
		Read: func(ctx context.Context, db schema.DB, _ time.Time) (read health.Reading, err error) {
			b, err := catalog.ReadBacklog(ctx, db)
			if err != nil {
				return read, err
			}
			f, err := catalog.ReadForgetBacklog(ctx, db, forget)
			if err != nil {
				return read, err
			}
			read.Values, read.Messages = map[string]float64{}, map[string]string{}
			for i, v := range []float64{float64(b.Rows), float64(b.Bytes), b.Oldest, float64(b.Unsynced), b.SyncAge, float64(b.Segments),
				float64(b.Stored),
				float64(b.Records), f.Overdue, float64(f.Failing), f.Unlisted, float64(f.Unreadable)} {
				read.Values[figures[i].Name] = v
			}
			if age := health.Seconds(b.SyncAge); age > syncLimit {
				read.Messages[behind] = fmt.Sprintf("the archive's store has not taken a segment for %s", age)
			} else if age := health.Seconds(b.Oldest); age > openLimit {
				read.Messages[behind] = fmt.Sprintf("the archive's store has lacked events for %s: %d commits, %s", age, b.Rows,
					output.Count(b.Unsynced, "segment is sealed", "segments are sealed"))
			}
			if due := health.Seconds(f.Overdue); due > forgetLimit {
				read.Messages[forgets] = fmt.Sprintf("the archive may still have what must be forgotten: a segment has been due for %s, and %s", due,
					output.Count(f.Failing, "segment cannot be compared", "segments cannot be compared"))
			}
			if age := health.Seconds(f.Unlisted); age > listLimit || f.Unreadable > 0 {
				read.Messages[lists] = fmt.Sprintf("%s of deleted accounts cannot be read, and an account has been on no list for %s",
					output.Count(f.Unreadable, "list", "lists"), age)
			}
			return read, nil
		},
	}
}
