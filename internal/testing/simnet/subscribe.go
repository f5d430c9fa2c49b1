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
	"github.com/klauspost/compress/zstd"
)

// maxMessage is the limit of a client's message in bytes.
const maxMessage = 10_000_000

// subscribe handles the endpoint /subscribe.
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
	s := &subscriber{net: n, wire: wireOf(r.Context()), at: at, joined: n.log.size(), hello: make(chan struct{})}
	if compress {
		s.encoder = n.encoder
	}
	s.options.Store(o)
	if q.Get("requireHello") != "true" {
		close(s.hello)
		n.filters.add(o)
	}
	s.serve(w, r)
}

// serve upgrades a request and sends events until the client leaves or the server stops.
func (s *subscriber) serve(w http.ResponseWriter, r *http.Request, subprotocols ...string) {
	s.wire.opened() // before the client sees the handshake, so that faults include it
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled,
		Subprotocols: subprotocols})
	if err != nil {
		return // Accept has responded
	}
	defer conn.CloseNow() // already closed after an orderly end
	conn.SetReadLimit(maxMessage)
	s.conn = conn
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go s.listen(cancel)
	go s.net.ping(ctx, cancel, conn)
	s.send(ctx)
	if r.Context().Err() != nil { // the server stops; otherwise the client has left
		conn.Close(websocket.StatusGoingAway, "server shutting down") // best effort
	}
}

// request parses the query: the filter, and the position in the log to start at.
func (n *Net) request(q url.Values) (*options, int, error) {
	o := &options{Collections: q["wantedCollections"], DIDs: q["wantedDids"]}
	o.MaxSize, _ = strconv.Atoi(q.Get("maxMessageSizeBytes")) // an invalid number means no limit
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

// find returns the position of a cursor, inclusive: the live tip for a cursor in
// the future, the oldest event for one that is too old. The client is not
// notified of either.
func (n *Net) find(cursor int64) int {
	items, _ := n.log.from(0)
	shift := n.shift.Load()
	var at int
	switch {
	case cursor == 0: // everything, including injected frames
	case n.cfg.Generation == V1:
		at = firstEntry(items, func(e *Entry) bool { return e.UniqueUS >= cursor })
	case cursor < 1e15:
		at = firstEntry(items, func(e *Entry) bool { return e.sequence(shift) >= cursor })
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

// firstEntry returns the position of the first entry for which reached is true,
// or the end. It bisects, so reached must stay true. Frames without an entry
// just before it are skipped.
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

// subscriber is one client. Its connection is used without a context: a context
// that ends within a frame would close it without a close frame.
type subscriber struct {
	net     *Net
	conn    *websocket.Conn
	wire    *wire
	at      int           // position of the next item
	joined  int           // end of the log when the client connected
	events  bool          // it is of subscribeEvents
	notice  []byte        // sent first; nil: none
	encoder *zstd.Encoder // nil: frames are plain
	options atomic.Pointer[options]
	hello   chan struct{} // closed when sending may begin
}

// listen reads the client's messages; reading also returns its pings.
func (s *subscriber) listen(cancel context.CancelFunc) {
	defer cancel()
	for {
		_, data, err := s.conn.Read(context.Background())
		if err != nil {
			return
		}
		if err := s.handle(data); err != nil {
			s.refuse(err.Error())
			return
		}
	}
}

// handle processes one message; unknown types are ignored.
func (s *subscriber) handle(data []byte) error {
	if s.events {
		return errors.New("unexpected data message")
	}
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
	s.net.filters.add(o)
	if !isClosed(s.hello) {
		close(s.hello)
	}
	return nil
}

// refuse closes the connection with a reason, truncated to fit a close frame of
// 123 bytes.
func (s *subscriber) refuse(reason string) {
	reason = strings.ToValidUTF8(reason[:min(len(reason), 120)], "")
	s.conn.Close(websocket.StatusPolicyViolation, reason) // best effort
}

// ping pings a client until ctx ends, and calls cancel if it does not reply.
func (n *Net) ping(ctx context.Context, cancel context.CancelFunc, conn *websocket.Conn) {
	tick := time.NewTicker(n.cfg.PingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			limit, done := context.WithTimeout(context.Background(), n.cfg.WriteLimit)
			err := conn.Ping(limit)
			done()
			if err != nil {
				cancel()
				return
			}
		}
	}
}

// send plays the log from the subscriber's position, and then as it grows: one
// loop, so that nothing is lost between history and live events.
func (s *subscriber) send(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.hello:
	}
	if s.notice != nil && s.write(s.notice, nil) != nil {
		return
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

// play sends items, buffered if there are several.
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
			return err // a slow client gets no close frame, like on the real server
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
	if entry != nil && (!s.knows(entry) || entry.Withheld && !entry.Resynced || !o.wants(entry)) || it.ends && !s.events {
		return nil
	}
	data := it.frame(s.net.cfg.Generation, shift)
	if entry != nil && s.events {
		data = entry.encodeEvent(shift)
	}
	if entry != nil && o.MaxSize > 0 && len(data) > o.MaxSize {
		return nil
	}
	if it.fault != "" {
		s.net.fired.add(it.fault)
	}
	if err := s.write(data, it); err != nil || !it.ends {
		return err
	}
	return errors.New("the connection ends with an error frame")
}

// knows reports whether the service has such an event.
func (s *subscriber) knows(e *Entry) bool {
	if s.events {
		return e.Kind != forgedKind
	}
	return !e.relayOnly()
}

// write sends the frame of an item, or another one.
func (s *subscriber) write(data []byte, of *item) error {
	kind := websocket.MessageText
	switch {
	case s.encoder == nil:
	case of != nil && of.fault == Oversized: // compressed it would be small
		kind = websocket.MessageBinary
	case of != nil && !s.events:
		kind, data = websocket.MessageBinary, s.net.compressed(of, s.net.shift.Load())
	default:
		kind, data = websocket.MessageBinary, s.encoder.EncodeAll(data, nil)
	}
	return s.conn.Write(context.Background(), kind, data)
}
