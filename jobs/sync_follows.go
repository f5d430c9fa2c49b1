package jobs

import "github.com/riverqueue/river"

// SyncFollows reads the members of a watch again. The triggers of watches add this
// job from SQL, so the names of its fields are part of the schema.
type SyncFollows struct {
	Watch int64 `json:"watch"` // 0: a job for every watch
}

// Kind names the job.
func (SyncFollows) Kind() string { return "sync_follows" }

// InsertOpts are the defaults of its inserts. The inserter tags the job of one
// watch with the watch's kind.
func (s SyncFollows) InsertOpts() river.InsertOpts {
	opts := river.InsertOpts{Queue: QueueNetwork}
	if s.Watch == 0 {
		opts.Tags = []string{"every-watch"}
	}
	return opts
}
