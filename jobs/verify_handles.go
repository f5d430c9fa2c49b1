package jobs

import "github.com/riverqueue/river"

// VerifyHandles verifies the handles of accounts that are followed or shown. There is one
// Unfinished job at a time. It has few attempts: the next minute adds another job.
type VerifyHandles struct{}

// Kind names the job.
func (VerifyHandles) Kind() string { return "verify_handles" }

// InsertOpts are the defaults of its inserts.
func (VerifyHandles) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 3, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
