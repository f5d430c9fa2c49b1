// Package jobs is the contract between whoever enqueues work and whoever does
// it: the arguments of every job kind, its queue, priority, tags and uniqueness. It
// holds data only. A kind is a stable string: changed arguments keep their old
// fields, or become a new kind.
package jobs

import "github.com/riverqueue/river/rivertype"

// The queues, beside those of the projections. A queue is worked by its own set
// of workers, and can be paused by itself.
const (
	QueueNetwork     = "network"  // follow lists, requests, gaps: short jobs that ask somebody else
	QueueBackfill    = "backfill" // one account's feed a job
	QueueMaintenance = "maintenance"
	QueueAlerts      = "alerts"
)

// Queues are all of them, without those of the projections.
func Queues() []string {
	return []string{QueueNetwork, QueueBackfill, QueueMaintenance, QueueAlerts}
}

// unfinished are the states of a job that is still to do something; of a unique
// one there is no second in any of them.
func unfinished() []rivertype.JobState {
	return []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
	}
}

// Attempts is how often a job may fail, unless its kind says otherwise.
const Attempts = 25

// Deaths is how many attempts more River is told: so many may end with their
// process, which is no failure of the job.
const Deaths = 20
