package jobs

import "github.com/riverqueue/river"

// Expire deletes records older than their retention. There is one unfinished job at
// a time. It has few attempts: the next hour adds another job.
type Expire struct{}

// Kind names the job.
func (Expire) Kind() string { return "expire" }

// InsertOpts puts the job into the maintenance queue.
func (Expire) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:       QueueMaintenance,
		Priority:    1,
		MaxAttempts: 5 + Deaths,
		Tags:        []string{tagPeriodic},
		UniqueOpts:  river.UniqueOpts{ByState: Unfinished()},
	}
}
