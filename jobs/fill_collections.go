package jobs

import "github.com/riverqueue/river"

// FillCollections advances the histories: it finds the accounts whose past in a
// collection must be read, and adds their jobs, a limited number at a time. There is one
// Unfinished job at a time. It has few attempts: the next minute adds another job. The
// SQL function enqueue_history adds this job, so the names of its fields are part of the
// schema.
type FillCollections struct {
	Once bool `json:"once,omitempty"` // end after one pass, even if there is more to do
}

// Kind names the job.
func (FillCollections) Kind() string { return "fill_collections" }

// InsertOpts are the defaults of its inserts.
func (FillCollections) InsertOpts() river.InsertOpts {
	return Periodic(QueueNetwork, 3, 3)
}
