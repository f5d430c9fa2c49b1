package simnet

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Relay configures how com.atproto.sync.subscribeRepos treats cursors: servers
// differ.
type Relay struct {
	Inclusive bool // the event at the cursor is sent too
	Silent    bool // no notice of a cursor in the future, which becomes the live tip, or of one that is too old
}

// relay is the log as a relay sends it. It is made when the first client connects.
type relay struct {
	mu        sync.Mutex
	at        int // items of the log that are in messages
	repos     map[string]*repository
	messages  []*message
	hidden    map[string]bool // accounts
	rotations map[string]int  // how often accounts changed their keys
}

// message is an event of the relay.
type message struct {
	at      int // the position in the log of its first item
	kind    string
	body    object // without the number
	seq     int64  // before any renumbering; 0: it has no number of its own
	did     string
	timeUS  int64
	again   *message
	raw     []byte // sent instead of a body
	fault   Fault
	passing bool

	withheld bool
}

// HideFromRelay makes the relay omit all events of an account, as a relay does that
// took the account down, or send them again. Each omitted event counts as Hidden.
func (n *Net) HideFromRelay(did string, hidden bool) {
	n.relay.mu.Lock()
	defer n.relay.mu.Unlock()
	n.relay.hidden[did] = hidden
}

// SyncRepo makes the relay send a #sync of an account. Jetstream has no such event.
func (n *Net) SyncRepo(did string) error {
	return n.act(did, func(m *model, a *person) error {
		e := m.beginEvent(m.clock())
		e.Kind, e.DID, e.Rev = syncKind, did, m.tid(m.now)
		return nil
	})
}

// syncKind is the kind of an entry that only the relay sends.
const syncKind = "sync"

// relayed returns the relay's messages, and a channel that closes when the log has
// more.
func (n *Net) relayed() ([]*message, <-chan struct{}) {
	r := &n.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	items, grown := n.log.from(r.at)
	for i := 0; i < len(items); {
		size := commitSize(items[i:])
		r.messages = append(r.messages, n.message(items[i:i+size], r.at+i))
		i += size
	}
	r.at += len(items)
	return r.messages[:len(r.messages):len(r.messages)], grown
}

// commitSize returns how many items at the beginning belong to one commit.
func commitSize(items []*item) int {
	size, first := 1, items[0].entry
	for first != nil && first.Kind == "commit" && size < len(items) {
		e := items[size].entry
		if e == nil || e.DID != first.DID || e.Rev != first.Rev || e.Resynced != first.Resynced {
			break
		}
		size++
	}
	return size
}

// message makes the message of some items. The caller holds the relay's lock.
func (n *Net) message(items []*item, at int) *message {
	it := items[0]
	m := &message{at: at, fault: it.fault, passing: it.passing}
	switch {
	case it.ends:
		m.withheld = true
		return m
	case it.again != nil:
		m.again, m.did = it.again.relayed, it.again.entry.DID
		return m
	case it.entry == nil:
		m.raw = it.raw
		return m
	}
	entries := make([]*Entry, 0, len(items))
	for _, it := range items {
		entries = append(entries, it.entry)
		it.relayed = m
	}
	last := entries[len(entries)-1]
	m.seq, m.did, m.timeUS, m.withheld = last.RelaySeq, last.DID, last.TimeUS, last.Withheld || last.Resynced
	m.kind, m.body = n.relay.body(n, entries)
	m.body = maps.Clone(m.body) // a replay has the body of another message
	if last.Kind == "commit" && last.Curtailed != "" {
		m.body["ops"] = []any{}
		if last.Curtailed == CurtailPrev {
			m.body["prevData"] = n.relay.repos[last.DID].data
		}
	}
	if last.Kind == forgedKind {
		m.fault = Fault(last.Forgery)
	}
	m.body["time"] = time.UnixMicro(last.TimeUS).UTC().Format("2006-01-02T15:04:05.000000Z") // as exact as Jetstream's time_us
	return m
}

// body returns a message without its number and time.
func (r *relay) body(n *Net, entries []*Entry) (kind string, body object) {
	e := entries[0]
	if e.Resynced { // the repository does not change
		return "#commit", object{}
	}
	switch e.Kind {
	case "identity":
		r.rotate(n, e)
		return "#identity", object{"did": e.DID, "handle": e.Handle}
	case "account":
		if e.Status == "deleted" {
			delete(r.repos, e.DID)
		}
		body := object{"did": e.DID, "active": e.Active}
		if e.Status != "" {
			body["status"] = e.Status
		}
		return "#account", body
	}
	if r.repos[e.DID] == nil {
		r.repos[e.DID] = n.openRepository(e.DID)
	}
	if e.Kind == syncKind {
		return "#sync", r.repos[e.DID].sync(e.Rev)
	}
	if e.Kind == forgedKind {
		return "#commit", r.repos[e.DID].forge(n, e)
	}
	return "#commit", r.repos[e.DID].commit(entries)
}

// rotate gives a repository another key if the event says so.
func (r *relay) rotate(n *Net, e *Entry) {
	if e.Rotation == 0 {
		return
	}
	r.rotations[e.DID] = e.Rotation
	if repo := r.repos[e.DID]; repo != nil {
		repo.key, repo.rotation = n.keyOf(e.DID, e.Rotation), e.Rotation
	}
}

