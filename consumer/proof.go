package consumer

import (
	"github.com/weir-social/weir/schema"
)

// A Proof is a check of a message that takes longer than its decoding, such as the
// check of a signature whose key must be fetched.
type Proof interface {
	// Start begins the check, if an event of the message is to be stored. It is called
	// before the next message is decoded. If the message has an ID, it is called once
	// that ID is known to be new. It may wait, for a bounded time.
	Start()
	// Outcome returns what was shown. It waits, for a bounded time.
	Outcome() ProofOutcome
}

// A ProofOutcome is what a Proof has shown.
type ProofOutcome struct {
	Cause   string         // why the events are not stored; "": they are proven
	Retry   bool           // the cause may pass: the events wait as dead letters and are checked again
	Drop    bool           // the events leave no dead letter, because too many were refused
	Chained *ChainedCommit // the commit in the chain of its account, if that is verified; nil: it is not
	Lost    bool           // the account may have changed in a way that is not stored: it must be compared with its repository
}

// A ChainedCommit is a proven commit in the chain of its account's commits.
type ChainedCommit struct {
	Author, Revision string
	Data             []byte // hash of the repository after the commit
	Prev             []byte // the hash before the commit, as its operations show; nil: this is the first commit
	Broken           string // why Prev is not shown; "": it is shown
}

// prove drops the frames that were seen before and waits for the proofs of the others.
// Events that are not proven become dead letters; for each, prove calls deadLettered
// with its collection.
func (b *batch) prove(seen map[ID]bool, deadLettered func(collection string)) {
	if !b.unproven {
		return
	}
	b.unproven = false
	for _, f := range b.frames {
		if f.ID != (ID{}) && f.proof != nil && !seen[f.ID] {
			f.proof.Start()
		}
	}
	events, frames, at := b.events[:0], b.frames[:0], 0
	for _, f := range b.frames {
		of := b.events[at : at+f.events]
		at += f.events
		if seen[f.ID] {
			continue
		}
		var v ProofOutcome
		if f.proof != nil {
			v, f.proof = f.proof.Outcome(), nil
		}
		if len(of) == 0 { // the frame is only kept
			if v.Cause == "" {
				frames = append(frames, f)
			}
			continue
		}
		if c := v.Chained; c != nil {
			b.chained = append(b.chained, schema.ChainedCommit{DID: c.Author, Rev: c.Revision, Data: c.Data, Prev: c.Prev, Broken: c.Broken})
		}
		chained := of[0].Kind == KindChained // it writes nothing itself
		if v.Cause == "" {
			switch {
			case !chained:
				events, frames = append(events, of...), append(frames, f)
			case f.beside:
				f.events = 0
				frames = append(frames, f)
			}
			continue
		}
		if v.Lost {
			b.desynchronize(of[0].Author, v.Cause, of[0].Revision)
		}
		if last := len(of) - 1; of[last].DeadLetterID != 0 { // the dead letter has the whole frame
			of, v.Drop = of[last:], false
		} else if b.wire.Shared {
			of = of[last:]
		}
		for i := range of {
			if v.Drop || chained {
				continue
			}
			b.deadLetters = append(b.deadLetters, b.unprovenLetter(&of[i], &v))
			deadLettered(of[i].Collection)
		}
	}
	clear(b.events[len(events):])
	b.events, b.frames = events, frames
	if b.kept != nil {
		b.kept = keptOf(frames)
	}
}

// unprovenLetter returns the dead letter of an event that is not proven.
func (b *batch) unprovenLetter(ev *Event, v *ProofOutcome) schema.DeadLetter {
	deadLetter := b.deadLetter(ev)
	deadLetter.Stage, deadLetter.Cause = schema.StageVerify, v.Cause
	if b.wire.Shared {
		deadLetter.Raw = ev.Raw
	}
	if v.Retry {
		deadLetter.Class = schema.ClassRetryable
	}
	return deadLetter
}
