package consumer

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// maxAnchors is how many anchors a position holds.
const maxAnchors = len(schema.Anchors{})

func (p *Place) named() bool { return p.Identity != (Identity{}) }

// hash makes an anchor of the identity. The upper half stands for the account. It
// is stored: another hash would be another column.
func (n *Identity) hash() int64 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	account, rest := uint32(offset), uint32(offset)
	for i := range len(n.Author) {
		account = (account ^ uint32(n.Author[i])) * prime
	}
	for _, part := range [...]string{n.Kind, n.Operation, n.Collection, n.Key, n.Revision} {
		for i := range len(part) {
			rest = (rest ^ uint32(part[i])) * prime
		}
		rest = (rest ^ 0xFF) * prime // no part of a name ends in this byte
	}
	if hash := int64(account)<<32 | int64(rest); hash != 0 { //nolint:gosec // the bits count, not the sign
		return hash
	}
	return 1 // zero stands for no anchor
}

// sameAccount reports whether two anchors are of events of the same account.
func sameAccount(a, b int64) bool { return a>>32 == b>>32 }

// anchor is the place of a frame that is named, as it is stored.
func (p *Place) anchor() *schema.Anchor {
	n := &p.Identity
	return &schema.Anchor{Seq: p.Seq, TimeUS: p.TimeUS, Kind: n.Kind, Operation: n.Operation,
		DID: anchorText(n.Author), Collection: anchorText(n.Collection), Rkey: anchorText(n.Key), Rev: anchorText(n.Revision)}
}

// anchorText makes a part of a name storable: events that are not stored are not
// checked, and may be the anchor all the same. It copies: the anchor outlives
// the frame.
func anchorText(s string) string {
	s = s[:min(len(s), 512)]
	return strings.ReplaceAll(strings.ToValidUTF8(strings.Clone(s), "\uFFFD"), "\x00", "\uFFFD")
}

// farthestLag bounds how much later than it was written an event is believed to
// have been dated.
const maxLag = 24 * time.Hour

// trail is what a stream has brought last: the anchors of its position, and how
// far the dates of its frames lag behind their revs. A rev is a stranger's
// word, so the median counts.
type trail struct {
	anchors schema.Anchors // of the position marked last
	last    *schema.Anchor // of that position; nil: it cannot be asked for
	numbers bool           // the sequence numbers of the anchors are kept too
	lag     time.Duration  // of the position that the stream was resumed from

	recent [32]anchored // the latest named frames since then, in a ring
	frames int          // how many there were
	tail   Place        // the last one of them

	lags [100]time.Duration // of the latest revs, in a ring
	revs int                // how many there were
	rev  string             // the last one: the operations of one commit count once
}

// anchored is a frame that may become an anchor.
type anchored struct {
	Identity
	seq int64
}

// newTrail goes on from a position. Where the numbers of this connection may be
// others than the position's, those of its anchors are forgotten.
func newTrail(from *schema.Position, sameNumbers, keepNumbers bool) trail {
	t := trail{anchors: from.Anchors, numbers: keepNumbers, lag: from.Lag()}
	if sameNumbers {
		t.last = from.Anchor
		return t
	}
	for i := range t.anchors {
		t.anchors[i].Seq = 0
	}
	return t
}

func (t *trail) add(p *Place) {
	if !p.named() {
		return
	}
	at := &t.recent[t.frames%len(t.recent)]
	at.Identity = p.Identity
	if t.numbers {
		at.seq = p.Seq
	}
	t.frames++
	t.tail = *p
	rev := p.Identity.Revision
	if rev == "" || rev == t.rev {
		return
	}
	t.rev = rev
	if written, ok := revTime(rev); ok {
		t.lags[t.revs%len(t.lags)] = min(max(0, p.happened().Sub(written)), maxLag)
		t.revs++
	}
}

// addAnchor appends an anchor to n others, unless there is no room, or one of its
// account. It returns how many there are then.
func addAnchor(anchors *schema.Anchors, n int, anchor schema.AnchorHash) int {
	same := func(other schema.AnchorHash) bool { return sameAccount(anchor.Hash, other.Hash) }
	if anchor.Hash == 0 || n == len(anchors) || slices.ContainsFunc(anchors[:n], same) {
		return n
	}
	anchors[n] = anchor
	return n + 1
}

// mark gives a position what is known of the frames up to it.
func (t *trail) mark(p *schema.Position) {
	var anchors schema.Anchors
	n := 0
	for i := range min(t.frames, len(t.recent)) {
		at := &t.recent[(t.frames-1-i)%len(t.recent)]
		n = addAnchor(&anchors, n, schema.AnchorHash{Hash: at.hash(), Seq: at.seq})
	}
	for _, anchor := range t.anchors {
		n = addAnchor(&anchors, n, anchor)
	}
	if t.frames > 0 {
		t.last = t.tail.anchor()
	}
	t.anchors, p.Anchors, p.Anchor = anchors, anchors, t.last
	t.frames, t.tail = 0, Place{}
	clear(t.recent[:]) // they keep frames in memory
	p.WrittenAt = p.LastEvent.Add(-t.median())
}

// median is the lag of the latest events.
func (t *trail) median() time.Duration {
	n := min(t.revs, len(t.lags))
	if n == 0 {
		return t.lag
	}
	sorted := t.lags
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// revTime is the time inside a rev, which is a TID; not ok where it is none.
func revTime(rev string) (at time.Time, ok bool) {
	if len(rev) != 13 || rev[0] > 'j' {
		return at, false
	}
	var bits uint64
	for i := range len(rev) {
		switch c := rev[i]; {
		case c >= '2' && c <= '7':
			bits = bits<<5 | uint64(c-'2')
		case c >= 'a' && c <= 'z':
			bits = bits<<5 | uint64(c-'a'+6)
		default:
			return at, false
		}
	}
	return time.UnixMicro(int64(bits >> 10 & (1<<53 - 1))), true //nolint:gosec // 53 bits
}
