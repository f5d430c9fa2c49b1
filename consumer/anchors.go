package consumer

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// name is what names an event on every host. Its strings may share memory with
// the frame.
type name struct {
	kind, operation            string
	did, collection, rkey, rev string
}

func nameOf(ev *Event) name {
	switch ev.Kind {
	case KindCommit:
		return name{kind: "commit", operation: ev.Operation.String(), did: ev.DID, collection: ev.Collection, rkey: ev.Rkey, rev: ev.Rev}
	case KindIdentity:
		return name{kind: "identity", did: ev.DID}
	case KindAccount:
		return name{kind: "account", did: ev.DID}
	}
	return name{kind: "other", did: ev.DID}
}

// hash makes an anchor of the name. The upper half stands for the account. It
// is stored: another hash would be another column.
func (n name) hash() int64 {
	const offset, prime = 2166136261, 16777619 // FNV-1a
	account, rest := uint32(offset), uint32(offset)
	for i := range len(n.did) {
		account = (account ^ uint32(n.did[i])) * prime
	}
	for _, part := range [...]string{n.kind, n.operation, n.collection, n.rkey, n.rev} {
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

func anchorOf(ev *Event) *schema.Anchor {
	n := nameOf(ev)
	return &schema.Anchor{Seq: ev.Seq, TimeUS: ev.TimeUS, Kind: n.kind, Operation: n.operation,
		DID: anchorText(n.did), Collection: anchorText(n.collection), Rkey: anchorText(n.rkey), Rev: anchorText(n.rev)}
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
const farthestLag = 24 * time.Hour

// trail is what a stream has brought last: the anchors of its position, and how
// far the dates of its events lag behind their revs. A rev is a stranger's
// word, so the median counts.
type trail struct {
	anchors schema.Anchors // of the position marked last
	lag     time.Duration  // of the position that the stream was resumed from

	recent [32]name // the latest events since then, in a ring
	events int      // how many there were

	lags [100]time.Duration // of the latest revs, in a ring
	revs int                // how many there were
	rev  string             // the last one: the operations of one commit count once
}

func newTrail(from *schema.Position) trail {
	return trail{anchors: from.Anchors, lag: from.Lag()}
}

func (t *trail) add(ev *Event) {
	t.recent[t.events%len(t.recent)] = nameOf(ev)
	t.events++
	if ev.Rev == "" || ev.Rev == t.rev {
		return
	}
	t.rev = ev.Rev
	if written, ok := revTime(ev.Rev); ok {
		t.lags[t.revs%len(t.lags)] = min(max(0, happened(ev).Sub(written)), farthestLag)
		t.revs++
	}
}

// mark gives a position what is known of the events up to it.
func (t *trail) mark(p *schema.Position) {
	var anchors schema.Anchors
	n := 0
	put := func(anchor int64) {
		same := func(other int64) bool { return sameAccount(anchor, other) }
		if anchor != 0 && n < len(anchors) && !slices.ContainsFunc(anchors[:n], same) {
			anchors[n] = anchor
			n++
		}
	}
	for i := range min(t.events, len(t.recent)) {
		put(t.recent[(t.events-1-i)%len(t.recent)].hash())
	}
	for _, anchor := range t.anchors {
		put(anchor)
	}
	t.anchors, p.Anchors = anchors, anchors
	t.events = 0
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
