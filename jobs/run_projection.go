package jobs

import "github.com/riverqueue/river"

// RunProjection enqueues jobs for every stored record of a projection's
// collections. The SQL function run_projection adds this job, so the names of its
// fields are part of the schema.
type RunProjection struct {
	Name string `json:"name"`
}

// Kind names the job.
func (RunProjection) Kind() string { return "run_projection" }

// InsertOpts are the defaults of its inserts.
func (r RunProjection) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueMaintenance, Tags: tags(r.Name)}
}
