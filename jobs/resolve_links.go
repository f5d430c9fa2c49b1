package jobs

import "github.com/riverqueue/river"

// ResolveLinks asks shorteners where short links lead, and merges those links with their
// targets. There is one unfinished job at a time. It has few attempts: the next minute
// adds another job, and so does a new short link.
type ResolveLinks struct{}

// Kind names the job.
func (ResolveLinks) Kind() string { return "resolve_links" }

// InsertOpts are the defaults of its inserts.
func (ResolveLinks) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 3, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
