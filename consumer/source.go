package consumer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// A Source is a network stream that can be resumed. It dials, fails over and backs off by
// itself, and has no access to the database. Each package below this one that implements
// it reads one wire.
type Source interface {
	// Capabilities returns what the source and its servers can do. It never
	// changes.
	Capabilities() Capabilities

	// Connect blocks until one endpoint accepts the connection or ctx ends. Before every
	// attempt it calls at to get the cursor for that host (the host and port of the
	// endpoint's URL). After every failed attempt, before the wait that follows, it calls
	// report, which may be nil.
	Connect(ctx context.Context, at func(host string) Cursor, report func(Attempt)) (Conn, error)
}

// Capabilities describe a source. The consumer depends on these, never on the wire.
type Capabilities struct {
	// Wire decodes frames of this source again when their dead letters are retried.
	Wire Wire
	// TimeCursor: the server accepts a time as a cursor. Without it, a resume on
	// another host starts at the server's oldest event.
	TimeCursor bool
	// Informal: anybody may have set an event's date, so revisions must confirm where a
	// connection by time begins.
	Informal bool
	// Exclusive: the server may start after the frame of the cursor.
	Exclusive bool
	// Anchors is how many of the last anchors a resume requests; one of them must be
	// delivered. 0 and 1: only the last. More, up to 8, are for servers that may omit
	// events that they delivered before.
	Anchors int
	// Rewind is how far before the position a resume by time starts; 0: 5 minutes.
	Rewind time.Duration
	// Complete: a connection requests everything since the cursor, and has it before its
	// first frame with a place. Message.Missed names what it could not get, so a resume
	// needs no other proof.
	Complete bool
	// Overlaps: several streams of this source bring the same accounts.
	Overlaps bool
	// Filters: the server filters what it sends. It may be silent for a long time while it
	// scans its past.
	Filters bool
	// Accounts is how many accounts one connection can request; 0: the server does
	// not filter by account.
	Accounts int
}

// A Filter selects the events that a server is asked to send.
type Filter struct {
	// Collections are names or prefixes such as app.bsky.feed.*; none: all
	// collections. Account and identity events are always included.
	Collections []string
	// Everyone requests the whole network. Otherwise only the events of Accounts come; no
	// events come if that list is empty.
	Everyone bool
	Accounts []string
}

// A Filtered source is one whose servers filter.
type Filtered interface {
	Source

	// FilterHash returns a hash of the filter: equal filters have equal hashes. A
	// cursor is valid for one filter.
	FilterHash() string

	// SetFilter changes the filter of the current connection and of later ones. It
	// is safe for concurrent use.
	SetFilter(ctx context.Context, f Filter) error
}

// Refiltered is a connection of a Filtered source whose filter may change while it is open.
type Refiltered interface {
	// Refiltered reports whether that has happened. Its events are no longer all those of one filter, even if it has
	// its first one again, so its position is of none. It is safe for concurrent use.
	Refiltered() bool
}

// A Wire is a format of frames.
type Wire struct {
	// Name is stored with dead letters. A format keeps its name in every version.
	Name string
	// Decode decodes a frame into m, which it resets. Unreadable parts become
	// m.Malformed. Only one goroutine calls it.
	Decode func(frame []byte, arrived time.Time, m *Message)
	// Excerpt returns an input that Decode decodes into a single event: the event
	// of the frame with this Part. nil: every frame has one event and is that
	// input.
	Excerpt func(frame []byte, part int) []byte
	// Shared: an excerpt is as long as its frame. A refused frame leaves one dead letter
	// for all its events, and whoever keeps it keeps it whole.
	Shared bool
	// Compact returns a shorter form of a frame that Decode decodes into the same events;
	// nil: there is none.
	Compact func(frame []byte) []byte
	// JSON returns the JSON of a compact frame; nil: frames are JSON, or cannot become it.
	JSON func(frame []byte) []byte
	// Says returns the author's date of a compact frame, and what it says: if one of these events must be forgotten, so
	// must the frame. Only one goroutine calls it. nil: what Decode decodes, each by itself.
	Says func(frame []byte) (at time.Time, said []Event)
	// Resends: servers may send an event again at any later time.
	Resends bool
}

