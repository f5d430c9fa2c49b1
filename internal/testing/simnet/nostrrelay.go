package simnet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// NostrRelay configures how a relay behaves. Relays differ, and most of these
// settings are faults.
type NostrRelay struct {
	Page      int  // maximum number of events per page
	Tells     bool // it tells at the end of a page whether it has cut it, see NIP-67
	Says      int  // events per page according to its description; 0: Page
	Silent    bool // its description does not mention pages
	Oldest    bool // a page begins with the oldest events
	Auth      bool // it serves only clients that authenticate
	LostSeam  bool // events that arrive between the stored events and the subscription are not sent
	CloseEach int  // it closes each nth subscription with an error; 0: none
	CutAt     int  // it ends one connection at its nth message; 0: never
	Message   int  // maximum number of bytes of a message to it; 0: 1 MiB

	Sync NostrSync
}

// NostrRequest is a request that a relay received.
type NostrRequest struct {
	IDs     []string // nil: all
	Kinds   []int
	Authors []string // nil: everyone
	Since   int64    // 0: not given
	Limit   int      // 0: not given
	Bytes   int      // of the message
}

// nostrRelay is a relay.
type nostrRelay struct {
	cfg    NostrRelay
	curve  *k256
	server *http.Server
	at     net.Listener

	mu       sync.Mutex    // guards what follows
	stored   []*NostrEvent // in reverse order of sending
	sessions map[*nostrSession]bool
	requests int
	asked    []NostrRequest
	sent     int
	compared int // number of sets
}

// nostrSession is the connection of a client.
type nostrSession struct {
	relay *nostrRelay
	ws    *websocket.Conn
	known bool // the client has authenticated

	mu   sync.Mutex // guards what follows, and is held while a message is queued
	live map[string]nostrFilter
	sets map[string]*nostrSet
	out  []string
	more chan struct{} // has an element if out may have one
}

type nostrFilter struct {
	IDs     []string `json:"ids"`
	Kinds   []int    `json:"kinds"`
	Authors []string `json:"authors"`
	Since   *int64   `json:"since"`
	Until   *int64   `json:"until"`
	Limit   *int     `json:"limit"`
}

func startNostrRelay(cfg NostrRelay, curve *k256) (*nostrRelay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &nostrRelay{cfg: cfg, curve: curve, at: l, sessions: map[*nostrSession]bool{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go r.server.Serve(l) // it ends with stop
	return r, nil
}

func (r *nostrRelay) url() string { return "ws://" + r.at.Addr().String() }

func (r *nostrRelay) stop() {
	r.server.Close() // it is over
	r.cut()
}

func (r *nostrRelay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sessions {
		go s.ws.CloseNow() // it is over
	}
}

// store stores an event and sends it to the subscribers.
func (r *nostrRelay) store(e *NostrEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, _ := slices.BinarySearchFunc(r.stored, e, func(a, b *NostrEvent) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), strings.Compare(b.ID, a.ID))
	})
	r.stored = slices.Insert(r.stored, at, e)
	for s := range r.sessions {
		s.mu.Lock()
		for sub, f := range s.live {
			if f.matches(e) {
				s.queue(fmt.Sprintf(`["EVENT","%s",%s]`, sub, e.text))
			}
		}
		s.mu.Unlock()
	}
}

// ServeHTTP serves the relay's description, and its clients.
func (r *nostrRelay) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Header.Get("Accept") == "application/nostr+json" {
		if r.cfg.Silent {
			http.NotFound(w, q)
			return
		}
		nips := "1,11,42"
		if r.cfg.Sync != SyncUnknown {
			nips += ",77"
		}
		fmt.Fprintf(w, `{"name":"simulated","supported_nips":[%s],"limitation":{"max_limit":%d,"max_subscriptions":20,"max_message_length":%d}}`,
			nips, cmp.Or(r.cfg.Says, r.cfg.Page), cmp.Or(r.cfg.Message, 1<<20))
		return
	}
	ws, err := websocket.Accept(w, q, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow() // the connection is over
	ws.SetReadLimit(1 << 20)
	s := &nostrSession{relay: r, ws: ws, live: map[string]nostrFilter{}, sets: map[string]*nostrSet{}, more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(q.Context())
	defer cancel()
	go s.write(ctx)
	r.mu.Lock()
	r.sessions[s] = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.sessions, s)
		r.mu.Unlock()
	}()
	if r.cfg.Auth {
		s.say(`["AUTH","who is there"]`)
	}
	for {
		_, message, err := ws.Read(ctx)
		if err != nil {
			return
		}
		if most := cmp.Or(r.cfg.Message, 1<<20); len(message) > most {
			s.say(`["NOTICE","the message is too long"]`)
			continue
		}
		if err := s.handle(message); err != nil {
			s.say(fmt.Sprintf(`["NOTICE",%s]`, nostrText(err.Error())))
		}
	}
}

// say queues a message.
func (s *nostrSession) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue(text)
}

