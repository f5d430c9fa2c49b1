package jobs

import "github.com/riverqueue/river"

// Audit compares stored records with the accounts' own repositories, if an audit is
// due. There is one unfinished job at a time. It has few attempts: the next hour
// adds another job.
type Audit struct{}

// Kind names the job.
func (Audit) Kind() string { return "audit" }

// InsertOpts are the defaults of its inserts.
func (Audit) InsertOpts() river.InsertOpts {
	return Periodic(QueueNetwork, 4, 3)
}
