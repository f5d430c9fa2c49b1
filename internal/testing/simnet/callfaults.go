package simnet

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// CallFaultKind is a way in which a call can fail.
type CallFaultKind string

// The faults of calls.
const (
	InternalError CallFaultKind = "500"       // an internal error of the service
	BadGateway    CallFaultKind = "502"       // a proxy's page, which is not JSON
	Unavailable   CallFaultKind = "503"       //
	TooMany       CallFaultKind = "429"       // with Retry-After: Wait, a second when zero
	Forbidden     CallFaultKind = "403"       //
	Expired       CallFaultKind = "expired"   // as if the token had expired
	Slow          CallFaultKind = "slow"      // the response is Wait later
	Severed       CallFaultKind = "severed"   // the connection ends in the middle of the body
	Malformed     CallFaultKind = "malformed" // a 200 whose JSON breaks off
	Empty         CallFaultKind = "empty"     // a 200 without a body
	Huge          CallFaultKind = "huge"      // a 200 of valid JSON after 64 MiB of blanks; a CAR with a declared length of 1 GiB
	Loop          CallFaultKind = "loop"      // the next cursor equals the requested one
	Beyond        CallFaultKind = "beyond"    // the last page has a cursor, to an empty page
)

// CallFaultKinds returns all kinds.
func CallFaultKinds() []CallFaultKind {
	return []CallFaultKind{
		InternalError, BadGateway, Unavailable, TooMany, Forbidden, Expired, Slow, Severed, Malformed, Empty, Huge, Loop, Beyond,
	}
}

// CallFault is a fault of some of the next calls. Loop and Beyond wait for a
// page to which they apply; Severed, Malformed, Empty and Huge for a response
// with status 200.
type CallFault struct {
	Kind     CallFaultKind
	Endpoint string        // such as app.bsky.graph.getFollows, or plc; any when empty
	After    int           // number of calls before the first one that it affects
	Count    int           // number of calls; 1 when zero
	Wait     time.Duration // of Slow and TooMany
}

// callFaults holds the faults that have not happened yet.
type callFaults struct {
	mu      sync.Mutex
	waiting []CallFault
	fired   map[CallFaultKind]int
}

// FailCalls applies a fault to the next calls to which it can apply. Several faults
// apply in the order in which they were added.
func (n *Net) FailCalls(f CallFault) error {
	if !slices.Contains(CallFaultKinds(), f.Kind) {
		return fmt.Errorf("unknown call fault %q: expected one of %v", f.Kind, CallFaultKinds())
	}
	if f.Count == 0 {
		f.Count = 1
	}
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	n.callFaults.waiting = append(n.callFaults.waiting, f)
	return nil
}

// HoldFeeds makes author feeds omit records created from now on, until
// ReleaseFeeds. An AppView with a lagging index does the same.
func (n *Net) HoldFeeds() { n.feedsHeld.Store(time.Now().UnixMicro()) }

// ReleaseFeeds makes author feeds complete again.
func (n *Net) ReleaseFeeds() { n.feedsHeld.Store(0) }

// LagListings makes the calls about who follows whom show the network as it is now, until CatchUpListings: an
// AppView whose index lags shows deleted accounts as active.
func (n *Net) LagListings() {
	ix := newIndex(n.index.seeds)
	n.advance(ix)
	ix.mu.Unlock()
	n.listings.Store(ix)
}

// CatchUpListings makes listings current again.
func (n *Net) CatchUpListings() { n.listings.Store(nil) }

// ClearCallFaults removes the faults that have not happened.
func (n *Net) ClearCallFaults() {
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	n.callFaults.waiting = nil
}

// CallsFired returns how many calls each fault has affected.
func (n *Net) CallsFired() map[CallFaultKind]int {
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	return maps.Clone(n.callFaults.fired)
}

// take consumes the first fault that fits; it returns the zero fault if none fits.
func (c *callFaults) take(endpoint string, fits func(CallFaultKind) bool) CallFault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.waiting {
		if f.Endpoint != "" && f.Endpoint != endpoint || !fits(f.Kind) {
			continue
		}
		if f.After > 0 {
			c.waiting[i].After--
			continue
		}
		if c.waiting[i].Count--; c.waiting[i].Count == 0 {
			c.waiting = slices.Delete(c.waiting, i, i+1)
		}
		if c.fired == nil {
			c.fired = map[CallFaultKind]int{}
		}
		c.fired[f.Kind]++
		return f
	}
	return CallFault{}
}

// needsNoResponse reports whether a fault applies before there is a response.
func needsNoResponse(k CallFaultKind) bool {
	switch k {
	case InternalError, BadGateway, Unavailable, TooMany, Forbidden, Expired, Slow:
		return true
	}
	return false
}

// refusal returns the response of a fault that needs no other; nil for none, and
// for Slow.
func (n *Net) refusal(f CallFault, h http.Header) *xrpcError {
	switch f.Kind {
	case InternalError:
		return &xrpcError{http.StatusInternalServerError, "InternalServerError", "Internal Server Error"}
	case BadGateway:
		return &xrpcError{status: http.StatusBadGateway}
	case Unavailable:
		return &xrpcError{http.StatusServiceUnavailable, "NotEnoughResources", "Not Enough Resources"}
	case TooMany:
		h.Set("Retry-After", seconds(max(f.Wait, time.Second)))
		return tooMany()
	case Forbidden:
		return &xrpcError{http.StatusForbidden, "Forbidden", "Forbidden"}
	case Expired:
		return n.sessions.expired()
	}
	return nil
}

// alterPaging applies Loop or Beyond to a page, if they fit.
func (n *Net) alterPaging(endpoint, filters string, page *paging) {
	f := n.callFaults.take(endpoint, func(k CallFaultKind) bool {
		return k == Loop && filters != "" || k == Beyond && page.Cursor == ""
	})
	switch f.Kind {
	case Loop:
		page.Cursor = filters
	case Beyond:
		page.Cursor = page.end
	}
}

// respond sends a response with status 200, altered by a fault if one waits.
func (n *Net) respond(w http.ResponseWriter, endpoint string, data []byte, leave func(int)) {
	f := n.callFaults.take(endpoint, func(k CallFaultKind) bool {
		return k == Severed || k == Malformed || k == Empty || k == Huge
	})
	switch f.Kind {
	case Severed:
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:len(data)/2])           // the client left
		http.NewResponseController(w).Flush() // as above
		leave(0)
		panic(http.ErrAbortHandler) // makes the server cut the connection
	case Malformed:
		data = data[:len(data)*2/3]
	case Empty:
		data = nil
	case Huge:
		if w.Header().Get("Content-Type") == carType {
			w.Header().Set("Content-Length", fmt.Sprint(1<<30)) // only the beginning follows
		}
		blanks := make([]byte, 1<<20)
		for i := range blanks {
			blanks[i] = ' '
		}
		for range 64 {
			if _, err := w.Write(blanks); err != nil {
				break
			}
		}
	}
	leave(http.StatusOK)
	w.Write(data) // the client left
}
