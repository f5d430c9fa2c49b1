// Package verdict stores what records were found to be: verdicts, references, texts,
// and which of them wait for others. Its rows of a record change only under the lock
// of the record, except how often a target was looked for.
package verdict

import (
	"encoding/json"

	"github.com/weir-social/weir/lexicon"
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

	// Of projected records:
	Dangling   bool // a required record was deleted
	References []Reference
	Text       string
	Names      *string // a tsvector: what the record is called; nil: none
	Words      *string // a tsvector of the rest; nil: none

	// Waits are the records that a parked one waits for.
	Waits []schema.Key
}

// A Reference is a reference of a record.
type Reference struct {
	lexicon.Reference
	To       schema.Key // the zero key: it names no record
	Read     bool       // a rule reads the target
	Dangling bool       // the target was deleted
}

// Before is what is stored about a record, as far as the next judgment needs it.
type Before struct {
	CID, Hash, State string
	// Dangling are the deleted records that it refers to.
	Dangling map[schema.Key]bool
	// Waits are the records that it waits for; true: in vain.
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
	text, _ := json.Marshal(all) //nolint:errchkjson // strings only
	return text
}
