package simnet

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer/jetstream/dictionary"
)

// events is the service network.bsky.jetstream.subscribeEvents of a server.
type events struct {
	offered    atomic.Bool
	limit      atomic.Pointer[urlLimit]
	dictionary atomic.Pointer[eventsDictionary]
}

// urlLimit is the status for URLs that are longer than a number of bytes.
type urlLimit struct{ bytes, status int }

// eventsDictionary is the zstd dictionary of the service.
type eventsDictionary struct {
	id      uint32
	data    []byte
	encoder *zstd.Encoder
}

// eventsPrefix begins the types of its payloads.
const eventsPrefix = "network.bsky.jetstream.subscribeEvents#"

// firstDictionary is the ID of a server's first dictionary. Each RotateDictionary adds one.
const firstDictionary = 20260811

func newEncoder(dictionary []byte) (*zstd.Encoder, error) {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderDict(dictionary), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, fmt.Errorf("read the zstd dictionary: %w", err)
	}
	return e, nil
}

// useDictionary makes the dictionary with an ID the current one.
func (n *Net) useDictionary(id uint32) error {
	data := slices.Clone(dictionary.V1)
	binary.LittleEndian.PutUint32(data[4:], id)
	encoder, err := newEncoder(data)
	if err != nil {
		return err
	}
	n.events.dictionary.Store(&eventsDictionary{id, data, encoder})
	return nil
}

// LimitURL makes the server respond with a status to longer URLs of subscribeEvents; 0 bytes: it
// accepts all. Each such response counts as LongURL.
func (n *Net) LimitURL(bytes, status int) { n.events.limit.Store(&urlLimit{bytes, status}) }

// EventsURL returns the endpoint of subscribeEvents.
func (n *Net) EventsURL() string {
	return "ws://" + n.Address() + "/xrpc/network.bsky.jetstream.subscribeEvents"
}

// FindMissed makes an account write a post that no server sees, and then the server read the
// repository: it sends a #sync, and the post with its revision. Clients of /subscribe get
// neither, and the relay only sends the #sync.
func (n *Net) FindMissed(did, text string) (*Entry, error) {
	if err := n.Withhold(did, true); err != nil {
		return nil, err
	}
	missed, err := n.PostNow(did, text)
	if err := errors.Join(err, n.Withhold(did, false), n.SyncRepo(did)); err != nil {
		return nil, err
	}
	var found *Entry
	err = n.act(did, func(m *model, _ *person) error {
		found = m.beginEvent(m.clock())
		at := *found
		*found = *missed
		found.Seq, found.TimeUS, found.UniqueUS, found.RelaySeq = at.Seq, at.TimeUS, at.UniqueUS, at.RelaySeq
		found.Rev, found.Resynced = m.tid(m.now), true
		return nil
	})
	return found, err
}

// xrpcRefusal writes an error of XRPC.
func xrpcRefusal(w http.ResponseWriter, status int, name, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": name, "message": message}) // the client left
}

// offers returns a handler that responds with 404 during the fault Downgrade.
func (n *Net) offers(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !n.events.offered.Load() {
			n.fired.add(Downgrade)
			http.NotFound(w, r)
			return
		}
		serve(w, r)
	}
}

