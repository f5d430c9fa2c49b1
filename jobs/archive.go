package jobs

import "github.com/riverqueue/river"

// SealSegment writes what a stream has added to the archive into segments, if there is
// enough or it has waited long enough. There is one unfinished job per stream and wire. It
// has few attempts: every few seconds another job is added while there is work.
type SealSegment struct {
	Stream string `json:"stream" river:"unique"`
	Wire   string `json:"wire" river:"unique"`
}

// Kind names the job.
func (SealSegment) Kind() string { return "seal_segment" }

// InsertOpts are the defaults of its inserts.
func (SealSegment) InsertOpts() river.InsertOpts { return archiveOpts(1) }

// SyncSegment copies a sealed segment to the store, reads it back, and deletes the rows
// that it was made of. There is one unfinished job per segment. It has few attempts:
// another job is added while the segment is not in the store.
type SyncSegment struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (SyncSegment) Kind() string { return "sync_segment" }

// InsertOpts are the defaults of its inserts.
func (SyncSegment) InsertOpts() river.InsertOpts { return archiveOpts(2) }

// SnapshotArchive archives the tables that no event describes, if they have changed. There
// is one unfinished job at a time.
type SnapshotArchive struct{}

// Kind names the job.
func (SnapshotArchive) Kind() string { return "snapshot_archive" }

// InsertOpts are the defaults of its inserts.
func (SnapshotArchive) InsertOpts() river.InsertOpts { return archiveOpts(1) }

// SweepArchive deletes what killed jobs left, and forgets events that no server sends
// again. There is one unfinished job at a time.
type SweepArchive struct{}

// Kind names the job.
func (SweepArchive) Kind() string { return "sweep_archive" }

// InsertOpts are the defaults of its inserts.
func (SweepArchive) InsertOpts() river.InsertOpts { return archiveOpts(3) }

// IndexSegment copies the events of a segment into ClickHouse. There is one unfinished
// job per segment. It has few attempts: another job is added while the segment is not
// indexed.
type IndexSegment struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (IndexSegment) Kind() string { return "index_segment" }

// InsertOpts are the defaults of its inserts.
func (IndexSegment) InsertOpts() river.InsertOpts {
	opts := archiveOpts(1)
	opts.Queue = QueueIndex
	return opts
}

// ForgetSegment compares a segment with the data to forget, and rewrites it without that
// data. There is one unfinished job per segment. It has few attempts: another job is added
// while the segment is due.
type ForgetSegment struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (ForgetSegment) Kind() string { return "forget_segment" }

// InsertOpts are the defaults of its inserts.
func (ForgetSegment) InsertOpts() river.InsertOpts { return archiveOpts(4) }

// ListForgotten writes lists of forgotten accounts to the archive's store. There is one
// Unfinished job at a time.
type ListForgotten struct{}

// Kind names the job.
func (ListForgotten) Kind() string { return "list_forgotten" }

// InsertOpts are the defaults of its inserts.
func (ListForgotten) InsertOpts() river.InsertOpts { return archiveOpts(1) }

func archiveOpts(priority int) river.InsertOpts {
	return river.InsertOpts{Queue: QueueArchive, Priority: priority, MaxAttempts: 3 + Deaths, Tags: []string{tagPeriodic},
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: Unfinished()}}
}
