// Package lexicon compares a record with the schema of its collection. It returns a
// verdict with the reasons for it, the references in the record, and its texts.
//
// A [Catalog] holds schemas. It never changes, so any number of goroutines may validate
// with it, and an update is a new catalog. Validation reads nothing but the catalog and
// the record: a name in a record is never resolved. Its time and memory are limited by
// the size of the record, whatever strangers write into schemas and records.
package lexicon

import "github.com/weir-social/weir/internal/atproto/syntax"

// A Verdict says whether a record follows the schema of its collection.
type Verdict string

const (
	// Valid: the record follows its schema.
	Valid Verdict = "valid"
	// Invalid: the record breaks its schema, or the network's data model does not allow
	// it.
	Invalid Verdict = "invalid"
	// Unknown: the catalog lacks the schema, or a part of it that this record needs.
	// Everything that could be checked is valid.
	Unknown Verdict = "unknown"
)

// A Problem is one reason against a record.
type Problem struct {
	Rule     string // the broken rule, in snake_case
	Path     string // a JSON pointer to the value; "" for the record or its key
	Expected string
	Received string
}

// A Kind says what a reference refers to.
type Kind string

// The kinds of references.
const (
	ATURI     Kind = "at-uri"     // an account, a collection or a record
	StrongRef Kind = "strong-ref" // a record in the version that its CID names
	DID       Kind = "did"        // an account
	Blob      Kind = "blob"       // a file, by its CID
	Link      Kind = "cid-link"   // anything else, by its CID
)

// A Reference is one mention of something outside of the record.
type Reference struct {
	Path   string // a JSON pointer to the at-uri, the DID, the blob or the link
	Kind   Kind
	Target string // an at-uri, a DID or a CID, as in the record
	CID    string // of a strong reference
	// Declared is false if no schema says that the value is a reference: it is in a
	// field that the schema does not know, or there is no schema.
	Declared bool
}

// Record returns the record that an at-uri or a strong reference names. It returns false
// for other kinds. It also returns false for an at-uri that cannot be compared with
// stored records, because it has a handle instead of a DID or names no record.
func (r Reference) Record() (did, collection, key string, ok bool) {
	if r.Kind != ATURI && r.Kind != StrongRef {
		return "", "", "", false
	}
	return syntax.RecordOf(r.Target)
}

// A Text is a string that the schema declares without a format and without a list of
// values: text that people wrote.
type Text struct {
	Path  string
	Value string
}

// A Result is everything that validation found.
type Result struct {
	Verdict Verdict
	// Hash identifies the schema that the verdict was made with, and every definition
	// that it uses; "" without a schema.
	Hash string
	// Problems are the first reasons, in the order in which they were found. More counts
	// the others.
	Problems []Problem
	More     int
	// Missing are the definitions that the catalog lacks and the record needs, sorted.
	Missing []string
	// References and Texts are in the order of the record. For an invalid record they
	// cover the parts that could be read.
	References []Reference
	Texts      []Text
	// Unlisted are the strings outside the values that the schema knows. The protocol
	// allows them.
	Unlisted []Value
	// Dropped counts the references and texts that the limits left out.
	Dropped int
	// Root is the record. It is not an object if the record is not JSON.
	Root Value
}

// The limits of what validation returns.
const (
	maxProblems  = 20
	maxCollected = 128 << 10 // references, texts and unlisted values
	maxPaths     = 8 << 20   // bytes of their paths
)

// The data model's limits. The network's servers refuse larger records.
const (
	maxRecord    = 2 << 20   // bytes of JSON; 1 MiB of CBOR
	maxString    = 1 << 20   // bytes
	maxContainer = 128 << 10 // members or elements
	maxKey       = 8192      // bytes
	maxDepth     = 200       // levels: as many as the consumer stores
	maxSafe      = 1<<53 - 1
	maxPath      = 2048 // bytes of a path; a longer one is cut
	maxShown     = 80   // bytes of a received string
)
