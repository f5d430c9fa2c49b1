package jobs

import "github.com/riverqueue/river"

// RetryDeadLetters retries every dead letter whose retry was requested, and the events
// whose retry is due: it also runs every minute. The SQL
// functions retry_dead_letter and retry_dead_letters add this job: its kind is part
// of the schema.
type RetryDeadLetters struct{}

// Kind names the job.
func (RetryDeadLetters) Kind() string { return "retry_dead_letters" }

// InsertOpts are the defaults of its inserts.
func (RetryDeadLetters) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Tags: Reason(PriorityManual)}
}
