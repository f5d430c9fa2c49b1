package consumer

import (
	"context"
	"time"
)

// A Source is a network stream that can be resumed. It dials, fails over and
// backs off by itself; it knows no database. One folder beside this package
// implements it for one wire.
type Source interface {
	// Capabilities says what the source and its servers can do. It never changes.
	Capabilities() Capabilities

	// Connect blocks until one endpoint accepts the connection or ctx ends.
	// For every attempt it asks at for the cursor to send to that host (the
	// host and port of the endpoint's URL). report, which may be nil, is told
	// of every failed attempt, before the wait that follows it.
	Connect(ctx context.Context, at func(host string) Cursor, report func(Attempt)) (Conn, error)
}

// Capabilities are what the consumer needs to know of a source. It asks these,
// and never which wire the source speaks.
type Capabilities struct {
	// Wire reads a frame again that became a dead letter.
	Wire Wire
	// TimeCursor: the server accepts a time as a cursor. Without it, a resume on
	// another host reads again from the oldest event that the server has.
	TimeCursor bool
	// Exclusive: the server may begin after the frame that the cursor names.
	Exclusive bool
	// Anchors is how many of the last anchored frames a resume asks for. One of
	// them must be delivered. 0 and 1: the last one alone. More, up to 8, are for
	// servers that omit events which they delivered before.
	Anchors int
	// Filters: the server filters what it sends. It may be silent for long while it
	// looks through its past.
	Filters bool
	// Accounts is how many accounts one connection can ask for; 0: the server does
	// not filter by account.
	Accounts int
}

// A Filter is what a server is asked to send.
type Filter struct {
	// Collections are names, or beginnings of them as in app.bsky.feed.*; none:
	// all collections. Account and identity events come in any case.
	Collections []string
	// Everyone asks for the whole network. Else the events of Accounts come, and
	// where that list is empty, nothing does.
	Everyone bool
	Accounts []string
}

// A Filtered source is one whose servers filter.
type Filtered interface {
	Source

	// FilterHash names what the source asks for: equal filters have equal names. A
	// cursor holds for one filter.
	FilterHash() string

	// SetFilter changes what the source asks for: on the connection at work, and on
	// those to come. Any goroutine may call it.
	SetFilter(ctx context.Context, f Filter) error
}

// A Wire is a format of frames.
type Wire struct {
	// Name is stored with dead letters: the same format has the same name in every
	// version.
	Name string
	// Decode reads a frame into m, which it resets. What cannot be read becomes
	// m.Malformed. One goroutine calls it.
	Decode func(frame []byte, arrived time.Time, m *Message)
	// Excerpt returns an input that Decode reads into one event alone: the one of
	// the frame whose Part this is. nil: a frame has one event and is that input.
	Excerpt func(frame []byte, part int) []byte
}

// input is what a dead letter keeps of an event.
func (w *Wire) input(ev *Event) []byte {
	if w.Excerpt == nil {
		return ev.Raw
	}
	return w.Excerpt(ev.Raw, ev.Part)
}

// A Conn is one live connection of a Source.
type Conn interface {
	// Host is the host and port this connection was made to: what a sequence
	// number is bound to.
	Host() string

	// Next blocks for the next frame. The frame's bytes belong to the caller.
	// It is called from one goroutine, which must always be inside it: answers
	// to the server's pings are sent from here. Any error ends the connection,
	// and so does the end of ctx, which is the same in every call.
	Next(ctx context.Context) (Frame, error)

	// Decode reads a frame into m, which it resets. It is called from one
	// goroutine, another than Next's. What cannot be read becomes m.Malformed; an
	// error ends the connection.
	Decode(f Frame, m *Message) error

	// Proven is the latest moment at which the connection was known to be
	// alive with nothing unread before it: when a frame arrived, or when a
	// ping was sent that has been answered.
	Proven() time.Time

	// Close ends the connection at once.
	Close() error
}

// An Attempt is a failed try to connect.
type Attempt struct {
	Endpoint string        // the URL dialled
	Failed   int           // failures since the last event arrived, this one included
	Err      error         // why
	Wait     time.Duration // until the next try, at most
}

// CursorKind says what a cursor's number counts.
type CursorKind string

const (
	CursorNone CursorKind = ""     // no position yet: start at the live tip
	CursorSeq  CursorKind = "seq"  // a sequence number of one host; 0: the oldest event it has
	CursorTime CursorKind = "time" // microseconds since 1970
)

// A Cursor is a place in a stream to start reading from.
type Cursor struct {
	Kind  CursorKind
	Value int64
}

