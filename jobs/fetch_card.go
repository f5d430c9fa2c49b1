package jobs

import "github.com/riverqueue/river"

// FetchCard fetches the pages of links that several accounts share, to read their titles.
// There is one unfinished job at a time. It has few attempts: while a page is due, the next
// second adds another job.
type FetchCard struct{}

// Kind names the job.
func (FetchCard) Kind() string { return "fetch_card" }

// InsertOpts are the defaults of its inserts.
func (FetchCard) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueCards, Priority: 2, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
