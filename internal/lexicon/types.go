package lexicon

import (
	"slices"
	"strconv"
	"strings"

	"github.com/rivo/uniseg"

	"github.com/weir-social/weir/internal/atproto/syntax"
)

// A typ is a type of a schema. It checks one node and the nodes inside it.
type typ interface {
	check(w *validation, at uint32)
}

type booleanType struct{ constant *bool }

func (t *booleanType) check(w *validation, at uint32) {
	if !w.is(at, boolean, "a boolean") || t.constant == nil {
		return
	}
	if (w.source[w.nodes[at].start] == 't') != *t.constant {
		w.problem("const", at, strconv.FormatBool(*t.constant))
	}
}

type integerType struct {
	minimum, maximum *int64
	enum             map[int64]struct{}
	constant         *int64
}

func (t *integerType) check(w *validation, at uint32) {
	if !w.is(at, integer, "an integer") {
		return
	}
	v := w.integerOf(at)
	if t.constant != nil && v != *t.constant {
		w.problem("const", at, number(*t.constant))
	}
	if r := (between{t.minimum, t.maximum}); !r.holds(v) {
		w.problem("range", at, r.String())
	}
	if _, ok := t.enum[v]; !ok && t.enum != nil {
		w.problem("enum", at, "one of the "+strconv.Itoa(len(t.enum))+" values of the schema")
	}
	if w.strict && unsafe(v) {
		w.problem("range", at, "an integer of 53 bits")
	}
}

type stringType struct {
	format          string
	valid           func(string) bool // nil: any string is valid
	size, graphemes between
	enum, known     map[string]struct{}
	oneOf, oneKnown string // for problems
	constant        *string
	text            bool
}

func (t *stringType) check(w *validation, at uint32) {
	if !w.is(at, str, "a string") {
		return
	}
	v := w.text(at)
	if t.constant != nil && v != *t.constant {
		w.problem("const", at, quote(*t.constant))
	}
	if !t.size.holds(int64(len(v))) {
		w.problem("length", at, t.size.String()+" bytes of UTF-8, not "+strconv.Itoa(len(v)))
	}
	if t.graphemes.least != nil || t.graphemes.most != nil {
		t.count(w, at, v)
	}
	if _, ok := t.enum[v]; !ok && t.enum != nil {
		w.problem("enum", at, t.oneOf)
	}
	if _, ok := t.known[v]; !ok && t.known != nil {
		w.unlisted(at)
		if w.strict {
			w.problem("known_values", at, t.oneKnown)
		}
	}
	switch {
	case t.valid != nil && !t.valid(v):
		w.problem("format", at, formatName(t.format))
	case t.format == "at-uri":
		w.reference(at, v, true)
	case t.format == "did", t.format == "at-identifier" && strings.HasPrefix(v, "did:"):
		w.collect(at, Reference{Kind: DID, Target: v, Declared: true})
	case t.text && v != "":
		w.collectText(at, v)
	}
}

// count checks the number of graphemes. A string has at most as many graphemes as
// bytes.
func (t *stringType) count(w *validation, at uint32, v string) {
	if t.graphemes.least == nil && int64(len(v)) <= *t.graphemes.most {
		return
	}
	if !t.graphemes.holds(int64(uniseg.GraphemeClusterCount(v))) {
		w.problem("graphemes", at, t.graphemes.String()+" graphemes")
	}
}

// oneOf lists the values of a small set.
func oneOf(values map[string]struct{}) string {
	if len(values) > 32 {
		return "one of the " + strconv.Itoa(len(values)) + " values of the schema"
	}
	return "one of " + cut(strings.Join(sorted(values), ", "), 8*maxShown)
}

// format returns the function that checks a format, or nil for an unknown format:
// later versions of the protocol may have it.
func format(name string) func(string) bool {
	switch name {
	case "at-identifier":
		return syntax.IsAtIdentifier
	case "at-uri":
		return syntax.IsATURI
	case "cid":
		return syntax.IsCID
	case "datetime":
		return syntax.IsDatetime
	case "did":
		return syntax.IsDID
	case "handle":
		return syntax.IsHandle
	case "nsid":
		return syntax.IsNSID
	case "tid":
		return syntax.IsTID
	case "record-key":
		return syntax.IsRecordKey
	case "uri":
		return syntax.IsURI
	case "language":
		return syntax.IsLanguage
	}
	return nil
}

func formatName(format string) string {
	switch format {
	case "datetime":
		return "a datetime with its time zone"
	case "did", "cid", "nsid", "tid", "uri":
		return "a " + strings.ToUpper(format)
	case "at-uri", "at-identifier":
		return "an " + format
	}
	return "a " + format
}

type bytesType struct{ size between }

func (t *bytesType) check(w *validation, at uint32) {
	if w.is(at, bytesKind, "bytes") && !t.size.holds(int64(w.nodes[at].size)) {
		w.problem("length", at, t.size.String()+" bytes")
	}
}

type linkType struct{}

func (linkType) check(w *validation, at uint32) {
	if w.is(at, link, "a link") {
		w.collect(at, Reference{Kind: Link, Target: w.text(w.member(at, "$link")), Declared: true})
	}
}

type blobType struct {
	accept []string
	most   *int64
	oneOf  string // for problems
}

func (t *blobType) check(w *validation, at uint32) {
	if !w.is(at, blob, "a blob") {
		return
	}
	media, size := w.member(at, "mimeType"), w.member(at, "size")
	name := w.text(media)
	if len(t.accept) > 0 && !slices.ContainsFunc(t.accept, func(pattern string) bool { return accepts(pattern, name) }) {
		w.problem("blob_type", media, t.oneOf)
	}
	if t.most != nil && w.integerOf(size) > *t.most {
		w.problem("blob_size", size, "at most "+number(*t.most))
	}
	w.collect(at, Reference{Kind: Blob, Target: w.blobCID(at), Declared: true})
}

// accepts reports whether a media type matches a pattern, which may end with an
// asterisk.
func accepts(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return pattern == "*/*" || strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// unknownType is any object. Its content may have any shape.
type unknownType struct{}

func (unknownType) check(w *validation, at uint32) {
	if w.is(at, object, "an object") {
		w.sweep(at)
	}
}

// tokenType is a name that stands for itself.
type tokenType struct{ name string }

func (t *tokenType) check(w *validation, at uint32) {
	if w.is(at, str, "the token "+t.name) && w.text(at) != t.name {
		w.problem("token", at, quote(t.name))
	}
}
