package jobs

import "github.com/riverqueue/river"

// MakeRecordViews makes the SQL views of records from the stored schemas. A trigger
// on lexicons adds it.
type MakeRecordViews struct{}

// Kind names the job.
func (MakeRecordViews) Kind() string { return "make_record_views" }

// InsertOpts are the defaults of its inserts.
func (MakeRecordViews) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueMaintenance, Tags: []string{"lexicon"}}
}
