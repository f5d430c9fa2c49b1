package jobs

import "github.com/riverqueue/river"

// ReadProfiles reads which accounts that share links ask not to be shown to strangers. There is one
// Unfinished job at a time. It has few attempts: the next minute adds another job.
type ReadProfiles struct{}

// Kind names the job.
func (ReadProfiles) Kind() string { return "read_profiles" }

// InsertOpts are the defaults of its inserts.
func (ReadProfiles) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 2, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
