package jobs

import "github.com/riverqueue/river"

// CheckSubjects updates reposts and quotes when the posts that they refer to change.
// It projects the reposts and quotes of a changed post again, fetches the posts of
// strangers, and deletes records that have waited too long. There is one unfinished
// job at a time. It has few attempts: the next minute adds another job, and so does a
// repost of a post that must be fetched.
type CheckSubjects struct{}

// Kind names the job.
func (CheckSubjects) Kind() string { return "check_subjects" }

// InsertOpts are the defaults of its inserts.
func (CheckSubjects) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 2, MaxAttempts: 3 + Deaths, Tags: []string{TagPeriodic}, UniqueOpts: river.UniqueOpts{ByState: Unfinished()}}
}
