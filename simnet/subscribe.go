package simnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// maxMessage is what the server reads of a client's message.
const maxMessage = 10_000_000

// subscribe is the endpoint.
func (n *Net) subscribe(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery) // more than 10,000 parameters are an error, not none
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	compress := q.Get("compress") == "true" || strings.Contains(r.Header.Get("Socket-Encoding"), "zstd")
	if compress && n.cfg.Generation == V2 && strings.Contains(r.Header.Get("Sec-WebSocket-Extensions"), "permessage-deflate") {
		http.Error(w, "zstd and permessage-deflate cannot be used together", http.StatusBadRequest)
		return
	}
	o, at, err := n.request(q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s := &subscriber{net: n, wire: wireOf(r.Context()), at: at, joined: n.log.size(), compress: compress, hello: make(chan struct{})}
	s.options.Store(o)
	if q.Get("requireHello") != "true" {
		close(s.hello)
		n.asked.add(o)
	}
	s.wire.opened() // before the client knows, so that no fault misses it
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // answered already
	}
	defer conn.CloseNow() //nolint:errcheck // the orderly endings have closed it
	conn.SetReadLimit(maxMessage)
	s.conn = conn
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go s.listen(cancel)
	go s.ping(ctx, cancel)
	s.send(ctx)
	if r.Context().Err() != nil { // the server stops; else the client has left
		conn.Close(websocket.StatusGoingAway, "server shutting down") //nolint:errcheck // best effort
	}
}

// request reads the query: the filter, and the place in the log to start at.
func (n *Net) request(q url.Values) (*options, int, error) {
	o := &options{Collections: q["wantedCollections"], DIDs: q["wantedDids"]}
	o.MaxSize, _ = strconv.Atoi(q.Get("maxMessageSizeBytes")) // garbage is no limit
	if err := o.check(); err != nil {
		return nil, 0, err
	}
	raw := q.Get("cursor")
	if raw == "" {
		return o, n.log.size(), nil
	}
	cursor, err := strconv.ParseInt(raw, 10, 64)
	if err != nil || cursor < 0 {
		return nil, 0, fmt.Errorf("invalid cursor: %s", raw)
	}
	return o, n.find(cursor), nil
}

// find is the place of a cursor: inclusive; the live tip for one in the future;
// the oldest event for one that is too old. Nothing is said of either.
func (n *Net) find(cursor int64) int {
	items, _ := n.log.from(0)
	shift := n.shift.Load()
	var at int
	switch {
	case cursor == 0: // everything, injected frames too
	case n.cfg.Generation == V1:
		at = firstEntry(items, func(e *Entry) bool { return e.UniqueUS >= cursor })
	case cursor < 1e15:
		at = firstEntry(items, func(e *Entry) bool { return e.Seq+shift >= cursor })
	default:
		at = firstEntry(items, func(e *Entry) bool { return e.TimeUS >= cursor })
		if at < len(items) || cursor <= n.now().UnixMicro() {
			from := cursor - n.cfg.Coarse.Microseconds()
			at = firstEntry(items, func(e *Entry) bool { return e.TimeUS >= from })
		}
	}
	if n.cfg.Lookback > 0 {
		oldest := n.now().Add(-n.cfg.Lookback).UnixMicro()
		at = max(at, firstEntry(items, func(e *Entry) bool { return e.TimeUS >= oldest }))
	}
	if floor := int(n.floor.Load()); at < floor {
		n.fired.add(TooOld)
		at = floor
	}
	return at
}

// firstEntry is the place of the first entry that has been reached, or the end,
// by bisection: what is reached stays reached. Frames without an entry just
// before it are taken for seen.
func firstEntry(items []*item, reached func(*Entry) bool) int {
	entry := func(i int) int {
		for i < len(items) && items[i].entry == nil {
			i++
		}
		return i
	}
	return entry(sort.Search(len(items), func(i int) bool {
		i = entry(i)
		return i == len(items) || reached(items[i].entry)
	}))
}

// subscriber is one client. Its connection knows no context: one that ended in
// the middle of a frame would close it without the close frame.
type subscriber struct {
	net      *Net
	conn     *websocket.Conn
	wire     *wire
	at       int // the place of the next item
	joined   int // the end of the log when it came
	compress bool
	options  atomic.Pointer[options]
	hello    chan struct{} // closed when sending may begin
}

// listen reads what the client says, and answers its pings by the way.
func (s *subscriber) listen(cancel context.CancelFunc) {
	defer cancel()
	for {
		_, data, err := s.conn.Read(context.Background())
		if err != nil {
			return
		}
		if err := s.hear(data); err != nil {
			s.refuse(err.Error())
			return
		}
	}
}

// hear takes one message; types it does not know mean nothing.
func (s *subscriber) hear(data []byte) error {
	var message struct {
		Type    string          `json:"type"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(data, &message); err != nil {
		return fmt.Errorf("invalid subscriber message: %w", err)
	}
	if message.Type != "options_update" {
		return nil
	}
	o := &options{}
	if err := json.Unmarshal(message.Payload, o); err != nil {
		return fmt.Errorf("invalid options_update payload: %w", err)
	}
	if err := o.check(); err != nil {
		return err
	}
	s.options.Store(o)
	s.net.asked.add(o)
	if !isClosed(s.hello) {
		close(s.hello)
	}
	return nil
}

// refuse closes with the reason; a close frame holds 123 bytes of it.
func (s *subscriber) refuse(reason string) {
	reason = strings.ToValidUTF8(reason[:min(len(reason), 120)], "")
	s.conn.Close(websocket.StatusPolicyViolation, reason) //nolint:errcheck // best effort
}

func (s *subscriber) ping(ctx context.Context, cancel context.CancelFunc) {
	tick := time.NewTicker(s.net.cfg.PingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			limit, done := context.WithTimeout(context.Background(), s.net.cfg.WriteLimit)
			err := s.conn.Ping(limit)
			done()
			if err != nil {
				cancel()
				return
			}
		}
	}
}

// send plays the log from the subscriber's place, and then as it grows: one
// loop, so that nothing is lost where history meets the present.
func (s *subscriber) send(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.hello:
	}
	for {
		items, grown := s.net.log.from(s.at)
		if err := s.play(ctx, items); err != nil {
			return
		}
		s.at += len(items)
		select {
		case <-ctx.Done():
			return
		case <-grown:
		}
	}
}

// play sends some items; many of them at once where there are many.
func (s *subscriber) play(ctx context.Context, items []*item) (err error) {
	if len(items) > 1 {
		s.wire.gather()
		defer func() { err = errors.Join(err, s.wire.flush()) }()
	}
	shift := s.net.shift.Load()
	for i, it := range items {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if it.passing && s.at+i < s.joined {
			continue
		}
		if err := s.deliver(it, shift); err != nil {
			return err // a client too slow gets no close frame, as with the real server
		}
	}
	return nil
}

func (s *subscriber) deliver(it *item, shift int64) error {
	o := s.options.Load()
	entry := it.entry
	if it.again != nil {
		entry = it.again.entry
	}
	if entry != nil && !o.wants(entry) {
		return nil
	}
	kind, data := websocket.MessageText, it.frame(s.net.cfg.Generation, shift)
	if entry != nil && o.MaxSize > 0 && len(data) > o.MaxSize {
		return nil
	}
	if s.compress {
		kind = websocket.MessageBinary
		if it.fault != Oversized { // which would be small
			data = s.net.compressed(it, shift)
		}
	}
	if it.fault != "" {
		s.net.fired.add(it.fault)
	}
	return s.conn.Write(context.Background(), kind, data)
}
