// Package firehose is a source that reads com.atproto.sync.subscribeRepos, the stream of
// a relay or of a single server. A frame is one change of an account or a signed commit
// of its repository, with the blocks that prove it.
//
// An event is emitted only if its record has the CID that the operation names, and if
// the repository's tree has that CID at the path, or no record there after a deletion.
// With a Verifier, the commit must also be signed by the account's key. Without one, a
// server that lies can invent a whole commit. Unless the chain of commits is checked, a
// server can leave out operations and commits.
package firehose

import (
	"time"

	"github.com/weir-social/weir/consumer"
)

// The network's limits. A sender that exceeds one is broken or hostile.
const (
	maxFrame      = 5_000_000 // bytes; relays do not read longer ones
	maxBlocks     = 2_000_000 // bytes of a commit's CAR
	maxOperations = 200       // in one commit
	maxRecord     = 1 << 20   // bytes; servers differ between this and 1,000,000
	maxSeq        = 1<<53 - 1 // sequence numbers must survive JavaScript
)

// maxTimeUS is about the last microsecond of the year 9999: Postgres and RFC 3339
// can both represent it.
const maxTimeUS = 253402300799000000

// WireName is stored with dead letters and kept frames.
const WireName = "firehose"

// The types of messages.
const (
	typeCommit   = "#commit"
	typeSync     = "#sync"
	typeIdentity = "#identity"
	typeAccount  = "#account"
	typeInfo     = "#info"
)

// Wire returns the wire of subscribeRepos. A commit has one event per operation of a
// wanted collection; if wanted is nil, all collections are wanted. If there is no such
// operation, the commit's blocks are not read. A frame that cannot be read keeps its
// place if the place is readable. An operation that cannot be read is one Malformed; the
// others of its frame become events.
//
// With a verifier, events of a commit are stored only if the commit is signed by the
// account's key.
//
// Unknown fields, unknown kinds of frames and unknown types of messages are ignored.
func Wire(wanted func(collection string) bool, verifier *Verifier) consumer.Wire {
	d := &decoder{wanted: wanted, verifier: verifier}
	decode := func(frame []byte, arrived time.Time, m *consumer.Message) { d.decode(frame, arrived, m) }
	return consumer.Wire{Name: WireName, Decode: decode, Excerpt: excerpt}
}

// Names of notices.
const (
	FutureCursor    = "FutureCursor"    // an error: the cursor is ahead of the stream
	ConsumerTooSlow = "ConsumerTooSlow" // an error: too many events are waiting to be sent
	OutdatedCursor  = "OutdatedCursor"  // the cursor is older than anything the server keeps
)

// A Notice is a message from the server about the connection. It has no place in the
// stream.
type Notice struct {
	Name    string // may be unknown
	Message string // may be ""
	Fatal   bool   // an error frame: the server closes the connection
}

func (n *Notice) Error() string {
	if n.Message == "" {
		return n.Name
	}
	return n.Name + ": " + n.Message
}
