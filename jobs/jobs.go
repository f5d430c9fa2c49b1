// Package jobs is the contract between whoever enqueues work and whoever does
// it: the arguments of every job kind, its queue, priority and uniqueness. It
// holds data only. A kind is a stable string: changed arguments keep their old
// fields, or become a new kind.
package jobs

// The queues. A queue is worked by its own set of workers, and can be paused by
// itself.
const (
	QueueProcess     = "process"
	QueueNetwork     = "network"  // follow lists, requests, gaps: short jobs that ask somebody else
	QueueBackfill    = "backfill" // one account's feed a job
	QueueMaintenance = "maintenance"
)
