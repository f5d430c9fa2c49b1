package consumer

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// maxAnchors is how many anchors a position holds.
const maxAnchors = len(schema.Anchors{})

func (p *FramePosition) named() bool { return p.Identity != (Identity{}) }

// hash returns the anchor's hash of the identity. Its upper half identifies the
// account. It is stored: do not change the function without a migration.
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
		rest = (rest ^ 0xFF) * prime // a separator: no part ends in this byte
	}
	if hash := int64(account)<<32 | int64(rest); hash != 0 { // the sign has no meaning
		return hash
	}
	return 1 // zero means no anchor
}

// sameAccount reports whether two anchors belong to the same account.
func sameAccount(a, b int64) bool { return a>>32 == b>>32 }

// anchor returns the place of a named frame as a stored anchor.
func (p *FramePosition) anchor() *schema.Anchor {
	n := &p.Identity
	return &schema.Anchor{Seq: p.Seq, TimeUS: p.TimeUS, Kind: n.Kind, Operation: n.Operation,
		DID: anchorText(n.Author), Collection: anchorText(n.Collection), Rkey: anchorText(n.Key), Rev: anchorText(n.Revision)}
}

// anchorText makes text from the network storable: an anchor may come from an event
// that is not stored and therefore not checked. It copies, because the anchor
// outlives the frame.
func anchorText(s string) string {
	s = s[:min(len(s), 512)]
	return strings.ReplaceAll(strings.ToValidUTF8(strings.Clone(s), "\uFFFD"), "\x00", "\uFFFD")
}

// maxLag is the largest plausible difference between the time when an event was
// written and the date that the server gives it.
const maxLag = 24 * time.Hour

// recentAnchors holds the most recent frames of a stream: the anchors of its position, and
// how far the frames' dates lag behind their revs. Clients choose revs, so the lag
// is a median.
type recentAnchors struct {
	anchors schema.Anchors // of the last marked position
	last    *schema.Anchor // of that position; nil: it cannot be requested
	numbers bool           // the anchors keep their sequence numbers
	lag     time.Duration  // of the position from which the stream resumed

	recent [32]anchored  // a ring of the latest named frames since then
	frames int           // how many in all
	tail   FramePosition // the last of them

	lags [100]time.Duration // a ring of the lags of the latest revs
	revs int                // how many in all
	rev  string             // the last rev: the operations of one commit count once
}

// anchored is a frame that may become an anchor.
type anchored struct {
	Identity
	seq int64
}

// newRecentAnchors continues from a position.
func newRecentAnchors(from *schema.Position) recentAnchors {
	return recentAnchors{anchors: from.Anchors, last: from.Anchor, lag: from.Lag()}
}

// renumbered drops the anchors' sequence numbers: this connection may number frames differently.
func (t *recentAnchors) renumbered() {
	t.last = nil
	for i := range t.anchors {
		t.anchors[i].Seq = 0
	}
}

func (t *recentAnchors) add(p *FramePosition) {
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
	if written, ok := RevTime(rev); ok {
		t.lags[t.revs%len(t.lags)] = min(max(0, p.happened().Sub(written)), maxLag)
		t.revs++
	}
}

// addAnchor appends an anchor to the first n, unless they are full or contain one
// of the same account. It returns the new count.
func addAnchor(anchors *schema.Anchors, n int, anchor schema.AnchorHash) int {
	same := func(other schema.AnchorHash) bool { return sameAccount(anchor.Hash, other.Hash) }
	if anchor.Hash == 0 || n == len(anchors) || slices.ContainsFunc(anchors[:n], same) {
		return n
	}
	anchors[n] = anchor
	return n + 1
}

// mark sets the anchors and the lag of a position.
func (t *recentAnchors) mark(p *schema.Position) {
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
	t.frames, t.tail = 0, FramePosition{}
	clear(t.recent[:]) // releases the frames' memory
	p.WrittenAt = p.LastEvent.Add(-t.median())
}

// median returns the median lag of the latest events.
func (t *recentAnchors) median() time.Duration {
	n := min(t.revs, len(t.lags))
	if n == 0 {
		return t.lag
	}
	sorted := t.lags
	slices.Sort(sorted[:n])
	return sorted[n/2]
}

// RevTime returns the time in a rev, which is a TID; ok is false if it is no TID.
func RevTime(rev string) (at time.Time, ok bool) {
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
	return time.UnixMicro(int64(bits >> 10 & (1<<53 - 1))), true // 53 bits
}
