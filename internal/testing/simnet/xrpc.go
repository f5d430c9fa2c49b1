package simnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// xrpcError is an error as clients receive it. Without a name it is a proxy's
// page.
type xrpcError struct {
	status  int
	Name    string `json:"error"`
	Message string `json:"message"`
}

func (e *xrpcError) Error() string { return e.Name + ": " + e.Message }

func invalid(format string, args ...any) *xrpcError {
	return &xrpcError{http.StatusBadRequest, "InvalidRequest", fmt.Sprintf(format, args...)}
}

func tooMany() *xrpcError {
	return &xrpcError{http.StatusTooManyRequests, "RateLimitExceeded", "Rate Limit Exceeded"}
}

// paging is the cursor of a page.
type paging struct {
	Cursor string `json:"cursor,omitempty"`

	end string // a cursor to an empty page
}

func (p *paging) page() *paging { return p }

// visit is a call in progress, while the index is locked.
type visit struct {
	net    *Net
	index  *index
	query  url.Values
	bearer string
	body   []byte
}

// endpoint is an XRPC method.
type endpoint struct {
	verb   string
	handle func(*visit) (any, error)
}

func endpoints() map[string]endpoint {
	return map[string]endpoint{
		"app.bsky.actor.getProfiles":         {http.MethodGet, (*visit).profiles},
		"app.bsky.feed.getAuthorFeed":        {http.MethodGet, (*visit).authorFeed},
		"app.bsky.feed.getPosts":             {http.MethodGet, (*visit).posts},
		"app.bsky.graph.getFollows":          {http.MethodGet, (*visit).follows},
		"app.bsky.graph.getList":             {http.MethodGet, (*visit).list},
		"app.bsky.graph.getStarterPack":      {http.MethodGet, (*visit).starterPack},
		"com.atproto.identity.resolveHandle": {http.MethodGet, (*visit).resolveHandle},
		"com.atproto.repo.describeRepo":      {http.MethodGet, (*visit).describeRepo},
		"com.atproto.repo.getRecord":         {http.MethodGet, (*visit).getRecord},
		"com.atproto.repo.listRecords":       {http.MethodGet, (*visit).listRecords},
		"com.atproto.server.createSession":   {http.MethodPost, (*visit).createSession},
		"com.atproto.server.refreshSession":  {http.MethodPost, (*visit).refreshSession},
		"com.atproto.sync.getLatestCommit":   {http.MethodGet, (*visit).latestCommit},
		"com.atproto.sync.getRepo":           {http.MethodGet, (*visit).getRepo},

		"com.atproto.sync.listReposByCollection": {http.MethodGet, (*visit).reposByCollection},
	}
}

// SetLatency sets the minimum duration of every call.
func (n *Net) SetLatency(d time.Duration) { n.latency.Store(int64(d)) }

// maxBody is the limit of a request body in bytes.
const maxBody = 64 << 10

func (n *Net) xrpc(known map[string]endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		nsid := r.PathValue("nsid")
		n.call(nsid, w, r, func() (any, error) {
			e, ok := known[nsid]
			switch {
			case !ok:
				return nil, &xrpcError{http.StatusNotImplemented, "MethodNotImplemented", "Method Not Implemented"}
			case e.verb != r.Method:
				return nil, invalid("Incorrect HTTP method (%s) expected %s", r.Method, e.verb)
			}
			v := &visit{net: n, query: r.URL.Query(), bearer: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}
			if e.verb == http.MethodPost {
				body, err := readBody(w, r)
				if err != nil {
					return nil, err
				}
				v.body = body
			} else if err := n.sessions.admit(v.bearer, strings.HasPrefix(nsid, "app.bsky."), time.Now()); err != nil {
				return nil, err
			}
			if v.index = n.listings.Load(); v.index != nil && strings.HasPrefix(nsid, "app.bsky.graph.") {
				v.index.mu.Lock()
			} else {
				v.index = n.indexNow()
			}
			defer v.index.mu.Unlock()
			return e.handle(v)
		})
	}
}

// call handles what all calls share: recording, the limit, the latency, the
// faults, and the JSON response.
func (n *Net) call(endpoint string, w http.ResponseWriter, r *http.Request, handle func() (any, error)) {
	leave := n.calls.arrive(endpoint, r)
	defer leave(0) // if no other status was recorded
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if !n.limiter.take(w.Header(), time.Now()) {
		refuse(w, tooMany(), leave)
		return
	}
	fault := n.callFaults.take(endpoint, needsNoResponse)
	wait := time.Duration(n.latency.Load())
	if fault.Kind == Slow {
		wait += fault.Wait
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if e := n.refusal(fault, w.Header()); e != nil {
		refuse(w, e, leave)
		return
	}
	body, err := handle()
	if err != nil {
		refuse(w, err, leave)
		return
	}
	if p, ok := body.(interface{ page() *paging }); ok {
		n.alterPaging(endpoint, r.URL.Query().Get("cursor"), p.page())
	}
	if car, ok := body.(carBody); ok {
		w.Header().Set("Content-Type", carType)
		n.respond(w, endpoint, car, leave)
		return
	}
	data, err := json.Marshal(body)
	if err != nil {
		refuse(w, err, leave)
		return
	}
	n.respond(w, endpoint, data, leave)
}

func refuse(w http.ResponseWriter, err error, leave func(int)) {
	e, ok := errors.AsType[*xrpcError](err)
	if !ok {
		e = &xrpcError{http.StatusInternalServerError, "InternalServerError", err.Error()}
	}
	data, _ := json.Marshal(e) // two strings
	if e.Name == "" {
		w.Header().Set("Content-Type", "text/html")
		data = []byte("<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>")
	}
	leave(e.status)
	w.WriteHeader(e.status)
	w.Write(data) // the client left
}

// limit parses the page size, from 1 to 100.
func (v *visit) limit() (int, error) {
	raw := v.query.Get("limit")
	if raw == "" {
		return 50, nil
	}
	limit, err := strconv.Atoi(raw)
	switch {
	case err != nil:
		return 0, invalid("Error: limit must be an integer")
	case limit < 1:
		return 0, invalid("Error: limit can not be less than 1")
	case limit > 100:
		return 0, invalid("Error: limit can not be greater than 100")
	}
	return limit, nil
}

func (v *visit) flag(name string) bool { return v.query.Get(name) == "true" }

func (v *visit) required(name string) (string, error) {
	value := v.query.Get(name)
	if value == "" {
		return "", invalid("Error: Params must have the property %q", name)
	}
	return value, nil
}

var identifier = regexp.MustCompile(`^(did:[a-z]+:[a-zA-Z0-9._:%-]+|([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?\.)` +
	`+[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?)$`)

// actor returns the account that a parameter names, which must be active.
func (v *visit) actor(parameter, missing string) (*member, error) {
	name, err := v.required(parameter)
	if err != nil {
		return nil, err
	}
	if !identifier.MatchString(name) {
		return nil, invalid("Error: %s must be a valid did or a handle", parameter)
	}
	p := v.index.actor(name)
	if p == nil {
		return nil, invalid("%s", strings.ReplaceAll(missing, "{}", name))
	}
	switch p.status {
	case "":
		return p, nil
	case "deactivated":
		return nil, &xrpcError{http.StatusBadRequest, "AccountDeactivated", "Account is deactivated"}
	case "deleted":
		return nil, invalid("%s", strings.ReplaceAll(missing, "{}", name))
	}
	return nil, &xrpcError{http.StatusBadRequest, "AccountTakedown", "Account has been suspended"}
}
