package jobs

import "github.com/riverqueue/river"

// Expire deletes what is older than its retention. There is one unfinished job
// at a time. It is tried a few times only: the next hour brings another.
type Expire struct{}

// Kind is "expire".
func (Expire) Kind() string { return "expire" }

// InsertOpts puts the job into the maintenance queue.
func (Expire) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:       QueueMaintenance,
		Priority:    1,
		MaxAttempts: 5 + Deaths,
		Tags:        []string{tagPeriodic},
		UniqueOpts:  river.UniqueOpts{ByState: unfinished()},
	}
}
