package jobs

import "github.com/riverqueue/river"

// Audit compares what is stored with the accounts' own repositories, when that
// is due. There is one unfinished job at a time. It is tried a few times only:
// the next hour brings another.
type Audit struct{}

// Kind is "audit".
func (Audit) Kind() string { return "audit" }

// InsertOpts are the defaults of its inserts.
func (Audit) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 4, MaxAttempts: 3 + Deaths, Tags: []string{tagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: unfinished()}}
}