// input returns the bytes of an event that its dead letter keeps.
func (w *Wire) input(ev *Event) []byte {
	if w.Excerpt == nil {
		return ev.Raw
	}
	return w.Excerpt(ev.Raw, ev.Part)
}

// A Conn is one open connection of a Source.
type Conn interface {
	// Host returns the host and port of the connection. Sequence numbers are valid
	// for one host.
	Host() string

	// Next blocks until the next frame. The caller owns its bytes. Only one
	// goroutine calls it, and it must do so without pause, because Next answers the
	// server's pings. Any error ends the connection, and so does the end of ctx,
	// which is the same in every call.
	Next(ctx context.Context) (Frame, error)

	// Decode decodes a frame into m, which it resets. Only one goroutine calls it,
	// a different one than Next's. Unreadable parts become m.Malformed; an error
	// ends the connection.
	Decode(f Frame, m *Message) error

	// Proven returns the latest time at which the connection was alive with nothing
	// unread before it: when a frame arrived, or when a ping was sent that has been
	// answered.
	Proven() time.Time

	// Close ends the connection at once.
	Close() error
}

// An Attempt is a failed attempt to connect.
type Attempt struct {
	Endpoint string        // the dialled URL
	Failed   int           // failures since the last event, including this one
	Err      error         // why
	Wait     time.Duration // until the next attempt, at most
}

// ErrCursorRefused is in the error of Connect, Next or Decode if the server cannot start at
// the requested cursor. The next connection requests an earlier start.
var ErrCursorRefused = errors.New("the server refused the cursor")

// CursorKind is the unit of a cursor.
type CursorKind string

const (
	CursorNone CursorKind = ""     // start at the live tip
	CursorSeq  CursorKind = "seq"  // a sequence number of one host; 0: its oldest event
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
	Truncated  bool      // longer than the read limit: Data holds the beginning
	Arrived    time.Time // when the last byte was read
	Earliest   time.Time // the same by the clock that is behind, ours or the database's; set before Decode
}

// A Message is a decoded frame: its place in the stream and its events. Strings and
// bytes may share memory with the frame.
type Message struct {
	FramePosition
	Raw       []byte // the frame, decompressed
	Events    []Event
	Malformed []*Malformed // the unreadable parts of the frame
	Proof     Proof        // what must hold before the events are stored; nil: nothing more
	Missed    *Missed      // what the server did not send, although it may have it; nil: nothing
}

// Missed is an interval that a server cannot be made to send completely.
type Missed struct {
	From, To time.Time
	Reason   string
	Problem  string // why no other way brings it
}

// An ID identifies the events of a frame on all servers of a network.
type ID [16]byte

// A FramePosition is where a frame is in its stream.
type FramePosition struct {
	Seq      int64     // the server's sequence number; 0: none
	TimeUS   int64     // the server's time in microseconds since 1970, not unique; 0: the frame does not move the position
	Arrived  time.Time // set by the consumer
	Identity Identity
	At       time.Time // when the frame was made, by the relay's clock; zero: unknown
	Still    bool      // the frame does not move the position, although it has a time
	ID       ID        // events with an ID that was stored are not proven and stored again; zero: none
}

// moves reports whether the position may be set after the frame.
func (p *FramePosition) moves() bool { return p.TimeUS > 0 && !p.Still }

// An Identity names a frame on every host of its network; anchors are made of it.
// Without a revision it names only an account, and many frames share it. The zero
// Identity names nothing: a keep-alive is no anchor.
type Identity struct {
	Kind, Operation                   string
	Author, Collection, Key, Revision string
}

// Reset clears m for a new frame, keeping its memory.
func (m *Message) Reset(raw []byte, arrived time.Time) {
	m.FramePosition = FramePosition{Arrived: arrived}
	m.Raw, m.Events, m.Malformed, m.Proof, m.Missed = raw, m.Events[:0], m.Malformed[:0], nil, nil
}

