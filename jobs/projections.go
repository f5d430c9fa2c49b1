package jobs

import (
	"strings"
	"time"

	"github.com/riverqueue/river"
)

// A Projection derives data from stored records. A commit that writes records of
// its collections adds one job for all of them, in the same transaction.
type Projection struct {
	// Name is stored in the database and must not change. Lower case, digits and
	// "_".
	Name string
	// Collections are the collections that it reads: names, or prefixes such as
	// "pub.layers.*".
	Collections []string
	// Concerns reports whether a record of one of the collections, as JSON, may give
	// the projection anything to store. Jobs omit new records for which it returns
	// false. It is called in the transaction that stores them, so it must be fast. nil:
	// all records do. Records that are edited, repaired or projected again are always
	// named, because the projection may have stored rows for an earlier revision.
	Concerns func(collection string, record []byte) bool
	// Job returns the arguments of the job for a batch. Their InsertOpts set its
	// queue and priority.
	Job func(Batch) river.JobArgs
	// Tables are its tables that have the columns collection, did and rkey, and an
	// index that begins with did. Weir deletes their rows in the transaction that
	// deletes the record, and when the account is purged; when the record expires, if
	// Expires is set.
	Tables []string
	// Compared are the tables or views, with the same three columns, whose rows an
	// audit compares with the repositories: rows that were made from records which Weir
	// stored. Empty: Tables.
	Compared []string
	// Queues are separate queues for some of its collections. The jobs for the others
	// go to the queue of Job.
	Queues []Queue
	// Deletions is true if its jobs also name deleted records.
	Deletions bool
	// Expires is true if the rows of a record are deleted when it expires.
	Expires bool
}

// A Queue is a queue for the jobs of some collections.
type Queue struct {
	Name        string
	Collections []string // names, or prefixes such as "pub.layers.graph.*"
	Workers     int      // how many of its jobs a process runs at once
	Priority    int      // of its jobs: 1, the highest, to 4
}

// A Batch names the records of a projection's collections that one commit wrote, and
// the deleted ones if the projection asks for them. It contains no records: the worker
// reads the stored records when it runs. The arguments of a job may embed it.
type Batch struct {
	Records []Record `json:"records"`
	// Arrived is when the first event of the batch arrived; zero if its records
	// came another way.
	Arrived time.Time `json:"arrived,omitzero"`
	// Stream is the stream that brought them; empty if they came another way.
	Stream string `json:"stream,omitempty"`
	// Fresh is true if all records are new: until the job's first attempt, the
	// projection has no rows of them, unless another job has projected them meanwhile.
	Fresh bool `json:"fresh,omitempty"`
}

// A Record names a record. Its text is "did/collection/rkey".
type Record struct{ Collection, DID, Rkey string }

// MarshalText returns "did/collection/rkey".
func (r Record) MarshalText() ([]byte, error) {
	return []byte(r.DID + "/" + r.Collection + "/" + r.Rkey), nil
}

// UnmarshalText parses "did/collection/rkey". Text without the slashes becomes the
// name of a record that cannot exist.
func (r *Record) UnmarshalText(text []byte) error {
	*r = Record{}
	r.DID, r.Collection, _ = strings.Cut(string(text), "/")
	r.Collection, r.Rkey, _ = strings.Cut(r.Collection, "/")
	return nil
}

// InsertOpts are the defaults of a projection's jobs: the process queue, with the
// highest priority. The tag names the stream, or the other way in which the records
// came.
func (b Batch) InsertOpts() river.InsertOpts {
	opts := river.InsertOpts{Queue: QueueProcess, Priority: 1}
	switch {
	case b.Stream != "":
		opts.Tags = tags("stream-" + b.Stream)
	case !b.Arrived.IsZero():
		opts.Tags = []string{"ingest"}
	default:
		opts.Tags = []string{"feed"}
	}
	return opts
}
