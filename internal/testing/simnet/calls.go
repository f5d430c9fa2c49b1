package simnet

import (
	"cmp"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Call is a call of the XRPC services or the directory, as recorded by the server.
type Call struct {
	At         time.Time // when it arrived
	End        time.Time // before the last byte of the response is sent; zero while the call is in progress
	Path       string    // of the URL
	Endpoint   string    // such as app.bsky.graph.getFollows; "plc" for the directory
	Actor      string    // the requested actor, repo, did, handle or list
	Cursor     string
	URIs       []string // the requested posts
	Actors     []string // of getProfiles: the requested accounts
	Status     int      // of the response; 0 if there was none or it was cut off
	Concurrent int      // calls in progress at its arrival, including itself
}

// calls records the calls.
type calls struct {
	mu  sync.Mutex
	all []*Call
	now int // in progress
}

// arrive records a call, and returns a function that records its end. The end is
// recorded before the response is sent, so that a client that has read the
// response sees the call as ended.
func (c *calls) arrive(endpoint string, r *http.Request) (leave func(status int)) {
	q := r.URL.Query()
	actor := cmp.Or(q.Get("actor"), q.Get("actors"), q.Get("actors[]"), q.Get("repo"), q.Get("did"), q.Get("handle"), q.Get("list"),
		q.Get("starterPack"), r.PathValue("did"))
	uris := slices.Concat(q["uris"], q["uris[]"])
	if rkey := q.Get("rkey"); rkey != "" {
		uris = append(uris, "at://"+q.Get("repo")+"/"+q.Get("collection")+"/"+rkey)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now++
	one := &Call{At: time.Now(), Path: r.URL.Path, Endpoint: endpoint, Actor: actor, Cursor: q.Get("cursor"), URIs: uris,
		Actors: slices.Concat(q["actors"], q["actors[]"]), Concurrent: c.now}
	c.all = append(c.all, one)
	return func(status int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if one.End.IsZero() {
			one.End, one.Status = time.Now(), status
			c.now--
		}
	}
}

// Calls returns all calls so far, or those of some endpoints, in the order of
// arrival.
func (n *Net) Calls(endpoints ...string) []Call {
	n.calls.mu.Lock()
	defer n.calls.mu.Unlock()
	var all []Call
	for _, c := range n.calls.all {
		if len(endpoints) == 0 || slices.Contains(endpoints, c.Endpoint) {
			all = append(all, *c)
		}
	}
	return all
}

// ForgetCalls clears the recorded calls.
func (n *Net) ForgetCalls() {
	n.calls.mu.Lock()
	defer n.calls.mu.Unlock()
	n.calls.all = nil
}

// MaxConcurrent returns the greatest number of calls in progress at once, of all
// endpoints or of those named.
func (n *Net) MaxConcurrent(endpoints ...string) (most int) {
	type step struct {
		at time.Time
		by int
	}
	var steps []step
	for _, c := range n.Calls(endpoints...) {
		steps = append(steps, step{c.At, 1})
		if !c.End.IsZero() {
			steps = append(steps, step{c.End, -1})
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(a.at.Compare(b.at), a.by-b.by) })
	now := 0
	for _, s := range steps {
		now += s.by
		most = max(most, now)
	}
	return most
}

// MinGap returns the shortest time between the arrivals of two calls, of all
// endpoints or of those named; 0 for fewer than two calls.
func (n *Net) MinGap(endpoints ...string) (least time.Duration) {
	all := n.Calls(endpoints...)
	for i := 1; i < len(all); i++ {
		if gap := all[i].At.Sub(all[i-1].At); i == 1 || gap < least {
			least = gap
		}
	}
	return least
}
