package schema

import (
	"context"
	"fmt"
	"time"
)

// EnsurePostPartitions makes the partitions of posts from the day before now to
// two days after it, in UTC, so that new posts never land in the default
// partition. Each is a short transaction of its own.
func EnsurePostPartitions(ctx context.Context, db DB, now time.Time) error {
	for day := -1; day <= 2; day++ {
		date := now.UTC().AddDate(0, 0, day).Format(time.DateOnly)
		if _, err := db.Exec(ctx, `SELECT ensure_post_partition($1::text::date)`, date); err != nil {
			return fmt.Errorf("make the partition of posts for %s: %w", date, err)
		}
	}
	return nil
}
