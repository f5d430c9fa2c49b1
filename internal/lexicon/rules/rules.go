// Package rules checks what schemas cannot express: rules between the fields of a
// record, and between records. Each namespace has its rules in its own files and is
// registered in [Standard]. A record that breaks a hard rule is not projected; a
// broken soft rule gives a warning. Rules read only the records that they are given.
package rules

import (
	"strings"

	"github.com/weir-social/weir/internal/atproto/syntax"
	"github.com/weir-social/weir/internal/lexicon"
)

// maxProblems limits the hard and the soft problems of a record, separately.
const maxProblems = 20

// A Record is the input of rules: the result of its validation, and its key.
type Record struct {
	DID, Collection, Key string
	lexicon.Result
	// Targets are the records of Wanted that are stored, by at-uri. The value is the
	// record's Root. A rule that needs a missing record finds nothing.
	Targets map[string]lexicon.Value
}

// URI returns the at-uri of the record.
func (r *Record) URI() string { return "at://" + r.DID + "/" + r.Collection + "/" + r.Key }

// A Namespace has the rules of all collections whose names begin with its name.
type Namespace struct {
	Name  string // without a trailing dot
	check func(*check)
	// wanted returns the at-uris of the records that the rules read.
	wanted func(*check) []string
	// required returns the at-uris of the records without which a record cannot be
	// used.
	required func(*check) []string
	searched map[string]searched // by the collection within the namespace
}

// Rules are the registered namespaces.
type Rules []Namespace

// Standard returns Weir's own rules.
func Standard() Rules {
	return Rules{Layers("pub.layers")}
}

// Check returns the problems of a record. It returns none for an invalid record,
// because the meaning of its fields is unknown.
func (r Rules) Check(record Record) (hard, soft []lexicon.Problem) {
	c := r.of(&record)
	if c == nil {
		return nil, nil
	}
	c.namespace.check(c)
	return c.hard, c.soft
}

// Wanted returns the at-uris of the records that the rules for a record read, in the
// record's order. They may contain duplicates, and may name records that do not exist.
func (r Rules) Wanted(record Record) []string {
	c := r.of(&record)
	if c == nil {
		return nil
	}
	return c.namespace.wanted(c)
}

// Required returns the at-uris of the records without which a record cannot be used,
// in the record's order. If they are not known yet, the record can wait for them.
func (r Rules) Required(record Record) []string {
	c := r.of(&record)
	if c == nil {
		return nil
	}
	return c.namespace.required(c)
}

func (r Rules) of(record *Record) *check {
	if record.Verdict != lexicon.Valid {
		return nil
	}
	for i := range r {
		if name, ok := strings.CutPrefix(record.Collection, r[i].Name+"."); ok {
			return &check{Record: record, namespace: &r[i], name: name}
		}
	}
	return nil
}

// check is one check of a record.
type check struct {
	*Record
	namespace  *Namespace
	name       string            // of the collection, without the namespace
	texts      map[string]string // of the expressions that have been read, by at-uri
	hard, soft []lexicon.Problem
}

func (c *check) reject(rule string, at lexicon.Value, expected string) {
	c.hard = add(c.hard, rule, at, expected)
}

func (c *check) warn(rule string, at lexicon.Value, expected string) {
	c.soft = add(c.soft, rule, at, expected)
}

func add(list []lexicon.Problem, rule string, at lexicon.Value, expected string) []lexicon.Problem {
	if len(list) == maxProblems {
		return list
	}
	return append(list, lexicon.Problem{Rule: rule, Path: at.Path(), Expected: expected, Received: at.Received()})
}

// full reports whether a rule can stop, because all further problems would be dropped.
func (c *check) full() bool { return len(c.hard) == maxProblems && len(c.soft) == maxProblems }

// definition returns the name of a value's definition within the namespace, or "".
func (c *check) definition(v lexicon.Value) string {
	name, ok := strings.CutPrefix(v.Definition(), c.namespace.Name+".")
	if !ok {
		return ""
	}
	return name
}

// target returns the record that an at-uri names, if it is in Targets and of a
// collection.
func (c *check) target(uri, name string) lexicon.Value {
	if t := c.Targets[uri]; c.definition(t) == name {
		return t
	}
	return lexicon.Value{}
}

// collectionOf returns the collection in an at-uri, or "" if it has none.
func collectionOf(uri string) string {
	parts := strings.SplitN(uri, "/", 5) // at: "" authority collection key
	if len(parts) < 5 || !syntax.IsNSID(parts[3]) {
		return ""
	}
	return parts[3]
}
