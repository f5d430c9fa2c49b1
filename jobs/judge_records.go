package jobs

import "github.com/riverqueue/river"

// JudgeRecords compares records with the schemas of their collections, checks the
// rules, and stores verdicts, references and texts. It also names deleted records: the
// records that refer to them are judged again.
type JudgeRecords struct{ Batch }

// Kind names the job.
func (JudgeRecords) Kind() string { return "judge_records" }

// NameLexicon is the name of the projection of JudgeRecords.
const NameLexicon = "lexicon"

// JudgeDependents judges the records again that refer to stored, changed or deleted
// records.
type JudgeDependents struct {
	Targets []Record `json:"targets"`
}

// Kind names the job.
func (JudgeDependents) Kind() string { return "judge_dependents" }

// InsertOpts are the defaults of its inserts: the process queue.
func (JudgeDependents) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueProcess, Priority: 2, Tags: []string{"lexicon"}}
}

// JudgeAccount judges the records again that depend on the records of an account that
// was deleted or came back. A trigger on accounts adds it.
type JudgeAccount struct {
	DID string `json:"did"`
}

// Kind names the job.
func (JudgeAccount) Kind() string { return "judge_account" }

// InsertOpts are the defaults of its inserts: the process queue.
func (JudgeAccount) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueProcess, Priority: 2, Tags: []string{"lexicon"}}
}

// JudgeOutdated judges the records again whose verdicts were made with schemas other
// than those of a catalog.
type JudgeOutdated struct {
	// Catalog is the version of the catalog. If there is a later version, that
	// version's job does the work.
	Catalog string `json:"catalog"`
}

// Kind names the job.
func (JudgeOutdated) Kind() string { return "judge_outdated" }

// InsertOpts are the defaults of its inserts: one for each catalog.
func (JudgeOutdated) InsertOpts() river.InsertOpts {
	return river.InsertOpts{Queue: QueueMaintenance, Tags: []string{"lexicon"}, UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished()}}
}
