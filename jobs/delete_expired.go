package jobs

import "github.com/riverqueue/river"

// DeleteExpired deletes the records whose authors let them expire.
type DeleteExpired struct{}

// Kind names the job.
func (DeleteExpired) Kind() string { return "delete_expired" }

// InsertOpts are the defaults of its inserts.
func (DeleteExpired) InsertOpts() river.InsertOpts { return Periodic(QueueNetwork, 2, 3) }
