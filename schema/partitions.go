package schema

import (
	"context"
	"fmt"
	"time"
)

// PartitionSpan is how much of posts one partition holds.
const PartitionSpan = 6 * time.Hour

// EnsurePostPartitions makes the partitions of posts from a day before now to
// half a day after it, so that new posts never land in the default partition.
// Call it every PartitionSpan. Each is a short transaction of its own.
func EnsurePostPartitions(ctx context.Context, db DB, now time.Time) error {
	for ahead := -24 * time.Hour; ahead <= 12*time.Hour; ahead += PartitionSpan {
		at := now.Add(ahead)
		if _, err := db.Exec(ctx, `SELECT ensure_post_partition($1)`, at); err != nil {
			return fmt.Errorf("make the partition of posts around %s: %w", at.UTC().Format(time.RFC3339), err)
		}
	}
	return nil
}