// A Frame is one message as it came over the wire.
type Frame struct {
	Data       []byte
	Compressed bool
	Truncated  bool      // longer than the read limit: Data holds its beginning
	Arrived    time.Time // when the last byte was read
}

// A Message is one decoded frame: its place in the stream, and any number of
// events. Its strings and bytes may share memory with the frame.
type Message struct {
	Place
	Raw       []byte // the frame, decompressed
	Events    []Event
	Malformed []*Malformed // what of the frame could not be read; the events are good
}

// A Place is where a frame stands in its stream.
type Place struct {
	Seq      int64     // the server's sequence number; 0 where the server gives none
	TimeUS   int64     // the server's clock, microseconds since 1970, not unique; 0: the frame has no place, and does not move the position
	Arrived  time.Time // set by the consumer
	Identity Identity
	At       time.Time // when the frame was made, by the relay's clock; zero: unknown
}

// An Identity names a frame on every host of its network: anchors are made of
// it. One without a revision names only an account, of which there are many such
// frames. The zero Identity names nothing: a keep-alive is no anchor.
type Identity struct {
	Kind, Operation                   string
	Author, Collection, Key, Revision string
}

// Reset empties m, keeping its memory, and takes over the frame.
func (m *Message) Reset(raw []byte, arrived time.Time) {
	m.Place = Place{Arrived: arrived}
	m.Raw, m.Events, m.Malformed = raw, m.Events[:0], m.Malformed[:0]
}

// Add appends an empty event.
func (m *Message) Add() *Event {
	m.Events = append(m.Events, Event{Part: len(m.Events)})
	return &m.Events[len(m.Events)-1]
}

// Refuse replaces what was read by the reason why the frame cannot be read. Its
// place stays.
func (m *Message) Refuse(bad *Malformed) {
	m.Identity, m.At = Identity{}, time.Time{}
	m.Events, m.Malformed = m.Events[:0], append(m.Malformed[:0], bad)
}

// locate gives the events what belongs to their frame.
func (m *Message) locate() {
	for i := range m.Events {
		ev := &m.Events[i]
		ev.Seq, ev.TimeUS, ev.Arrived, ev.Raw = m.Seq, m.TimeUS, m.Arrived, m.Raw
	}
}

// Kind says what an event is about.
type Kind uint8

const (
	KindOther    Kind = iota // of a kind this source does not know: counted, ignored
	KindCommit               // a record was written or deleted
	KindIdentity             // an account's handle may have changed
	KindAccount              // an account's status changed
)

// Operation is what a commit did to a record.
type Operation uint8

const (
	Create Operation = iota + 1
	Update
	Delete
)

// An Event is something that happened to a record or an account. Only its
// identity is checked by the source (the types of the fields, and the syntax of
// author, collection, key and revision); what a record means is not.
type Event struct {
	Kind   Kind
	Author string // the account
	Part   int    // which of its frame's events it is; see Wire.Excerpt

	// Of a commit.
	Operation  Operation
	Collection string
	Key        string
	Revision   string // sorts by time
	CID        string // "" on delete, and where the network has none
	Record     []byte // valid JSON object, no NUL, no lone surrogate; nil on delete
	Replaced   int    // NULs and lone surrogates replaced by U+FFFD in Record

	// Of an identity: the handle the network gives, "" when it gives none.
	Handle string

	// Of an account.
	Active bool
	Status string // why not active: deactivated, suspended, takendown, deleted, …

	// Of an identity and an account: when it happened, by the relay's clock.
	At time.Time

	// The consumer copies these from the message.
	TimeUS  int64
	Seq     int64
	Arrived time.Time
	Raw     []byte

	DeadLetterID int64 // the dead letter that is replayed; 0: the event comes from the stream
}

// Malformed is a frame, or a part of one, that could not be read as an event.
type Malformed struct {
	Cause      string // what is wrong, for a person
	Path       string // where: a JSON pointer such as "/commit/rev"; may be ""
	Expected   string // may be ""
	Received   string // may be ""; shortened
	Collection string // what it says it is of, as far as it was read: a stranger's word, unchecked; may be ""
	Author     string // whose event it says it is; "" where that cannot be read
	Key        string // of which record, in Collection, which is checked then; "" where that cannot be read
	Revision   string // of that record; may be ""
	Raw        []byte // an input that the wire's decoder refuses in the same way: the frame, or of a frame with many events an excerpt
}

func (m *Malformed) Error() string {
	s := m.Cause
	if m.Path != "" {
		s += " at " + m.Path
	}
	if m.Expected != "" {
		s += ": expected " + m.Expected + ", received " + m.Received
	}
	return s
}
