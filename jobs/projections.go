package jobs

import (
	"strings"
	"time"

	"github.com/riverqueue/river"
)

// A Projection makes something of stored records: a commit that writes records
// of its collections adds one job for them all, in the same transaction.
type Projection struct {
	// Name is stable: a database remembers it. Lower case, digits and "_".
	Name string
	// Collections are the names of those it reads, or prefixes such as
	// "pub.layers.*".
	Collections []string
	// Job makes the arguments of the job for a batch. Its kind, queue and
	// priority are those of its InsertOpts.
	Job func(Batch) river.JobArgs
	// Tables are its tables that have the columns collection, did and rkey, and an
	// index that begins with did. Weir deletes their rows in the transaction that
	// deletes the record, and when the account is purged. A record that expires
	// takes no rows along.
	Tables []string
}

// A Batch is what one commit wrote of a projection's collections. It names the
// records and carries none: the worker reads what is stored when it runs. The
// arguments of a job may embed it.
type Batch struct {
	Records []Record `json:"records"`
	// Arrived is when the first event of the batch came over the wire; zero where
	// its records came another way.
	Arrived time.Time `json:"arrived,omitzero"`
	// Stream is the one that brought them; empty where they came another way.
	Stream string `json:"stream,omitempty"`
}

// A Record names a record. Its text is "did/collection/rkey".
type Record struct{ Collection, DID, Rkey string }

// MarshalText writes "did/collection/rkey".
func (r Record) MarshalText() ([]byte, error) {
	return []byte(r.DID + "/" + r.Collection + "/" + r.Rkey), nil
}

// UnmarshalText reads it. Text without the slashes is the name of no record: it
// is read as a record that cannot be stored.
func (r *Record) UnmarshalText(text []byte) error {
	*r = Record{}
	r.DID, r.Collection, _ = strings.Cut(string(text), "/")
	r.Collection, r.Rkey, _ = strings.Cut(r.Collection, "/")
	return nil
}

// InsertOpts puts a projection's job into the process queue, first in line. Its tag
// names the stream, or says that the records came another way.
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
