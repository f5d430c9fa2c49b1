package consumer

import (
	"context"
	"time"
)

// A Source is a network stream that can be resumed. It dials, fails over and
// backs off by itself; it knows no database. One folder beside this package
// implements it for one wire.
type Source interface {
	// Connect blocks until one endpoint accepts the connection or ctx ends.
	// For every attempt it asks at for the cursor to send to that host (the
	// host and port of the endpoint's URL). report, which may be nil, is told
	// of every failed attempt, before the wait that follows it.
	Connect(ctx context.Context, at func(host string) Cursor, report func(Attempt)) (Conn, error)
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

	// Decode reads a frame. It is called from one goroutine, another than
	// Next's. A frame that cannot be read gives a *Malformed; the connection
	// stays good.
	Decode(Frame) (Event, error)

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
	CursorSeq  CursorKind = "seq"  // a sequence number of one host, inclusive
	CursorTime CursorKind = "time" // microseconds since 1970, inclusive
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

// Kind says what an event is about.
type Kind uint8

const (
	KindOther    Kind = iota // of a kind this source does not know: counted, ignored
	KindCommit               // a record was written or deleted
	KindIdentity             // a DID's handle may have changed
	KindAccount              // an account's status changed
)

// Operation is what a commit did to a record.
type Operation uint8

const (
	Create Operation = iota + 1
	Update
	Delete
)

// An Event is one decoded frame. Its strings and bytes may share memory with
// the frame it was read from. Only the identity of the event is checked by the
// source (JSON, UTF-8, the types of the fields and the syntax of DID,
// collection, rkey and rev); what a record means is not.
type Event struct {
	Kind    Kind
	DID     string
	TimeUS  int64 // the server's clock, microseconds since 1970; not unique
	Seq     int64 // the server's sequence number; 0 where the server gives none
	Arrived time.Time

	// Of a commit.
	Operation  Operation
	Collection string
	Rkey       string
	Rev        string // a TID; sorts by time
	CID        string // "" on delete
	Record     []byte // valid JSON object, no NUL, no lone surrogate; nil on delete
	Replaced   int    // NULs and lone surrogates replaced by U+FFFD in Record

	// Of an identity: the handle the network gives, "" when it gives none.
	Handle string

	// Of an account.
	Active bool
	Status string // why not active: deactivated, suspended, takendown, deleted, …

	// Of an identity and an account: when it happened, by the relay's clock.
	At time.Time

	Raw []byte // the frame's JSON, for parking

	Letter int64 // the dead letter that is replayed; 0: the event comes from the stream
}

// Malformed is a frame that could not be read as an event.
type Malformed struct {
	Cause      string // what is wrong, for a person
	Path       string // where: a JSON pointer such as "/commit/rev"; may be ""
	Expected   string // may be ""
	Received   string // may be ""; shortened
	Collection string // what it says it is of, as far as it was read: a stranger's word, unchecked; may be ""
	DID        string // whose event it says it is; "" where that cannot be read
	Rkey       string // of which record, in Collection, which is checked then; "" where that cannot be read
	Rev        string // of that record; may be ""
	Raw        []byte // the frame's JSON, or the frame's bytes where it is not JSON
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
