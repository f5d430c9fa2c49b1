package jobs

import "github.com/riverqueue/river"

// CheckAlerts checks the conditions and sends alerts. There is one unfinished job
// at a time. It has few attempts: the next job comes soon.
type CheckAlerts struct{}

// Kind names the job.
func (CheckAlerts) Kind() string { return "check_alerts" }

// InsertOpts are the defaults of its inserts.
func (CheckAlerts) InsertOpts() river.InsertOpts {
	return Periodic(QueueAlerts, 1, 2)
}
