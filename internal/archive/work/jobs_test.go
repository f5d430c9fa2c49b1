package work

import (
	"testing"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"
)

// TestJobsArePeriodic shows that no job of the archive leaves a dead letter: the next one does the same work.
func TestJobsArePeriodic(t *testing.T) {
	t.Parallel()
	for _, args := range []river.JobArgsWithInsertOpts{SealSegmentArgs{}, SyncSegmentArgs{}, SnapshotArchiveArgs{}, SweepArchiveArgs{},
		ForgetSegmentArgs{}, ListForgottenArgs{}} {
		require.Equal(t, []string{"periodic"}, args.InsertOpts().Tags, args)
	}
}
