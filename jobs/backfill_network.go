package jobs

import "github.com/riverqueue/river"

// BackfillNetwork reads an interval from the archive of a Jetstream server, for a gap or on
// request. The SQL function enqueue_network_backfill adds this job, so the names of its fields
// are part of the schema.
type BackfillNetwork struct {
	Backfill int64 `json:"backfill" river:"unique"` // the row of network_backfills
}

// Kind names the job.
func (BackfillNetwork) Kind() string { return "backfill_network" }

// InsertOpts are the defaults of its inserts, which are for a gap.
func (BackfillNetwork) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: QueueBackfill, Priority: PriorityGap, Tags: Reason(PriorityGap), UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: Unfinished()},
	}
}
