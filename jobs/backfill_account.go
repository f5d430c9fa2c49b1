package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// Priorities of backfills: why an account's past is wanted.
const (
	PriorityGap       = 1 // the stream may have missed something
	PriorityManual    = 2 // a person asked
	PriorityNewFollow = 3 // the account is followed since now
	PriorityColdStart = 4 // one of many, at the first start
)

// BackfillAccount reads an account's feed back to a moment; with the priority of
// a gap, it compares the account with its repository. There is one unfinished job
// an account: a better reason promotes it.
type BackfillAccount struct {
	DID       string    `json:"did" river:"unique"`
	Since     time.Time `json:"since"` // read back to here
	Gap       int64     `json:"gap,omitempty"`
	NotBefore time.Time `json:"not_before"`      // the first page is read no earlier
	Asked     int       `json:"asked,omitempty"` // how often somebody asked again before it ended: each time it is read from the top
}

// Kind names the job.
func (BackfillAccount) Kind() string { return "backfill_account" }

// InsertOpts are the defaults of its inserts.
func (BackfillAccount) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:      QueueBackfill,
		Priority:   PriorityManual,
		Tags:       Reason(PriorityManual), // with another priority, the inserter gives its reason
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished()},
	}
}

// RequestBackfill asks for backfills by handle or DID, of all followed accounts,
// or of those that a listing of a watch brought. The SQL functions
// enqueue_backfill, enqueue_backfill_all and enqueue_reread add it: its fields' names
// are part of the schema.
type RequestBackfill struct {
	Account  string    `json:"account,omitempty"`
	All      bool      `json:"all,omitempty"`
	Watch    int64     `json:"watch,omitempty"`
	Began    time.Time `json:"began,omitzero"` // the listing of Watch
	Since    time.Time `json:"since"`
	Priority int       `json:"priority"`
}

// Kind names the job.
func (RequestBackfill) Kind() string { return "request_backfill" }

// InsertOpts are the defaults of its inserts.
func (r RequestBackfill) InsertOpts() river.InsertOpts {
	scope := "one-account"
	switch {
	case r.All:
		scope = "every-account"
	case r.Watch != 0:
		scope = "second-read"
	}
	return river.InsertOpts{Queue: QueueNetwork, Tags: append(Reason(r.Priority), scope)}
}