// queue queues a message. The caller holds the session's lock.
func (s *nostrSession) queue(text string) {
	s.out = append(s.out, text)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// write sends the queued messages.
func (s *nostrSession) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.more:
		}
		s.mu.Lock()
		out := s.out
		s.out = nil
		s.mu.Unlock()
		for _, text := range out {
			if s.relay.cuts() || s.ws.Write(ctx, websocket.MessageText, []byte(text)) != nil {
				s.ws.CloseNow() // it is over
				return
			}
		}
	}
}

// cuts counts a message, and reports whether the connection ends instead.
func (r *nostrRelay) cuts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	return r.sent == r.cfg.CutAt
}

func (s *nostrSession) handle(message []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(message, &parts); err != nil || len(parts) < 2 {
		return errors.New("not a message")
	}
	switch kind := string(parts[0]); kind {
	case `"REQ"`:
		return s.request(parts)
	case `"NEG-OPEN"`, `"NEG-MSG"`, `"NEG-CLOSE"`:
		return s.compare(kind, parts)
	case `"CLOSE"`:
		var sub string
		err := json.Unmarshal(parts[1], &sub)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.live, sub)
		return err
	case `"AUTH"`:
		var e nostrAnswer
		err := json.Unmarshal(parts[1], &e)
		problem := "not an event"
		if err == nil {
			problem = s.relay.recognise(&e, time.Now())
		}
		s.known = problem == ""
		s.say(fmt.Sprintf(`["OK","%s",%t,%s]`, e.ID, s.known, nostrText(problem)))
		return err
	}
	return errors.New("unknown message")
}

// request handles a REQ: it sends stored events, newest first, and then new ones.
func (s *nostrSession) request(parts []json.RawMessage) error {
	var sub string
	var f nostrFilter
	if err := json.Unmarshal(parts[1], &sub); err != nil {
		return err
	}
	if len(parts) != 3 {
		return errors.New("one filter, please")
	}
	if err := json.NewDecoder(io.LimitReader(strings.NewReader(string(parts[2])), 1<<20)).Decode(&f); err != nil {
		return err
	}
	r := s.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	r.requests++
	asked := NostrRequest{IDs: f.IDs, Kinds: f.Kinds, Authors: f.Authors, Bytes: len(parts[2])}
	if f.Since != nil {
		asked.Since = *f.Since
	}
	if f.Limit != nil {
		asked.Limit = *f.Limit
	}
	r.asked = append(r.asked, asked)
	switch {
	case r.cfg.Auth && !s.known:
		s.queue(fmt.Sprintf(`["CLOSED","%s","auth-required: who are you?"]`, sub))
		return nil
	case r.cfg.CloseEach > 0 && r.requests%r.cfg.CloseEach == 0:
		s.queue(fmt.Sprintf(`["CLOSED","%s","error: not now"]`, sub))
		return nil
	}
	page, cut := r.page(&f)
	for _, e := range page {
		s.queue(fmt.Sprintf(`["EVENT","%s",%s]`, sub, e.text))
	}
	switch {
	case !r.cfg.Tells:
		s.queue(fmt.Sprintf(`["EOSE","%s"]`, sub))
	case cut:
		s.queue(fmt.Sprintf(`["EOSE","%s","more"]`, sub))
	default:
		s.queue(fmt.Sprintf(`["EOSE","%s","finish"]`, sub))
	}
	if r.cfg.LostSeam {
		time.AfterFunc(5*time.Millisecond, func() { s.subscribe(sub, f) })
		return nil
	}
	s.live[sub] = f
	return nil
}

func (s *nostrSession) subscribe(sub string, f nostrFilter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live[sub] = f
}

// page returns the stored events of a filter, cut to a page. The caller holds the
// relay's lock.
func (r *nostrRelay) page(f *nostrFilter) (found []*NostrEvent, cut bool) {
	most, until := r.cfg.Page, len(r.stored)
	if f.Limit != nil {
		most = min(most, *f.Limit)
	}
	if f.Until != nil {
		until = sort.Search(until, func(i int) bool { return r.stored[i].CreatedAt > *f.Until })
	}
	since := 0
	if f.Since != nil {
		since = sort.Search(until, func(i int) bool { return r.stored[i].CreatedAt >= *f.Since })
	}
	order := slices.Backward(r.stored[since:until])
	if r.cfg.Oldest {
		order = slices.All(r.stored[since:until])
	}
	for _, e := range order {
		if !f.matches(e) {
			continue
		}
		if len(found) >= most {
			return found, true
		}
		found = append(found, e)
	}
	return found, false
}

func (f *nostrFilter) matches(e *NostrEvent) bool {
	switch {
	case f.IDs != nil && !slices.Contains(f.IDs, e.ID),
		f.Kinds != nil && !slices.Contains(f.Kinds, e.Kind),
		f.Authors != nil && !slices.Contains(f.Authors, e.Author),
		f.Since != nil && e.CreatedAt < *f.Since,
		f.Until != nil && e.CreatedAt > *f.Until:
		return false
	}
	return true
}
