package jobs

import "github.com/riverqueue/river"

// RetryDeadLetters retries every dead letter whose retry was requested, and the events
// whose retry is due. It also runs every minute. The SQL functions retry_dead_letter and
// retry_dead_letters add this job, so its kind is part of the schema.
type RetryDeadLetters struct{}

// Kind names the job.
func (RetryDeadLetters) Kind() string { return "retry_dead_letters" }

// InsertOpts are the defaults of the job that runs every minute. There is one at a time,
// because with many waiting events it takes longer than a minute. The SQL functions add
// separate jobs.
func (RetryDeadLetters) InsertOpts() river.InsertOpts {
	return Periodic(QueueNetwork, 3, 3)
}
