package rules

import (
	"strings"

	"github.com/weir-social/weir/internal/lexicon"
)

// searched holds the searched fields of a collection: JSON pointers with an asterisk for
// each index. The value is true if the field contains what a record is called.
type searched map[string]bool

// searchedOf converts lists of fields in the form of layersSearched.
func searchedOf(lists map[string][]string) map[string]searched {
	all := make(map[string]searched, len(lists))
	for name, fields := range lists {
		of := make(searched, len(fields))
		called := true
		for _, field := range fields {
			if field == "" {
				called = false
				continue
			}
			of["/"+field] = called
		}
		all[name] = of
	}
	return all
}

// Searched returns the searched texts of a record, in the record's order: first those
// with what it is called, then the others. Without rules for its collection, all texts
// are in others.
func (r Rules) Searched(collection string, texts []lexicon.Text) (called, others []lexicon.Text) {
	for i := range r {
		name, ok := strings.CutPrefix(collection, r[i].Name+".")
		fields, known := r[i].searched[name]
		if !ok || !known {
			continue
		}
		for _, t := range texts {
			switch names, searched := fields[anyIndex(t.Path)]; {
			case searched && names:
				called = append(called, t)
			case searched:
				others = append(others, t)
			}
		}
		return called, others
	}
	return nil, texts
}

// anyIndex returns a JSON pointer with an asterisk for each number in it.
func anyIndex(path string) string {
	if !strings.ContainsAny(path, "0123456789") {
		return path
	}
	var b strings.Builder
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if part != "" && strings.Trim(part, "0123456789") == "" {
			part = "*"
		}
		b.WriteByte('/')
		b.WriteString(part)
	}
	return b.String()
}
