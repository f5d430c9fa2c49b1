package lexicon

import (
	"slices"
	"strings"

	"github.com/weir-social/weir/internal/atproto/syntax"
)

// validation visits the nodes of one record, following its schema.
type validation struct {
	document
	catalog *Catalog
	strict  bool

	problems problems
	result   Result
	missing  map[string]struct{}
	paths    int // bytes of the collected paths
}

// Validate compares a record with the schema of its collection. record is the JSON
// from the network or the database.
func (c *Catalog) Validate(collection, key string, record []byte) Result {
	s := scan(string(record))
	s.names = c.names
	w := &validation{document: s.document, catalog: c, problems: s.problems}
	if r := c.records[collection]; r != nil {
		w.result.Hash, w.strict = r.hash, r.strict
	}
	known := w.record(collection, key, s)
	if !s.fatal {
		w.result.Root = Value{&w.document, 0}
	}
	w.result.Problems, w.result.More = w.problems.list, w.problems.more
	for name := range w.missing {
		w.result.Missing = append(w.result.Missing, name)
	}
	slices.Sort(w.result.Missing)
	switch {
	case w.problems.any():
		w.result.Verdict = Invalid
	case known && len(w.missing) == 0:
		w.result.Verdict = Valid
	default:
		w.result.Verdict = Unknown
	}
	return w.result
}

// record reports whether the catalog has the collection.
func (w *validation) record(collection, key string, s *scanner) (known bool) {
	r := w.catalog.records[collection]
	d := w.catalog.definitions[collection]
	if !syntax.IsRecordKey(key) {
		w.problems.add(Problem{"record_key", "", "a record's key", quote(key)})
	} else if r != nil {
		r.checkKey(w, key)
	}
	switch {
	case r == nil && d != nil && !d.unknown:
		w.problems.add(Problem{"collection", "", "a collection of records", "a " + d.is})
	case r == nil:
		w.lacks(collection)
	}
	if s.fatal || w.nodes[0].kind != object {
		return r != nil
	}
	if r == nil {
		w.sweep(0)
		return false
	}
	if typed := w.member(0, "$type"); typed == 0 {
		w.problems.add(Problem{"record_type", "/$type", quote(collection), "nothing"})
	} else if w.nodes[typed].kind == str && w.text(typed) != collection {
		w.problem("record_type", typed, quote(collection))
	}
	r.check(w, 0)
	return true
}

// is reports whether a node has a kind. If not, it records a problem, unless the data
// model has already refused the node.
func (w *validation) is(at uint32, want kind, expected string) bool {
	switch w.nodes[at].kind {
	case want:
		return true
	case broken:
	default:
		w.problem("type", at, expected)
	}
	w.sweep(at)
	return false
}

func (w *validation) problem(rule string, at uint32, expected string) {
	if !w.problems.room() {
		w.problems.more++
		return
	}
	w.problems.add(Problem{rule, w.pointer(at), expected, w.received(at)})
}

// lacks records that the catalog has no such definition.
func (w *validation) lacks(name string) {
	if w.missing == nil {
		w.missing = map[string]struct{}{}
	}
	w.missing[name] = struct{}{}
}

// room returns the path of a node to collect, and whether the limits allow it.
func (w *validation) room(at uint32) (string, bool) {
	r := &w.result
	if len(r.References)+len(r.Texts)+len(r.Unlisted) >= maxCollected || w.paths >= maxPaths {
		r.Dropped++
		return "", false
	}
	path := w.pointer(at)
	w.paths += len(path)
	return path, true
}

func (w *validation) collect(at uint32, r Reference) {
	if path, ok := w.room(at); ok {
		r.Path = path
		w.result.References = append(w.result.References, r)
	}
}

func (w *validation) collectText(at uint32, text string) {
	if path, ok := w.room(at); ok {
		w.result.Texts = append(w.result.Texts, Text{path, text})
	}
}

func (w *validation) unlisted(at uint32) {
	if len(w.result.Unlisted) < maxCollected {
		w.result.Unlisted = append(w.result.Unlisted, Value{&w.document, at})
	}
}

// reference collects an at-uri. With a CID beside it, the reference is a strong one.
func (w *validation) reference(at uint32, uri string, declared bool) {
	r := Reference{Kind: ATURI, Target: uri, Declared: declared}
	if n := &w.nodes[at]; n.member && w.keyOf(at) == "uri" {
		if version := w.member(n.parent, "cid"); version != 0 && w.nodes[version].kind == str && syntax.IsCID(w.text(version)) {
			r.Kind, r.CID = StrongRef, w.text(version)
		}
	}
	w.collect(at, r)
}

func (w *validation) blobCID(at uint32) string {
	return w.text(w.member(w.member(at, "ref"), "$link"))
}

// sweep collects the references in parts that no schema describes: whole at-uris,
// blobs and links.
func (w *validation) sweep(at uint32) {
	for end := w.nodes[at].next; at < end; at++ {
		switch n := &w.nodes[at]; n.kind {
		case str:
			if n.escaped || strings.HasPrefix(w.source[n.start:n.end], "at:") {
				if uri := w.text(at); syntax.IsATURI(uri) {
					w.reference(at, uri, false)
				}
			}
		case blob:
			w.collect(at, Reference{Kind: Blob, Target: w.blobCID(at)})
			at = n.next - 1
		case link:
			w.collect(at, Reference{Kind: Link, Target: w.text(w.member(at, "$link"))})
			at = n.next - 1
		case bytesKind:
			at = n.next - 1
		}
	}
}
