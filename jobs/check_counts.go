package jobs

import "github.com/riverqueue/river"

// CheckCounts compares the counts of a sample of links with the ledger. There is one
// Unfinished job at a time. It has few attempts: the next job comes soon.
type CheckCounts struct{}

// Kind names the job.
func (CheckCounts) Kind() string { return "check_counts" }

// InsertOpts are the defaults of its inserts.
func (CheckCounts) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueMaintenance, Priority: 4, MaxAttempts: 2 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
