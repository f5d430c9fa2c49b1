package jobs

import "github.com/riverqueue/river"

// CloseGap adds backfills of the followed accounts for a gap. The trigger of gaps
// adds this job from SQL, so the names of its fields are part of the schema.
type CloseGap struct {
	Gap int64 `json:"gap"`
}

// Kind names the job.
func (CloseGap) Kind() string { return "close_gap" }

// InsertOpts are the defaults of its inserts. The trigger tags it with the gap's
// stream.
func (CloseGap) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 1}
}
