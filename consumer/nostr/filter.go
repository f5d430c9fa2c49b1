package nostr

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/weir-social/weir/internal/nostr"
)

// maxAuthors limits the authors of one filter: relays limit the length of a message.
const maxAuthors = 500

// filter selects the events that a request asks for. Its dates are the authors' dates.
type filter struct {
	IDs     []string `json:"ids,omitempty"`
	Kinds   []int    `json:"kinds,omitempty"`   // none: every kind
	Authors []string `json:"authors,omitempty"` // none: everyone
	Since   *int64   `json:"since,omitempty"`
	Until   *int64   `json:"until,omitempty"` // inclusive, as Since is
	Limit   int      `json:"limit,omitempty"` // 0: no limit
}

// divide returns the filters that request events of some kinds, or of every kind if that is nil,
// and deletions by the given authors. Without authors it returns no filter: a relay may take an
// empty list for everyone. If there are too many filters, it returns one that requests everyone.
func divide(kinds []int, everyone bool, authors []string, limits limits) []filter {
	if kinds != nil {
		kinds = slices.Concat(kinds, []int{nostr.KindDeletion, nostr.KindVanish})
		slices.Sort(kinds)
		kinds = slices.Compact(kinds)
	}
	each := limits.authors()
	if everyone || len(authors) > (limits.Subscriptions-1)*each { // one subscription is reserved for pages of the past
		return []filter{{Kinds: kinds}}
	}
	var all []filter
	for some := range slices.Chunk(authors, each) {
		all = append(all, filter{Kinds: kinds, Authors: some})
	}
	return all
}

// halves divides a filter in two by kind or by author. It returns false if the filter has
// a single kind, and a single author or everyone.
func (f filter) halves() (a, b filter, ok bool) {
	a, b = f, f
	switch kinds, authors := len(f.Kinds), len(f.Authors); {
	case kinds > 1:
		a.Kinds, b.Kinds = f.Kinds[:kinds/2], f.Kinds[kinds/2:]
	case authors > 1:
		a.Authors, b.Authors = f.Authors[:authors/2], f.Authors[authors/2:]
	default:
		return f, f, false
	}
	return a, b, true
}

// request returns the message that opens a subscription.
func (f filter) request(sub string) ([]byte, error) {
	return json.Marshal([]any{"REQ", sub, f})
}

// hashFilter returns a hash of what a filter requests: equal requests have equal hashes.
func hashFilter(kinds []int, everyone bool, authors []string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%v %t %v", kinds, everyone, authors)
	return hex.EncodeToString(h.Sum(nil))[:16]
}
