package simnet

import (
	"fmt"
	"maps"
	"slices"
)

// Forgery is a way in which a relay can lie about an account's commits.
type Forgery string

// The forgeries.
const (
	OtherKey      Forgery = "other-key"      // a new post, signed with a key that the account never had
	FormerKey     Forgery = "former-key"     // a new post, signed with the key from before the last rotation
	HighS         Forgery = "high-s"         // a new post, signed with the account's key, in the form that the network refuses
	WrongBlock    Forgery = "wrong-block"    // the last commit, with another record in place of its own
	AlteredRecord Forgery = "altered-record" // the last commit, with an altered record under its own record's CID
	Replay        Forgery = "replay"         // an old commit again, as new; of a record that has changed since, if there is one
)

// Forgeries returns all forgeries.
func Forgeries() []Forgery {
	return []Forgery{OtherKey, FormerKey, HighS, WrongBlock, AlteredRecord, Replay}
}

// ForgedText is in the text of every record that is only in forgeries.
const ForgedText = "nobody wrote this"

// forgedKind is the kind of an entry that only the relay sends, and that is not true.
const forgedKind = "forged"

// relayOnly reports whether the v1 wire of Jetstream has no such event.
func (e *Entry) relayOnly() bool { return e.Kind == syncKind || e.Kind == forgedKind || e.Resynced }

// RotateKey gives an account another key, and sends the #identity that announces it.
func (n *Net) RotateKey(did string) error {
	return n.act(did, func(m *model, a *person) error {
		a.rotation++
		e := m.beginEvent(m.clock())
		e.Kind, e.DID, e.Handle, e.Rotation = "identity", did, a.handle, a.rotation
		return nil
	})
}

// Forge makes the relay send a forgery or a hostile commit. Once it has been sent, Fired counts it
// under its name.
func (n *Net) Forge(f Forgery, did string) error {
	if known := slices.Concat(Forgeries(), HostileCommits()); !slices.Contains(known, f) {
		return fmt.Errorf("unknown forgery %q: expected one of %v", f, known)
	}
	wrote := slices.ContainsFunc(n.log.Entries(), func(e *Entry) bool { return e.DID == did && e.Record != nil })
	return n.act(did, func(m *model, a *person) error {
		switch {
		case f == FormerKey && a.rotation == 0:
			return fmt.Errorf("forge a commit of %s: it never had another key", did)
		case !wrote:
			return fmt.Errorf("forge a commit of %s: it has written nothing", did)
		}
		e := m.beginEvent(m.clock())
		e.Kind, e.DID, e.Forgery, e.Rev, e.Rkey = forgedKind, did, f, m.tid(m.now), m.tid(m.now)
		return nil
	})
}

// forge returns the message of a forgery, without its number and time. The repository does not
// change.
func (r *repository) forge(n *Net, e *Entry) object {
	forged, kind := *r, e.Forgery
	forged.lastWrite, forged.commits = nil, nil
	if r.lastWrite == nil {
		kind = OtherKey // the account was deleted meanwhile
	}
	switch kind {
	case FormerKey:
		forged.key = n.keyOf(r.did, r.rotation-1)
	case HighS:
		forged.highS = true
	case WrongBlock, AlteredRecord:
		return r.spoilt(kind)
	case Replay:
		return r.replayed()
	case OtherKey:
		forged.key = n.keyOf("somebody else", 0)
	default:
		return forged.hostile(e)
	}
	record := fmt.Appendf(nil, `{"$type":%q,"text":%q,"createdAt":%q}`, post, ForgedText, stamped(e.TimeUS))
	return forged.commit([]*Entry{{DID: r.did, Operation: "create", Collection: post, Rkey: e.Rkey, Rev: e.Rev, Record: record}})
}

// spoilt returns the last commit with another record.
func (r *repository) spoilt(f Forgery) object {
	message := maps.Clone(r.lastWrite.message)
	blocks := slices.Clone(r.lastWrite.blocks)
	last := &blocks[len(blocks)-1] // records are the last blocks
	raw := recordBlock(fmt.Appendf(nil, `{"$type":%q,"text":%q}`, post, ForgedText))
	if *last = (repoBlock{last.cid, raw}); f == WrongBlock {
		last.cid = cidOfBlock(raw)
	}
	message["blocks"] = carOf(blocks)
	return message
}

// replayed returns the first commit with a record that was changed later; if there is none, the
// first commit.
func (r *repository) replayed() object {
	for _, message := range r.commits {
		for _, op := range message["ops"].([]any) {
			op := op.(object)
			if now, _ := r.tree.get(op["path"].(string)); op["cid"] != nil && op["cid"] != now {
				return message
			}
		}
	}
	return r.commits[0]
}
