package jetstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

const (
	maxCollections = 100    // the server's limit
	maxAccounts    = 10_000 // the server's limit
	maxDIDsInURL   = 100    // of /subscribe: proxies reject longer URLs; more DIDs are sent after the dial
	maxParameters  = 10_000 // in a URL: servers that are written in Go accept no more
)

// oldestTime is a cursor by time that is older than any event. A smaller number is a sequence
// number.
const oldestTime = 1e15

// nobodyDID replaces an empty list of DIDs, which a server treats as the whole
// network. Nothing resolves it.
const nobodyDID = "did:web:nobody.invalid"

// filter is the filter that the server is asked to apply.
type filter struct{ consumer.Filter }

// check returns an error if a server would reject the filter.
func (f filter) check() error {
	if len(f.Collections) > maxCollections {
		return fmt.Errorf("a stream can request %d collections at most, not %d: use a pattern such as app.bsky.feed.*", maxCollections,
			len(f.Collections))
	}
	for _, c := range f.Collections {
		if !isPattern(c) {
			return fmt.Errorf("%q is not a collection: expected an NSID such as app.bsky.feed.post, or a pattern such as app.bsky.feed.*", c)
		}
	}
	if f.Everyone {
		return nil
	}
	if len(f.Accounts) > maxAccounts {
		return fmt.Errorf("a stream can request %d DIDs at most, not %d: request everyone", maxAccounts, len(f.Accounts))
	}
	for _, did := range f.Accounts {
		if !syntax.IsDID(did) {
			return fmt.Errorf("%q is not a DID", did)
		}
	}
	return nil
}

// sorted returns a copy, sorted and without duplicates.
func (f filter) sorted() filter {
	f.Collections = slices.Compact(slices.Sorted(slices.Values(f.Collections)))
	f.Accounts = slices.Compact(slices.Sorted(slices.Values(f.Accounts)))
	if f.Everyone {
		f.Accounts = nil
	}
	return f
}

// wantedDIDs returns the list to send. It is empty only if everyone is requested.
func (f filter) wantedDIDs() []string {
	if !f.Everyone && len(f.Accounts) == 0 {
		return []string{nobodyDID}
	}
	return f.Accounts
}

// inURL reports whether the filter fits into the URL.
func (f filter) inURL() bool { return len(f.Accounts) <= maxDIDsInURL }

// query returns the filter and the cursor as URL parameters.
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

// parameters returns how many parameters a URL of subscribeEvents has at most.
func (f filter) parameters() int { return len(f.Collections) + len(f.Accounts) + 2 }

// events returns the filter and the cursor as parameters of subscribeEvents.
func (f filter) events(from consumer.Cursor) url.Values {
	q := url.Values{"collections": f.Collections, "dids": f.wantedDIDs()}
	switch {
	case from.Kind == consumer.CursorSeq && from.Value > 0:
		q.Set("cursor", strconv.FormatInt(from.Value, 10))
	case from.Kind != consumer.CursorNone: // a server refuses the number of an event that it has no more
		q.Set("cursor", strconv.FormatInt(max(from.Value, oldestTime), 10))
	}
	return q
}

// update returns the message that replaces a connection's filter.
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

// hash returns a hash of the filter: equal filters have equal hashes.
func (f filter) hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%t", f.Everyone)
	for _, list := range [][]string{f.Collections, f.Accounts} {
		h.Write([]byte{0}) // never fails
		for _, s := range list {
			h.Write([]byte(s + "\n")) // never fails
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// Capabilities returns the capabilities of a Jetstream server of either generation.
func Capabilities() consumer.Capabilities {
	return consumer.Capabilities{Wire: Wire(nil), TimeCursor: true, Anchors: 1, Filters: true, Accounts: maxAccounts}
}

// Capabilities returns the capabilities of its servers.
func (c *Client) Capabilities() consumer.Capabilities {
	can := Capabilities()
	can.Wire = Wire(c.cfg.Wanted)
	return can
}

// requested returns the filter to request. The caller holds the lock.
func (c *Client) requested() filter {
	f := c.filter
	if c.whole > 0 {
		f.Everyone, f.Accounts = true, nil
	}
	return f
}

// FilterHash returns a hash of the requested filter. A cursor is valid for one filter.
func (c *Client) FilterHash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requested().hash()
}

// SetFilter changes the filter of the current connection and of later ones: of /subscribe
// without a new dial, while a connection of subscribeEvents ends. Within a pause after the last
// change, a connection of either service ends when the pause is over. If the change fails, the
// connection ends, and the next one has the new filter.
func (c *Client) SetFilter(ctx context.Context, wanted consumer.Filter) error {
	f := filter{wanted}
	if err := f.check(); err != nil {
		return err
	}
	f = f.sorted()
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.mu.Lock()
	before := c.requested().hash()
	c.filter = f
	if len(f.Accounts) < c.whole-c.whole/10 { // small changes must not switch back and forth
		c.whole = 0
	}
	f = c.requested()
	live := c.live
	c.mu.Unlock()
	if live == nil || f.hash() == before {
		return nil
	}
	if err := c.change(ctx, live, f); err != nil {
		live.Fail(err)
	}
	return nil
}

// renewPerAccount limits what lists that change all the time cost: a quarter of what the network
// without a filter would.
const renewPerAccount = 2 * time.Millisecond

// change changes the filter of a connection at once if the service can, or ends the connection for it: at once, or
// when the pause since the last change is over. Until then lists may change as they like. The next connection
// resumes by time, so it brings what the accounts that were added late did meanwhile.
func (c *Client) change(ctx context.Context, k *conn, f filter) error {
	c.mu.Lock()
	now, pause := time.Now(), max(c.cfg.RenewEvery, time.Duration(len(f.Accounts))*renewPerAccount)
	due := slices.MaxFunc([]time.Time{now, c.renewed.Add(pause)}, time.Time.Compare)
	ends := k.events || due.After(now)
	if k.leaving {
		c.mu.Unlock()
		return nil
	}
	k.leaving, c.renewed = ends, due
	c.mu.Unlock()
	if ends {
		time.AfterFunc(due.Sub(now), func() { k.Leave(errors.New("the filter has changed")) })
		return nil
	}
	k.changed.Store(true)
	if err := k.setFilter(ctx, f); err != nil {
		return fmt.Errorf("change the filter: %w", err)
	}
	return nil
}

// isPattern reports whether a server accepts s as a wanted collection: an NSID, or
// a prefix followed by ".*".
func isPattern(s string) bool {
	head, prefix := strings.CutSuffix(s, ".*")
	if !prefix {
		return syntax.IsNSID(s)
	}
	return syntax.IsNSID(head + ".x") // a prefix may have two parts, an NSID has three
}
