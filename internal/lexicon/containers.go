package lexicon

import (
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/atproto/syntax"
)

type arrayType struct {
	items typ
	size  between
}

func (t *arrayType) check(w *validation, at uint32) {
	if !w.is(at, array, "an array") {
		return
	}
	if !t.size.holds(int64(w.nodes[at].size)) {
		w.problem("length", at, t.size.String()+" elements")
	}
	for child := at + 1; child < w.nodes[at].next; child = w.nodes[child].next {
		t.items.check(w, child)
	}
}

type property struct {
	typ                typ
	required, nullable bool
}

type objectType struct {
	name       string // "" for an object inside a definition
	number     uint32 // in the catalog's names, from 1
	properties map[string]*property
	required   []string
}

// check visits every member once and counts the required ones. Only if some are
// missing does it look for them.
func (t *objectType) check(w *validation, at uint32) {
	if !w.is(at, object, "an object") {
		return
	}
	w.nodes[at].definition = t.number
	found := 0
	for child := at + 1; child < w.nodes[at].next; child = w.nodes[child].next {
		name := w.keyOf(child)
		p := t.properties[name]
		if p == nil {
			t.undeclared(w, child, name)
			continue
		}
		if p.required {
			found++
		}
		if w.nodes[child].kind != null || !p.nullable {
			p.typ.check(w, child)
		}
	}
	if found < len(t.required) {
		t.missing(w, at, len(t.required)-found)
	}
}

func (t *objectType) undeclared(w *validation, child uint32, name string) {
	if w.strict && name != "$type" {
		w.problem("undeclared", child, "no field that the schema does not declare")
	}
	w.sweep(child)
}

func (t *objectType) missing(w *validation, at uint32, count int) {
	if !w.problems.room() {
		w.problems.more += count
		return
	}
	there := make(map[string]bool, w.nodes[at].size)
	for child := at + 1; child < w.nodes[at].next; child = w.nodes[child].next {
		there[w.keyOf(child)] = true
	}
	path := w.pointer(at)
	for _, name := range t.required {
		if !there[name] {
			w.problems.add(Problem{"required", cut(string(appendToken([]byte(path+"/"), name)), maxPath), "a value", "nothing"})
		}
	}
}

// recordType is the object type of a collection's records.
type recordType struct {
	object *objectType
	key    string
	hash   string
	strict bool
}

func (t *recordType) check(w *validation, at uint32) { t.object.check(w, at) }

// checkKey compares the record's key, which is not part of the record.
func (t *recordType) checkKey(w *validation, key string) {
	ok, expected := true, ""
	switch literal, isLiteral := strings.CutPrefix(t.key, "literal:"); {
	case isLiteral:
		ok, expected = key == literal, quote(literal)
	case t.key == "tid":
		ok, expected = syntax.IsTID(key), "a TID"
	case t.key == "nsid":
		ok, expected = syntax.IsNSID(key), "an NSID"
	}
	if !ok {
		w.problems.add(Problem{"record_key", "", expected + " as the record's key", quote(key)})
	}
}

// ref is a reference to a definition.
type ref struct {
	name   string
	target typ // nil: not in the catalog
}

func (r *ref) check(w *validation, at uint32) {
	if r.target == nil {
		w.lacks(r.name)
		w.sweep(at)
		return
	}
	r.target.check(w, at)
}

type unionType struct {
	closed  bool
	members map[string]*ref
}

// check checks the value only against the member that the value names.
func (t *unionType) check(w *validation, at uint32) {
	if !w.is(at, object, "an object with a $type") {
		return
	}
	typed := w.member(at, "$type")
	switch {
	case typed == 0:
		w.problem("union", at, "an object with a $type")
	case w.nodes[typed].kind != str: // the data model has already refused it
		w.sweep(at)
	default:
		t.checkAs(w, at, typed, w.text(typed))
	}
}

func (t *unionType) checkAs(w *validation, at, typed uint32, name string) {
	if r := t.members[name]; r != nil {
		r.check(w, at)
		return
	}
	if t.closed {
		w.problem("union", typed, "one of the "+strconv.Itoa(len(t.members))+" members of a closed union")
	} else if id, fragment, has := strings.Cut(name, "#"); !syntax.IsNSID(id) || has && fragment == "" {
		w.problem("union", typed, "the name of a definition")
	} else if w.strict {
		w.problem("union", typed, "one of the "+strconv.Itoa(len(t.members))+" members that the schema lists")
	}
	w.sweep(at)
}
