package work

import (
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
)

// queueArchive is processed only by processes with WEIR_ARCHIVE.
const queueArchive = "archive"

// SealSegmentArgs writes what a stream has added to the archive into segments, if there is
// enough or it has waited long enough. There is one unfinished job per stream and wire. It
// has few attempts: every few seconds another job is added while there is work.
type SealSegmentArgs struct {
	Stream string `json:"stream" river:"unique"`
	Wire   string `json:"wire" river:"unique"`
}

// Kind names the job.
func (SealSegmentArgs) Kind() string { return "seal_segment" }

// InsertOpts are the defaults of its inserts.
func (SealSegmentArgs) InsertOpts() river.InsertOpts { return archiveOpts(1) }

// SyncSegmentArgs copies a sealed segment to the store, reads it back, and deletes the rows
// that it was made of. There is one unfinished job per segment. It has few attempts:
// another job is added while the segment is not in the store.
type SyncSegmentArgs struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (SyncSegmentArgs) Kind() string { return "sync_segment" }

// InsertOpts are the defaults of its inserts.
func (SyncSegmentArgs) InsertOpts() river.InsertOpts { return archiveOpts(2) }

// SnapshotArchiveArgs archives the tables that no event describes, if they have changed. There
// is one unfinished job at a time.
type SnapshotArchiveArgs struct{}

// Kind names the job.
func (SnapshotArchiveArgs) Kind() string { return "snapshot_archive" }

// InsertOpts are the defaults of its inserts.
func (SnapshotArchiveArgs) InsertOpts() river.InsertOpts { return archiveOpts(1) }

// SweepArchiveArgs deletes what killed jobs left, and forgets events that no server sends
// again. There is one unfinished job at a time.
type SweepArchiveArgs struct{}

// Kind names the job.
func (SweepArchiveArgs) Kind() string { return "sweep_archive" }

// InsertOpts are the defaults of its inserts.
func (SweepArchiveArgs) InsertOpts() river.InsertOpts { return archiveOpts(3) }

// ForgetSegmentArgs compares a segment with the data to forget, and rewrites it without that
// data. There is one unfinished job per segment. It has few attempts: another job is added
// while the segment is due.
type ForgetSegmentArgs struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (ForgetSegmentArgs) Kind() string { return "forget_segment" }

// InsertOpts are the defaults of its inserts.
func (ForgetSegmentArgs) InsertOpts() river.InsertOpts { return archiveOpts(4) }

// ListForgottenArgs writes lists of forgotten accounts to the archive's store. There is one
// unfinished job at a time.
type ListForgottenArgs struct{}

// Kind names the job.
func (ListForgottenArgs) Kind() string { return "list_forgotten" }

// InsertOpts are the defaults of its inserts.
func (ListForgottenArgs) InsertOpts() river.InsertOpts { return archiveOpts(1) }

func archiveOpts(priority int) river.InsertOpts {
	opts := jobs.Periodic(queueArchive, priority, 3)
	opts.UniqueOpts.ByArgs = true
	return opts
}
