package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// Priorities of backfills, by reason.
const (
	PriorityGap       = 1 // the stream may have missed something
	PriorityManual    = 2 // requested by a person
	PriorityNewFollow = 3 // the account is newly followed
	PriorityColdStart = 4 // one of many at the first start
)

// BackfillAccount reads an account's feed back to a time. With PriorityGap it
// compares the account with its repository. There is one unfinished job per
// account; a request with a higher priority promotes it.
type BackfillAccount struct {
	DID       string    `json:"did" river:"unique"`
	Since     time.Time `json:"since"` // read back to here
	Gap       int64     `json:"gap,omitempty"`
	NotBefore time.Time `json:"not_before"` // the earliest time to read the first page
	// how many times it was requested again before it ended; each request restarts it at the newest post
	Requests int `json:"requests,omitempty"`
}

// Kind names the job.
func (BackfillAccount) Kind() string { return "backfill_account" }

// InsertOpts are the defaults of its inserts.
func (BackfillAccount) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:      QueueBackfill,
		Priority:   PriorityManual,
		Tags:       Reason(PriorityManual), // for another priority, the inserter sets its reason
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: Unfinished()},
	}
}

// RequestBackfill adds backfills by handle or DID, of all followed accounts, or of
// the accounts that one listing of a watch added. The SQL functions
// enqueue_backfill, enqueue_backfill_all and enqueue_reread add this job, so the
// names of its fields are part of the schema.
type RequestBackfill struct {
	Account  string    `json:"account,omitempty"`
	All      bool      `json:"all,omitempty"`
	Watch    int64     `json:"watch,omitempty"`
	Began    time.Time `json:"began,omitzero"` // identifies the listing of Watch
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