// frame returns the message under a numbering.
func (m *message) frame(shift int64) []byte {
	switch {
	case m.again != nil:
		return m.again.frame(shift)
	case m.body == nil:
		return m.raw
	}
	body := object{"seq": m.seq + shift}
	maps.Copy(body, m.body)
	frame := frameOf(1, m.kind, body)
	if m.fault == Fault(CutFrame) {
		frame = frame[:len(frame)/2]
	}
	return frame
}

// frameOf returns a frame: a header and a body.
func frameOf(op int, kind string, body object) []byte {
	header := object{"op": op}
	if kind != "" {
		header["t"] = kind
	}
	return appendCBOR(appendCBOR(nil, header), body)
}

// subscribeRepos handles com.atproto.sync.subscribeRepos.
func (n *Net) subscribeRepos(w http.ResponseWriter, r *http.Request) {
	cursor, given := int64(0), r.URL.Query().Has("cursor")
	if given {
		var err error
		if cursor, err = strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64); err != nil || cursor < 0 {
			http.Error(w, `{"error":"InvalidRequest","message":"invalid cursor"}`, http.StatusBadRequest)
			return
		}
	}
	tip := n.log.size()
	s := &repoSubscriber{net: n, wire: wireOf(r.Context())}
	s.wire.opened() // before the client sees the handshake, so that faults include it
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // Accept has responded
	}
	defer conn.CloseNow() // already closed after an orderly end
	s.conn = conn
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		defer cancel()
		for {
			if _, _, err := conn.Read(context.Background()); err != nil { // also returns pings
				return
			}
		}
	}()
	messages, _ := n.relayed() // after the handshake, because the first client waits for it
	s.joined = sort.Search(len(messages), func(i int) bool { return messages[i].at >= tip })
	s.at = s.joined
	var notice []byte
	end := false
	if given {
		s.at, notice, end = n.findMessage(messages, s.joined, cursor)
	}
	if notice != nil {
		if err := conn.Write(context.Background(), websocket.MessageBinary, notice); err != nil {
			return
		}
	}
	if end {
		conn.Close(websocket.StatusPolicyViolation, "FutureCursor") // best effort
		return
	}
	go n.ping(ctx, cancel, conn)
	s.send(ctx)
	if r.Context().Err() != nil { // the server stops; otherwise the client has left
		conn.Close(websocket.StatusGoingAway, "server shutting down") // best effort
	}
}

// findMessage returns the index of a cursor, a frame to send before anything else,
// and whether the connection ends with that frame. Messages from joined on came
// after the client connected.
func (n *Net) findMessage(messages []*message, joined int, cursor int64) (at int, notice []byte, end bool) {
	shift := n.shift.Load()
	wanted := cursor
	if !n.cfg.Relay.Inclusive {
		wanted++
	}
	at = firstMessage(messages[:joined], func(m *message) bool { return m.seq+shift >= wanted })
	if at == joined && cursor > latestSeq(messages[:joined])+shift {
		if n.cfg.Relay.Silent {
			return at, nil, false
		}
		return at, frameOf(-1, "", object{"error": "FutureCursor", "message": "Cursor in the future."}), true
	}
	floor := int(n.floor.Load())
	oldest := sort.Search(len(messages), func(i int) bool { return messages[i].at >= floor })
	if n.cfg.Lookback > 0 {
		since := n.now().Add(-n.cfg.Lookback).UnixMicro()
		oldest = max(oldest, firstMessage(messages, func(m *message) bool { return m.timeUS >= since }))
	}
	if at >= oldest {
		return at, nil, false
	}
	n.fired.add(TooOld)
	if !n.cfg.Relay.Silent {
		notice = frameOf(1, "#info", object{"name": "OutdatedCursor", "message": "Requested cursor exceeded limit. Possibly missing events"})
	}
	return oldest, notice, false
}

// firstMessage returns the index of the first numbered message for which reached is
// true, or the end.
func firstMessage(messages []*message, reached func(*message) bool) int {
	for i, m := range messages {
		if m.seq > 0 && reached(m) {
			return i
		}
	}
	return len(messages)
}

func latestSeq(messages []*message) int64 {
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].seq > 0 {
			return messages[i].seq
		}
	}
	return 0
}

// repoSubscriber is one client of subscribeRepos, see subscriber.
type repoSubscriber struct {
	net    *Net
	conn   *websocket.Conn
	wire   *wire
	at     int // index of the next message
	joined int // end of the messages when the client connected
}

// send sends the messages from the subscriber's index, and then new ones as they
// come.
func (s *repoSubscriber) send(ctx context.Context) {
	for {
		messages, grown := s.net.relayed()
		if err := s.play(ctx, messages[s.at:]); err != nil {
			return
		}
		s.at = len(messages)
		select {
		case <-ctx.Done():
			return
		case <-grown:
		}
	}
}

// play sends messages, buffered if there are several.
func (s *repoSubscriber) play(ctx context.Context, messages []*message) (err error) {
	if len(messages) > 1 {
		s.wire.gather()
		defer func() { err = errors.Join(err, s.wire.flush()) }()
	}
	shift := s.net.shift.Load()
	for i, m := range messages {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case m.withheld, m.passing && s.at+i < s.joined:
			continue
		case s.net.relay.hides(m.did):
			s.net.fired.add(Hidden)
			continue
		}
		if m.fault != "" {
			s.net.fired.add(m.fault)
		}
		if err := s.conn.Write(context.Background(), websocket.MessageBinary, m.frame(shift)); err != nil {
			return err
		}
	}
	return nil
}

func (r *relay) hides(did string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hidden[did]
}
