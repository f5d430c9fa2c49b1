package simnet

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
)

// options is the filter of a client.
type options struct {
	Collections []string `json:"wantedCollections"`
	DIDs        []string `json:"wantedDids"`
	MaxSize     int      `json:"maxMessageSizeBytes"`

	dids  map[string]bool
	kinds []string // of subscribeEvents; none: all
}

var nsid = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9-]*(\.[a-zA-Z0-9][a-zA-Z0-9-]*){2,}$`)

// check validates the options. Its errors are worded like the server's.
func (o *options) check() error {
	o.Collections = compact(o.Collections)
	o.DIDs = compact(o.DIDs)
	if len(o.Collections) > 100 {
		return fmt.Errorf("too many wanted collections: %d > 100", len(o.Collections))
	}
	if len(o.DIDs) > 10000 {
		return fmt.Errorf("too many wanted DIDs: %d > 10000", len(o.DIDs))
	}
	for _, c := range o.Collections {
		if prefix, ok := strings.CutSuffix(c, ".*"); ok {
			if strings.Count(prefix, ".") < 1 {
				return fmt.Errorf("invalid collection: %s", c)
			}
			continue
		}
		if !nsid.MatchString(c) {
			return fmt.Errorf("invalid collection: %s", c)
		}
	}
	o.dids = make(map[string]bool, len(o.DIDs))
	for _, d := range o.DIDs {
		if !strings.HasPrefix(d, "did:") || strings.Count(d, ":") < 2 {
			return fmt.Errorf("invalid DID: %s", d)
		}
		o.dids[d] = true
	}
	return nil
}

func compact(all []string) []string {
	sorted := slices.Clone(all)
	sort.Strings(sorted)
	return slices.Compact(sorted)
}

// wants reports whether an entry passes the filter. Account and identity events
// pass every filter by collection.
func (o *options) wants(e *Entry) bool {
	if len(o.dids) > 0 && !o.dids[e.DID] {
		return false
	}
	if len(o.kinds) > 0 && !slices.Contains(o.kinds, e.Kind) {
		return false
	}
	if e.Kind != "commit" || len(o.Collections) == 0 {
		return true
	}
	return slices.ContainsFunc(o.Collections, func(c string) bool {
		if prefix, ok := strings.CutSuffix(c, "*"); ok {
			return strings.HasPrefix(e.Collection, prefix)
		}
		return c == e.Collection
	})
}

// filters records the clients' filters.
type filters struct {
	mu   sync.Mutex
	dids []int
}

func (a *filters) add(o *options) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dids = append(a.dids, len(o.DIDs))
}

// FilterSizes returns the number of DIDs in each filter that a client has sent
// so far, in order; 0 requests the whole network.
func (n *Net) FilterSizes() []int {
	n.filters.mu.Lock()
	defer n.filters.mu.Unlock()
	return slices.Clone(n.filters.dids)
}
