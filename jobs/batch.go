package jobs

import (
	"strings"
	"time"

	"github.com/riverqueue/river"
)

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
