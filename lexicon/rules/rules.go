// Package rules checks what schemas cannot say: rules between the fields of a record,
// and between records. A namespace has its rules in files of its own and is registered
// in [Standard]. A hard rule makes a record useless for projections; a soft rule is
// worth a warning. Rules read what they are given, and nothing else.
package rules

import (
	"strings"

	"github.com/weir-social/weir/lexicon"
	"github.com/weir-social/weir/syntax"
)

// maxProblems bounds the hard and the soft problems of a record, each.
const maxProblems = 20

// A Record is what rules look at: the result of its validation, and where it is.
type Record struct {
	DID, Collection, Key string
	lexicon.Result
	// Targets are records that rules may read, by at-uri, as far as they are stored:
	// those of Wanted. The value is the record's Root. A rule that needs a record that
	// is not here finds nothing.
	Targets map[string]lexicon.Value
}

// URI returns the at-uri of the record.
func (r *Record) URI() string { return "at://" + r.DID + "/" + r.Collection + "/" + r.Key }

// A Namespace has the rules of all collections whose names begin with its name.
type Namespace struct {
	Name  string // without a dot at its end
	check func(*check)
	// wanted returns the at-uris of the records that the rules read.
	wanted func(*check) []string
	// required returns those of them without which a record is of no use.
	required func(*check) []string
	searched map[string]searched // by the collection within the namespace
}

// Rules are the registered namespaces.
type Rules []Namespace

// Standard returns Weir's own rules.
func Standard() Rules {
	return Rules{Layers("pub.layers")}
}

// Check returns the problems of a record. A record that is not valid has none: what it
// breaks is known, and what its fields mean is not.
func (r Rules) Check(record Record) (hard, soft []lexicon.Problem) {
	c := r.of(&record)
	if c == nil {
		return nil, nil
	}
	c.namespace.check(c)
	return c.hard, c.soft
}

// Wanted returns the at-uris of the records that the rules for a record read, in its
// order. They may repeat, and may name nothing that exists.
func (r Rules) Wanted(record Record) []string {
	c := r.of(&record)
	if c == nil {
		return nil
	}
	return c.namespace.wanted(c)
}

// Required returns the at-uris of the records without which a record is of no use, in
// its order. If they are not known yet, it can wait for them.
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
	name       string            // of the collection, within the namespace
	texts      map[string]string // of the expressions that were read, by at-uri
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

// full reports whether a rule need not go on: all of its problems would be dropped.
func (c *check) full() bool { return len(c.hard) == maxProblems && len(c.soft) == maxProblems }

// definition returns the name within the namespace of what a value is, or "".
func (c *check) definition(v lexicon.Value) string {
	name, ok := strings.CutPrefix(v.Definition(), c.namespace.Name+".")
	if !ok {
		return ""
	}
	return name
}

// target returns the record that an at-uri names, if it is here and of a collection.
func (c *check) target(uri, name string) lexicon.Value {
	if t := c.Targets[uri]; c.definition(t) == name {
		return t
	}
	return lexicon.Value{}
}

// collectionOf returns the collection in an at-uri, "" if it has none.
func collectionOf(uri string) string {
	parts := strings.SplitN(uri, "/", 5) // at: "" authority collection key
	if len(parts) < 5 || !syntax.IsNSID(parts[3]) {
		return ""
	}
	return parts[3]
}
