package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"

	"github.com/weir-social/weir/consumer"
)

const (
	maxCollections = 100    // the server's limit
	maxAccounts    = 10_000 // the server's limit
	maxDIDsInURL   = 100    // proxies cut longer URLs; the rest is said after the dial
)

// nobody is sent in place of an empty list of DIDs, which a server takes for
// the whole network: a DID that nothing can ever resolve.
const nobody = "did:web:nobody.invalid"

// filter is what the server is asked to send.
type filter struct{ consumer.Filter }

// check says what a server would refuse.
func (f filter) check() error {
	if len(f.Collections) > maxCollections {
		return fmt.Errorf("a stream can ask for %d collections at most, not %d: use a pattern such as app.bsky.feed.*", maxCollections, len(f.Collections))
	}
	for _, c := range f.Collections {
		if !isPattern(c) {
			return fmt.Errorf("%q is no collection: expected an NSID such as app.bsky.feed.post, or a pattern such as app.bsky.feed.*", c)
		}
	}
	if f.Everyone {
		return nil
	}
	if len(f.Accounts) > maxAccounts {
		return fmt.Errorf("a stream can ask for %d DIDs at most, not %d: split them over several streams, or ask for everyone", maxAccounts, len(f.Accounts))
	}
	for _, did := range f.Accounts {
		if !isDID(did) {
			return fmt.Errorf("%q is no DID", did)
		}
	}
	return nil
}

// sorted is a copy in which everything comes once and in order.
func (f filter) sorted() filter {
	f.Collections = slices.Compact(slices.Sorted(slices.Values(f.Collections)))
	f.Accounts = slices.Compact(slices.Sorted(slices.Values(f.Accounts)))
	if f.Everyone {
		f.Accounts = nil
	}
	return f
}

// wantedDIDs is the list to send: never empty unless everyone is meant.
func (f filter) wantedDIDs() []string {
	if !f.Everyone && len(f.Accounts) == 0 {
		return []string{nobody}
	}
	return f.Accounts
}

// inURL answers whether the filter fits into the URL of the dial.
func (f filter) inURL() bool { return len(f.Accounts) <= maxDIDsInURL }

// query is the filter and the cursor as parameters.
func (f filter) query(from consumer.Cursor, compress bool) url.Values {
	q := url.Values{}
	if from.Kind != consumer.CursorNone {
		q.Set("cursor", strconv.FormatInt(from.Value, 10))
	}
	if compress {
		q.Set("compress", "true")
	}
	if !f.inURL() {
		q.Set("requireHello", "true")
		return q
	}
	q["wantedCollections"] = f.Collections
	q["wantedDids"] = f.wantedDIDs()
	return q
}

// update is the message that replaces the filter of a connection.
func (f filter) update() ([]byte, error) {
	type payload struct {
		Collections []string `json:"wantedCollections"`
		DIDs        []string `json:"wantedDids"`
		MaxSize     int      `json:"maxMessageSizeBytes"`
	}
	return json.Marshal(struct {
		Type    string  `json:"type"`
		Payload payload `json:"payload"`
	}{"options_update", payload{Collections: append([]string{}, f.Collections...), DIDs: append([]string{}, f.wantedDIDs()...)}})
}

// hash names the filter: equal filters have equal names.
func (f filter) hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%t", f.Everyone)
	for _, list := range [][]string{f.Collections, f.Accounts} {
		h.Write([]byte{0}) //nolint:errcheck // never fails
		for _, s := range list {
			h.Write([]byte(s + "\n")) //nolint:errcheck // never fails
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// Capabilities are those of a server of either generation.
func Capabilities() consumer.Capabilities {
	return consumer.Capabilities{Wire: Wire(nil), TimeCursor: true, Anchors: 1, Filters: true, Accounts: maxAccounts}
}

// Capabilities are those of its servers.
func (c *Client) Capabilities() consumer.Capabilities {
	can := Capabilities()
	can.Wire = Wire(c.cfg.Wanted)
	return can
}

// FilterHash names what the client asks for. A cursor holds for one filter.
func (c *Client) FilterHash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.filter.hash()
}

// SetFilter changes what the client asks for: on the connection at work without
// a new dial, and on those to come. An error of the connection ends it, and the
// next one has the new filter.
func (c *Client) SetFilter(ctx context.Context, wanted consumer.Filter) error {
	f := filter{wanted}
	if err := f.check(); err != nil {
		return err
	}
	f = f.sorted()
	c.asking.Lock()
	defer c.asking.Unlock()
	c.mu.Lock()
	same := f.hash() == c.filter.hash()
	c.filter = f
	live := c.live
	c.mu.Unlock()
	if live == nil || same {
		return nil
	}
	if err := live.ask(ctx, f); err != nil {
		live.fail(fmt.Errorf("change the filter: %w", err))
	}
	return nil
}
