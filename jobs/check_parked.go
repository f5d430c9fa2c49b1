package jobs

import (
	"time"

	"github.com/riverqueue/river"
)

// CheckParked looks for the records that parked records wait for, if they are due. At
// most one such job is added for each second.
type CheckParked struct {
	Due int64 `json:"due"` // the second since 1970 in which it must run; 0: the periodic job
}

// Kind names the job.
func (CheckParked) Kind() string { return "check_parked" }

// InsertOpts are the defaults of its inserts.
func (c CheckParked) InsertOpts() river.InsertOpts {
	opts := river.InsertOpts{Queue: QueueNetwork, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished()}}
	if c.Due != 0 {
		opts.ScheduledAt = time.Unix(c.Due, 0)
	}
	return opts
}

// FetchRecord requests a record that others require from its account's server, once.
type FetchRecord struct {
	Record Record `json:"record"`
}

// Kind names the job.
func (FetchRecord) Kind() string { return "fetch_record" }

// FetchFailures is how many times a server may fail before Weir assumes that it does
// not have the record.
const FetchFailures = 3

// InsertOpts are the defaults of its inserts: one for each record.
func (FetchRecord) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 4, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished()}}
}

// ResolveLexicon fetches the schema of a name from the account that its domain names.
type ResolveLexicon struct {
	NSID string `json:"nsid"`
}

// Kind names the job.
func (ResolveLexicon) Kind() string { return "resolve_lexicon" }

// InsertOpts are the defaults of its inserts: one for each name.
func (ResolveLexicon) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueNetwork, Priority: 4, MaxAttempts: 5 + Deaths, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished()}}
}
