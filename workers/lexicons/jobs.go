package lexicons

import (
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
)

// JudgeRecordsArgs compares records with the schemas of their collections, checks the
// rules, and stores verdicts, references and texts. It also names deleted records: the
// records that refer to them are judged again.
type JudgeRecordsArgs struct{ jobs.Batch }

// Kind names the job.
func (JudgeRecordsArgs) Kind() string { return "judge_records" }

// Name is the name of the projection.
const Name = "lexicon"

// JudgeDependentsArgs judges the records again that refer to stored, changed or deleted
// records.
type JudgeDependentsArgs struct {
	Targets []jobs.Record `json:"targets"`
}

// Kind names the job.
func (JudgeDependentsArgs) Kind() string { return "judge_dependents" }

// InsertOpts are the defaults of its inserts: the process queue.
func (JudgeDependentsArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: jobs.QueueProcess, Priority: 2, Tags: []string{"lexicon"}}
}

// JudgeAccountArgs judges the records again that depend on the records of an account that
// was deleted or came back. A trigger on accounts adds it.
type JudgeAccountArgs struct {
	DID string `json:"did"`
}

// Kind names the job.
func (JudgeAccountArgs) Kind() string { return "judge_account" }

// InsertOpts are the defaults of its inserts: the process queue.
func (JudgeAccountArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: jobs.QueueProcess, Priority: 2, Tags: []string{"lexicon"}}
}

// JudgeOutdatedArgs judges the records again whose verdicts were made with schemas other
// than those of a catalog.
type JudgeOutdatedArgs struct {
	// Catalog is the version of the catalog. If there is a later version, that
	// version's job does the work.
	Catalog string `json:"catalog"`
}

// Kind names the job.
func (JudgeOutdatedArgs) Kind() string { return "judge_outdated" }

// InsertOpts are the defaults of its inserts: one for each catalog.
func (JudgeOutdatedArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: jobs.QueueMaintenance, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: jobs.Unfinished()},
	}
}

// CheckParkedArgs looks for the records that parked records wait for, if they are due. At
// most one such job is added for each second.
type CheckParkedArgs struct {
	Due int64 `json:"due"` // the second since 1970 in which it must run; 0: the periodic job
}

// Kind names the job.
func (CheckParkedArgs) Kind() string { return "check_parked" }

// InsertOpts are the defaults of its inserts.
func (c CheckParkedArgs) InsertOpts() river.InsertOpts {
	opts := river.InsertOpts{
		Queue: jobs.QueueNetwork, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: jobs.Unfinished()},
	}
	if c.Due != 0 {
		opts.ScheduledAt = time.Unix(c.Due, 0)
	}
	return opts
}

// FetchRecordArgs requests a record that others require from its account's server, once.
type FetchRecordArgs struct {
	Record jobs.Record `json:"record"`
}

// Kind names the job.
func (FetchRecordArgs) Kind() string { return "fetch_record" }

// fetchFailures is how many times a server may fail before Weir assumes that it does
// not have the record.
const fetchFailures = 3

// InsertOpts are the defaults of its inserts: one for each record.
func (FetchRecordArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: jobs.QueueNetwork, Priority: 4, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: jobs.Unfinished()},
	}
}

// ResolveLexiconArgs fetches the schema of a name from the account that its domain names.
type ResolveLexiconArgs struct {
	NSID string `json:"nsid"`
}

// Kind names the job.
func (ResolveLexiconArgs) Kind() string { return "resolve_lexicon" }

// InsertOpts are the defaults of its inserts: one for each name.
func (ResolveLexiconArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: jobs.QueueNetwork, Priority: 4, MaxAttempts: 5 + jobs.Deaths, Tags: []string{"lexicon"},
		UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: jobs.Unfinished()},
	}
}

// MakeRecordViewsArgs makes the SQL views of records from the stored schemas. A trigger
// on lexicons adds it.
type MakeRecordViewsArgs struct{}

// Kind names the job.
func (MakeRecordViewsArgs) Kind() string { return "make_record_views" }

// InsertOpts are the defaults of its inserts.
func (MakeRecordViewsArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: jobs.QueueMaintenance, Tags: []string{"lexicon"}}
}
