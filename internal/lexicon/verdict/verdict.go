// Package verdict stores the results of judging records: verdicts, references,
// texts, and which records wait for others. It changes a record's rows only under
// the lock of the record, except how often a target was looked for.
package verdict

import (
	"encoding/json"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/schema"
)

// The states of judged records.
const (
	Projected = "projected" // its references and texts are stored
	Parked    = "parked"    // it waits for a record that it requires
	Missing   = "missing"   // it waited in vain, but may still be released
	Refused   = "refused"   // it is invalid, or breaks a hard rule
)

// A Judgment is everything that is stored about a record.
type Judgment struct {
	schema.Key
	CID      string
	Hash     string // of the schema
	Verdict  lexicon.Verdict
	State    string
	Problems []lexicon.Problem
	Warnings []lexicon.Problem

	// For projected records:
	Dangling   bool // a required record was deleted
	References []Reference
	Text       string
	Names      *string // a tsvector: what the record is called; nil: none
	Words      *string // a tsvector of the rest; nil: none
	Filters    *string // a tsvector of what a search may filter by; nil: none

	// Waits are the records that a parked record waits for.
	Waits []schema.Key
}

// A Reference is a reference of a record.
type Reference struct {
	lexicon.Reference
	To       schema.Key // the zero key: the reference names no record
	Read     bool       // a rule reads the target
	Dangling bool       // the target was deleted
}

// Before is the stored state of a record that the next judgment needs.
type Before struct {
	CID, Hash, State string
	// Dangling are the deleted records that it refers to.
	Dangling map[schema.Key]bool
	// Waits are the records that it waits for; true: the target was given up.
	Waits map[schema.Key]bool
}

// problems returns problems as JSON.
func problems(list []lexicon.Problem) json.RawMessage {
	type problem struct {
		Rule     string `json:"rule"`
		Path     string `json:"path"`
		Expected string `json:"expected"`
		Received string `json:"received"`
	}
	all := make([]problem, len(list))
	for i, p := range list {
		all[i] = problem(p)
	}
	text, _ := json.Marshal(all) // strings only
	return text
}
