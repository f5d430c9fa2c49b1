package lexicons

import (
	"testing"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
)

// TestTagsOfJobs shows that River UI can tell the jobs of lexicons, and those that a stream has brought.
func TestTagsOfJobs(t *testing.T) {
	t.Parallel()
	for _, args := range []river.JobArgsWithInsertOpts{MakeRecordViewsArgs{}, JudgeDependentsArgs{}, JudgeAccountArgs{}, JudgeOutdatedArgs{},
		CheckParkedArgs{}, FetchRecordArgs{}, ResolveLexiconArgs{}} {
		require.Equal(t, []string{"lexicon"}, args.InsertOpts().Tags, args)
	}
	require.Equal(t, []string{"stream-jetstream"}, JudgeRecordsArgs{Batch: jobs.Batch{Stream: "jetstream"}}.InsertOpts().Tags)
}
