package simnet

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// CallFaultKind is something that can go wrong with a call.
type CallFaultKind string

// The faults of calls.
const (
	InternalError CallFaultKind = "500"       // the service has failed
	BadGateway    CallFaultKind = "502"       // the page of a proxy, which is no JSON
	Unavailable   CallFaultKind = "503"       //
	TooMany       CallFaultKind = "429"       // with Retry-After: Wait, a second when zero
	Forbidden     CallFaultKind = "403"       //
	Expired       CallFaultKind = "expired"   // as if the token had expired
	Slow          CallFaultKind = "slow"      // the answer comes Wait later
	Severed       CallFaultKind = "severed"   // the connection ends in the middle of the body
	Malformed     CallFaultKind = "malformed" // a 200 whose JSON breaks off
	Empty         CallFaultKind = "empty"     // a 200 without a body
	Huge          CallFaultKind = "huge"      // a 200 of valid JSON, with 64 MiB of blanks before it
	Loop          CallFaultKind = "loop"      // the cursor asked with is given out again
	Beyond        CallFaultKind = "beyond"    // the last page has a cursor, after which there is nothing
)

// CallFaultKinds lists them.
func CallFaultKinds() []CallFaultKind {
	return []CallFaultKind{InternalError, BadGateway, Unavailable, TooMany, Forbidden, Expired, Slow, Severed, Malformed, Empty, Huge, Loop, Beyond}
}

// CallFault is what happens to some of the next calls. Loop and Beyond wait for a
// page with which they can happen; Severed, Malformed, Empty and Huge for an
// answer of 200.
type CallFault struct {
	Kind     CallFaultKind
	Endpoint string        // such as app.bsky.graph.getFollows, or plc; any when empty
	Count    int           // of how many calls; 1 when zero
	Wait     time.Duration // of Slow and TooMany
}

// callFaults is what waits to happen.
type callFaults struct {
	mu      sync.Mutex
	waiting []CallFault
	fired   map[CallFaultKind]int
}

// FailCalls makes a fault happen to the next calls it fits. Several faults happen
// in the order in which they were asked for.
func (n *Net) FailCalls(f CallFault) error {
	if !slices.Contains(CallFaultKinds(), f.Kind) {
		return fmt.Errorf("no fault of calls is called %q: expected one of %v", f.Kind, CallFaultKinds())
	}
	if f.Count == 0 {
		f.Count = 1
	}
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	n.callFaults.waiting = append(n.callFaults.waiting, f)
	return nil
}

// HoldFeeds has author feeds show nothing that is made from now on, like an
// AppView whose index lags, until ReleaseFeeds.
func (n *Net) HoldFeeds() { n.feedsHeld.Store(time.Now().UnixMicro()) }

// ReleaseFeeds has author feeds show everything again.
func (n *Net) ReleaseFeeds() { n.feedsHeld.Store(0) }

// MendCalls forgets the faults that have not happened.
func (n *Net) MendCalls() {
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	n.callFaults.waiting = nil
}

// CallsFired is how many calls each fault has really happened to.
func (n *Net) CallsFired() map[CallFaultKind]int {
	n.callFaults.mu.Lock()
	defer n.callFaults.mu.Unlock()
	return maps.Clone(n.callFaults.fired)
}

// take uses up the first fault that fits; it is the zero fault when none does.
func (c *callFaults) take(endpoint string, fits func(CallFaultKind) bool) CallFault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range c.waiting {
		if f.Endpoint != "" && f.Endpoint != endpoint || !fits(f.Kind) {
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

// early are the faults that need no answer to spoil.
func early(k CallFaultKind) bool {
	switch k {
	case InternalError, BadGateway, Unavailable, TooMany, Forbidden, Expired, Slow:
		return true
	}
	return false
}

// refusal is the answer of an early fault; nil for none, and for Slow.
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

// turn does Loop or Beyond to a page, as far as they fit.
func (n *Net) turn(endpoint, asked string, page *paging) {
	f := n.callFaults.take(endpoint, func(k CallFaultKind) bool {
		return k == Loop && asked != "" || k == Beyond && page.Cursor == ""
	})
	switch f.Kind {
	case Loop:
		page.Cursor = asked
	case Beyond:
		page.Cursor = page.end
	}
}

// spoil sends an answer of 200, or what a fault makes of it.
func (n *Net) spoil(w http.ResponseWriter, endpoint string, data []byte, leave func(int)) {
	f := n.callFaults.take(endpoint, func(k CallFaultKind) bool {
		return k == Severed || k == Malformed || k == Empty || k == Huge
	})
	switch f.Kind {
	case Severed:
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		w.Write(data[:len(data)/2])           //nolint:errcheck // the client left
		http.NewResponseController(w).Flush() //nolint:errcheck // as above
		leave(0)
		panic(http.ErrAbortHandler) // which is how the server is told to cut the connection
	case Malformed:
		data = data[:len(data)*2/3]
	case Empty:
		data = nil
	case Huge:
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
	w.Write(data) //nolint:errcheck // the client left
}