func (n *Net) getZstdDictionary(w http.ResponseWriter, r *http.Request) {
	d := n.events.dictionary.Load()
	if id := r.URL.Query().Get("id"); id != "" && id != strconv.FormatUint(uint64(d.id), 10) {
		xrpcRefusal(w, http.StatusNotFound, "DictionaryNotFound", "no dictionary with id "+id)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Write(d.data) // the client left
}

// subscribeEvents handles network.bsky.jetstream.subscribeEvents.
func (n *Net) subscribeEvents(w http.ResponseWriter, r *http.Request) {
	if limit := n.events.limit.Load(); limit != nil && limit.bytes > 0 && len(r.RequestURI) > limit.bytes {
		n.fired.add(LongURL)
		http.Error(w, "the URL is too long", limit.status)
		return
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		xrpcRefusal(w, http.StatusBadRequest, "InvalidRequest", err.Error())
		return
	}
	d := n.events.dictionary.Load()
	id := q.Get("zstdDictionary")
	if id != "" && id != strconv.FormatUint(uint64(d.id), 10) {
		n.fired.add(UnknownDictionary)
		message := fmt.Sprintf("unknown zstd dictionary id %s; current dictionary id is %d", id, d.id)
		xrpcRefusal(w, http.StatusBadRequest, "UnknownZstdDictionary", message)
		return
	}
	o, err := eventOptions(q)
	if err != nil {
		xrpcRefusal(w, http.StatusBadRequest, "InvalidRequest", err.Error())
		return
	}
	start, refusal := n.findEvent(q.Get("cursor"))
	if refusal != nil {
		xrpcRefusal(w, http.StatusBadRequest, refusal.Name, refusal.Message)
		return
	}
	s := &subscriber{net: n, wire: wireOf(r.Context()), at: start.at, joined: n.log.size(), hello: make(chan struct{})}
	s.events, s.notice = true, start.notice
	if id != "" {
		s.encoder = d.encoder
	}
	s.options.Store(o)
	n.filters.add(o)
	close(s.hello)
	s.serve(w, r, "xrpc.v1.json")
}

// eventOptions parses the filter. Its errors are worded like the server's.
func eventOptions(q url.Values) (*options, error) {
	for _, old := range []string{"wantedDids", "wantedCollections", "requireHello", "compress"} {
		if q.Has(old) {
			return nil, errors.New(old + " is a parameter of /subscribe")
		}
	}
	if len(q["dids"]) > 10_000 || len(q["collections"]) > 100 || len(q["kinds"]) > 4 {
		return nil, errors.New("too many values")
	}
	for _, kind := range q["kinds"] {
		if !slices.Contains([]string{"commit", "identity", "account", "sync"}, kind) {
			return nil, fmt.Errorf("unknown kind %q", kind)
		}
	}
	if len(q["kinds"]) > 0 && len(q["collections"]) > 0 && !slices.Contains(q["kinds"], "commit") {
		return nil, errors.New("collections filter can never apply: kinds excludes commit")
	}
	o := &options{Collections: q["collections"], DIDs: q["dids"], kinds: q["kinds"]}
	if most := q.Get("maxMessageSizeBytes"); most != "" {
		var err error
		if o.MaxSize, err = strconv.Atoi(most); err != nil || o.MaxSize < 0 {
			return nil, errors.New("invalid maxMessageSizeBytes: " + most)
		}
	}
	return o, o.check()
}

// eventStart is where a connection starts, and the frame that it begins with.
type eventStart struct {
	at     int
	notice []byte
}

// cursorRefusal is an error of XRPC.
type cursorRefusal struct{ Name, Message string }

// findEvent returns the position of a cursor, inclusive.
func (n *Net) findEvent(raw string) (eventStart, *cursorRefusal) {
	if raw == "" {
		return eventStart{at: n.log.size()}, nil
	}
	cursor, err := strconv.ParseInt(raw, 10, 64)
	if err != nil || cursor < 0 {
		return eventStart{}, &cursorRefusal{"InvalidRequest", "invalid cursor: " + raw}
	}
	items, _ := n.log.from(0)
	shift, floor := n.shift.Load(), n.oldest(items)
	if cursor < 1e15 {
		at := firstEntry(items, func(e *Entry) bool { return e.Seq+shift >= cursor })
		last := n.log.Last()
		switch {
		case last == nil || cursor > last.Seq+shift+1:
			return eventStart{len(items), eventInfo("FutureCursor", "requested seq cursor is beyond this archive's next seq")}, nil
		case at < floor:
			n.fired.add(TooOld)
			message := fmt.Sprintf("cursor %d is below the retention floor %d", cursor, seqAt(items, floor)+shift)
			return eventStart{}, &cursorRefusal{"CursorTooOld", message}
		}
		return eventStart{at: at}, nil
	}
	if cursor > n.now().UnixMicro() {
		return eventStart{at: len(items)}, nil
	}
	from := cursor - n.cfg.Coarse.Microseconds()
	at := firstEntry(items, func(e *Entry) bool { return e.TimeUS >= from })
	first := firstEntry(items, func(*Entry) bool { return true })
	if at > floor && at > first {
		return eventStart{at: at}, nil
	}
	if floor > 0 {
		n.fired.add(TooOld)
	}
	message := fmt.Sprintf("requested timestamp cursor below retention floor; starting at seq %d", seqAt(items, floor)+shift)
	return eventStart{floor, eventInfo("OutdatedCursor", message)}, nil
}

// oldest returns the position of the oldest event that the server sends.
func (n *Net) oldest(items []*item) int {
	floor := int(n.floor.Load())
	if n.cfg.Lookback > 0 {
		since := n.now().Add(-n.cfg.Lookback).UnixMicro()
		floor = max(floor, firstEntry(items, func(e *Entry) bool { return e.TimeUS >= since }))
	}
	return floor
}

// seqAt returns the number of the first entry from a position on.
func seqAt(items []*item, at int) int64 {
	for _, it := range items[at:] {
		if it.entry != nil {
			return it.entry.Seq
		}
	}
	return 0
}

// endEvents ends every connection of subscribeEvents with an error.
func (n *Net) endEvents(f Fault, name string) {
	n.put(&item{raw: fmt.Appendf(nil, `{"$type":"error","error":%q,"message":"reconnect"}`, name), fault: f, passing: true, ends: true})
}

func eventInfo(name, message string) []byte {
	return fmt.Appendf(nil, `{"$type":"message","payload":{"$type":"%sinfo","name":%q,"message":%q}}`, eventsPrefix, name, message)
}

// encodeEvent returns the event as a frame of subscribeEvents.
func (e *Entry) encodeEvent(shift int64) []byte {
	const micros = "2006-01-02T15:04:05.000000Z"
	at := time.UnixMicro(e.TimeUS).UTC()
	b := fmt.Appendf(make([]byte, 0, 320+len(e.Record)), `{"$type":"message","payload":{"$type":"%s%s","seq":%d,"did":"%s","time":"%s"`,
		eventsPrefix, e.Kind, e.Seq+shift, e.DID, at.Format(micros))
	upstream := at.Format("2006-01-02T15:04:05.000Z")
	switch e.Kind {
	case "commit":
		b = fmt.Appendf(b, `,"rev":"%s","operation":"%s","collection":"%s","rkey":"%s"`, e.Rev, e.Operation, e.Collection, e.Rkey)
		if e.Record != nil {
			b = append(append(append(b, `,"record":`...), e.Record...), `,"cid":"`+e.CID+`"`...)
		}
	case "identity":
		b = fmt.Appendf(b, `,"identity":{"did":"%s","handle":"%s","seq":%d,"time":"%s"}`, e.DID, e.Handle, e.RelaySeq, upstream)
	case "account":
		b = fmt.Appendf(b, `,"account":{"active":%t,"did":"%s","seq":%d,"time":"%s"`, e.Active, e.DID, e.RelaySeq, upstream)
		if e.Status != "" {
			b = fmt.Appendf(b, `,"status":"%s"`, e.Status)
		}
		b = append(b, '}')
	case syncKind:
		b = fmt.Appendf(b, `,"sync":{"blocks":{"$bytes":"oWVyb290c4A"},"did":"%s","rev":"%s","seq":%d,"time":"%s"}`,
			e.DID, e.Rev, e.RelaySeq, upstream)
	}
	return append(b, "}}"...)
}