// Add appends an empty event.
func (m *Message) Add() *Event {
	m.Events = append(m.Events, Event{Part: len(m.Events)})
	return &m.Events[len(m.Events)-1]
}

// Refuse replaces the events by the reason why the frame is malformed. The frame keeps its
// place.
func (m *Message) Refuse(bad *Malformed) {
	m.Identity, m.At, m.ID, m.Proof = Identity{}, time.Time{}, ID{}, nil
	m.Events, m.Malformed = m.Events[:0], append(m.Malformed[:0], bad)
}

// Locate copies the frame's fields to its events.
func (m *Message) Locate() {
	for i := range m.Events {
		ev := &m.Events[i]
		ev.Seq, ev.TimeUS, ev.Arrived, ev.Raw = m.Seq, m.TimeUS, m.Arrived, m.Raw
	}
}

// Kind is the kind of an event.
type Kind uint8

const (
	KindOther    Kind = iota // unknown to this source: counted and ignored
	KindCommit               // a record was written or deleted
	KindIdentity             // an account's handle may have changed
	KindAccount              // an account's status changed
	KindSync                 // an account's repository is at a revision whose changes are not sent
	KindErasure              // everything of an account up to a revision must go, and not come back
	KindChained              // a commit without a wanted record, whose place in the chain of commits is proven
)

// Operation is what a commit did to a record.
type Operation uint8

const (
	Create Operation = iota + 1
	Update
	Delete
)

// InvalidHandle is the Event.Handle of an account whose handle is not valid.
const InvalidHandle = schema.InvalidHandle

// An Event is a change of a record or an account. The source checks its identity
// (the types of the fields, and the syntax of author, collection, key and
// revision), but not the meaning of a record.
type Event struct {
	Kind   Kind
	Author string // the account
	Part   int    // its index in the frame, see Wire.Excerpt

	// For a commit.
	Operation  Operation
	Collection string
	Key        string
	Revision   string // sorts by time; set for a sync, too
	CID        string // "" on delete, or if the network has none
	Record     []byte // valid JSON object, no NUL, no lone surrogate; nil on delete
	Replaced   int    // NULs and lone surrogates replaced by U+FFFD in Record

	// For an erasure, and for a commit if its network does not put the date into the
	// record.
	Written time.Time // when the author claims to have written it; zero: see the record's createdAt
	Lasting bool      // for a deletion: a server may send the record at any later time, so the tombstone stays

	Expires time.Time // for a record: when its author wants it deleted; zero: never

	// For an identity: the handle in the event, InvalidHandle, or "".
	Handle string

	// For an account.
	Active bool
	Status string // if not active: deactivated, suspended, takendown, deleted, …

	// For an identity and an account: when it happened, by the relay's clock.
	At time.Time

	// The consumer copies these from the message.
	TimeUS  int64
	Seq     int64
	Arrived time.Time
	Raw     []byte

	DeadLetterID int64 // the dead letter being retried; 0: the event is from the stream
}

// Malformed is a frame, or a part of one, that cannot be decoded.
type Malformed struct {
	Cause      string // what is wrong, in English
	Path       string // where: a JSON pointer such as "/commit/rev"; may be ""
	Expected   string // may be ""
	Received   string // may be ""; shortened
	Collection string // the collection that the input claims, unchecked; may be ""
	Author     string // the account that the input claims; "" if unreadable
	Key        string // the record's key, which implies a checked Collection; "" if unreadable
	Revision   string // the record's revision; may be ""
	Lost       bool   // an event of Author may be lost, at Revision if that is known: the account must be compared with its repository
	Raw        []byte // an input that the decoder rejects for the same reason: the frame, or an excerpt of it
	Drop       bool   // leave no dead letter, because too many inputs were refused; a retried dead letter stays
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

// MaxQuoted is how many bytes of an invalid value a Malformed quotes.
const MaxQuoted = 80

// Shorten makes text from the network fit to be shown and stored in a Malformed.
func Shorten(s string) string {
	if len(s) > MaxQuoted {
		s = s[:MaxQuoted] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
