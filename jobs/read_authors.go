package jobs

import "github.com/riverqueue/river"

// ReadAuthors reads the profiles and the relay lists of followed Nostr accounts that are
// due, and asks domains to confirm the names in the profiles. There is one unfinished job
// at a time. It has few attempts: the next minute adds another job.
type ReadAuthors struct{}

// Kind names the job.
func (ReadAuthors) Kind() string { return "read_authors" }

// InsertOpts are the defaults of its inserts.
func (ReadAuthors) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 3, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}

// ReadRelays reads what followed Nostr accounts wrote to relays that they name and that are
// not configured. There is one unfinished job at a time. It has few attempts: the next
// minute adds another job.
type ReadRelays struct{}

// Kind names the job.
func (ReadRelays) Kind() string { return "read_relays" }

// InsertOpts are the defaults of its inserts.
func (ReadRelays) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 3, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
