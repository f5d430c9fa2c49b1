package jobs

import "github.com/riverqueue/river"

// BackfillRepo reads the past of an account in the collections whose histories wait for
// it. There is one unfinished job per account.
type BackfillRepo struct {
	DID string `json:"did" river:"unique"`
}

// Kind names the job.
func (BackfillRepo) Kind() string { return "backfill_repo" }

// InsertOpts are the defaults of its inserts. All other jobs that read accounts come
// first.
func (BackfillRepo) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueBackfill, Priority: PriorityColdStart, Tags: []string{"history"}, UniqueOpts: river.UniqueOpts{
		ByArgs: true, ByState: Unfinished(),
	}}
}
