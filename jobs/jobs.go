// Package jobs is the contract between the code that enqueues jobs and the workers:
// each kind's arguments, queue, priority, tags and uniqueness. It contains data
// only. A kind is a stable string: changed arguments keep their old fields, or
// become a new kind.
package jobs

import (
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// QueueProcess is the queue of projections that set no other.
const QueueProcess = "process"

// The queues, besides those of the projections. Each queue has its own workers and
// can be paused separately.
const (
	QueueNetwork     = "network"  // follow lists, requests, gaps: short jobs that call services
	QueueBackfill    = "backfill" // one account's feed per job
	QueueResync      = "resync"   // one account's repository per job, in memory
	QueueMaintenance = "maintenance"
	QueueAlerts      = "alerts"
)

// Queues returns all queues except those of the projections.
func Queues() []string {
	return []string{QueueNetwork, QueueBackfill, QueueResync, QueueMaintenance, QueueAlerts}
}

// Unfinished returns the states of a job that has not ended. A unique job has no
// duplicate in any of them.
func Unfinished() []rivertype.JobState {
	return []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning,
		rivertype.JobStateScheduled,
	}
}

// Periodic returns the options of a periodic job: there is one unfinished job at a time. It has few attempts, because
// the next one comes soon, and leaves no dead letter.
func Periodic(queue string, priority, attempts int) river.InsertOpts {
	return river.InsertOpts{
		Queue: queue, Priority: priority, MaxAttempts: attempts + Deaths, Tags: []string{tagPeriodic},
		UniqueOpts: river.UniqueOpts{ByState: Unfinished()},
	}
}

// Attempts is how many times a job may fail, unless its kind sets another number.
const Attempts = 25

// Deaths is how many extra attempts each job has in River: attempts that ended with
// their process do not count as failures of the job.
const Deaths = 20
