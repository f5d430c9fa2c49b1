// Package collection is the registry of the stored collections: which ones, and for
// how long. An entry is a name or a prefix. Each name has exactly one entry: its
// own, or else that of the longest matching prefix. The package uses neither the
// database nor the network.
package collection

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Entry is one entry of the registry.
type Entry struct {
	Pattern   string        // a collection's name, or a prefix such as pub.layers.*
	Retention time.Duration // how long its records are kept; 0: for ever
	Explicit  bool          // the entry itself sets its retention
}

// IsPrefix reports whether the entry covers all collections with a prefix.
func (e Entry) IsPrefix() bool { return strings.HasSuffix(e.Pattern, "*") }

// Match reports whether a pattern, which is a collection's name or a prefix such as
// pub.layers.*, covers a name or another pattern.
func Match(pattern, name string) bool {
	prefix, ok := strings.CutSuffix(pattern, "*")
	return pattern == name || ok && len(name) > len(prefix) && strings.HasPrefix(name, prefix)
}

// Registry is the set of stored collections. The zero value stores none.
type Registry struct {
	names    map[string]Entry
	prefixes []Entry // the longest first
}

// Of returns the registry of valid entries.
func Of(entries ...Entry) Registry {
	r := Registry{names: map[string]Entry{}}
	for _, e := range entries {
		if e.IsPrefix() {
			r.prefixes = append(r.prefixes, e)
		} else {
			r.names[e.Pattern] = e
		}
	}
	slices.SortFunc(r.prefixes, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(len(b.Pattern), len(a.Pattern)), cmp.Compare(a.Pattern, b.Pattern))
	})
	return r
}

// Empty reports whether nothing is stored.
func (r Registry) Empty() bool { return len(r.names) == 0 && len(r.prefixes) == 0 }

// Only reports whether name is the only stored collection.
func (r Registry) Only(name string) bool {
	_, ok := r.names[name]
	return ok && len(r.names) == 1 && len(r.prefixes) == 0
}

// Parse parses entries such as app.bsky.feed.post=24h or pub.layers.*=0. An entry without
// a retention gets the standard one.
func Parse(entries []string, standard time.Duration) (Registry, error) {
	if len(entries) == 0 {
		return Registry{}, errors.New("no collection is named: nothing would be stored")
	}
	all := make([]Entry, 0, len(entries))
	for _, s := range entries {
		e, err := parseEntry(strings.TrimSpace(s), standard)
		if err != nil {
			return Registry{}, err
		}
		if slices.ContainsFunc(all, func(other Entry) bool { return other.Pattern == e.Pattern }) {
			return Registry{}, fmt.Errorf("%s occurs twice", e.Pattern)
		}
		all = append(all, e)
	}
	return Of(all...), nil
}

func parseEntry(s string, standard time.Duration) (Entry, error) {
	pattern, retention, given := strings.Cut(s, "=")
	e := Entry{Pattern: strings.TrimSpace(pattern), Retention: standard}
	if err := CheckPattern(e.Pattern); err != nil {
		return Entry{}, err
	}
	if !given {
		return e, nil
	}
	d, err := time.ParseDuration(strings.TrimSpace(retention))
	if err != nil || d < 0 {
		return Entry{}, fmt.Errorf("%q is not a retention of %s: expected a time such as 24h, or 0 for ever", strings.TrimSpace(retention),
			e.Pattern)
	}
	e.Retention, e.Explicit = d, true
	return e, nil
}

// everyKind is the prefix of the network whose collections are numbered kinds.
const (
	nostr     = "nostr"
	everyKind = nostr + ".*"
)

// CheckPattern returns an error if a pattern is neither a collection's name nor a prefix
// such as pub.layers.* or nostr.*.
func CheckPattern(pattern string) error {
	name := pattern
	if pattern == everyKind {
		return nil
	}
	if strings.Contains(pattern, "*") {
		prefix, ok := strings.CutSuffix(pattern, ".*")
		if !ok || strings.Contains(prefix, "*") {
			return fmt.Errorf("%q is not a prefix: expected a dot before the asterisk, as in pub.layers.*", pattern)
		}
		if !strings.Contains(prefix, ".") {
			return fmt.Errorf("%q is too short a prefix: expected at least two parts before the asterisk, as in pub.layers.*", pattern)
		}
		name = prefix + ".any"
	}
	if !IsName(name) {
		return fmt.Errorf("%q is not a collection: expected a name such as app.bsky.feed.post or nostr.1, or a prefix such as pub.layers.*",
			pattern)
	}
	return nil
}

// IsName reports whether s is the name of a collection: an NSID, which names a collection
// in repositories, or the name of another network and the number of a kind, such as
// nostr.1.
func IsName(s string) bool {
	if _, _, ok := parseKind(s); ok {
		return true
	}
	_, err := syntax.ParseNSID(s)
	return err == nil
}

// isKind reports whether s is the name of a kind of another network, or of all its kinds.
func isKind(s string) bool {
	_, _, ok := parseKind(s)
	return ok || s == everyKind
}

// parseKind parses the name of a network and the number of a kind.
func parseKind(s string) (network string, kind int, ok bool) {
	network, number, _ := strings.Cut(s, ".")
	kind, err := strconv.Atoi(number)
	return network, kind,
		err == nil && kind >= 0 && number == strconv.Itoa(kind) && network != "" && strings.Trim(network, "abcdefghijklmnopqrstuvwxyz") == ""
}

// Kinds returns the kinds of a network that have their own entry, in order, and whether every
// kind is stored.
func (r Registry) Kinds(network string) (kinds []int, every bool) {
	for name := range r.names {
		if of, kind, ok := parseKind(name); ok && of == network {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	return kinds, slices.ContainsFunc(r.prefixes, func(e Entry) bool { return e.Pattern == everyKind && network == nostr })
}

// Repositories returns the registry of the collections that accounts store in
// repositories.
func (r Registry) Repositories() Registry {
	of := Registry{names: maps.Clone(r.names)}
	for _, e := range r.prefixes {
		if e.Pattern != everyKind {
			of.prefixes = append(of.prefixes, e)
		}
	}
	maps.DeleteFunc(of.names, func(name string, _ Entry) bool {
		return isKind(name)
	})
	return of
}

// Find returns the entry of a collection, or false if the collection is not stored.
func (r Registry) Find(name string) (Entry, bool) {
	if e, ok := r.names[name]; ok {
		return e, true
	}
	for _, e := range r.prefixes {
		if Match(e.Pattern, name) && (e.Pattern != everyKind || isKind(name)) {
			return e, true
		}
	}
	return Entry{}, false
}

// Stores reports whether a collection is stored.
func (r Registry) Stores(name string) bool {
	_, ok := r.Find(name)
	return ok
}

// Label returns the label of a collection in metrics: its entry. The names under a
// prefix come from the network and are unbounded.
func (r Registry) Label(name string) string {
	e, _ := r.Find(name)
	return e.Pattern
}

// Entries returns all entries, sorted by pattern.
func (r Registry) Entries() []Entry {
	all := slices.Clone(r.prefixes)
	for _, e := range r.names {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Pattern, b.Pattern) })
	return all
}

// Names returns the collections that have their own entry, in order.
func (r Registry) Names() []string {
	var names []string
	for _, e := range r.Entries() {
		if !e.IsPrefix() {
			names = append(names, e.Pattern)
		}
	}
	return names
}

// Prefixes returns the patterns of the entries that are prefixes, in order.
func (r Registry) Prefixes() []string {
	var prefixes []string
	for _, e := range r.Entries() {
		if e.IsPrefix() {
			prefixes = append(prefixes, e.Pattern)
		}
	}
	return prefixes
}

// Filter returns the patterns to request from a server: the fewest that cover all
// stored collections, in order. Retentions do not affect it.
func (r Registry) Filter() []string {
	var patterns []string
	for _, e := range r.Entries() {
		if !slices.ContainsFunc(r.prefixes, func(p Entry) bool { return Match(p.Pattern, e.Pattern) && p.Pattern != e.Pattern }) {
			patterns = append(patterns, e.Pattern)
		}
	}
	return patterns
}
