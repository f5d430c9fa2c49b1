package simnet

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Fault is a fault of the Jetstream server and of the relay.
type Fault string

// The faults.
const (
	Cut       Fault = "cut"       // every connection ends without a close frame
	Stall     Fault = "stall"     // every connection stays open but passes no bytes, not even pings
	Garbage   Fault = "garbage"   // a frame that is not JSON
	NotUTF8   Fault = "not-utf8"  // a frame that is not valid UTF-8
	Oversized Fault = "oversized" // a frame of 17 MiB to every connected client; it is not replayed, because no client would get past it
	Duplicate Fault = "duplicate" // the last ten events again
	Stale     Fault = "stale"     // old revisions of records edited or deleted since, if the server still has them
	Renumber  Fault = "renumber"  // the server restarts, with another sequence number for every event
	Restart   Fault = "restart"   // the server restarts
	TooOld    Fault = "too-old"   // the server drops everything up to now: older cursors are clamped
	Refuse    Fault = "refuse"    // connections get status 503 until Accept
	Accept    Fault = "accept"    // ends Refuse
	Ahead     Fault = "ahead"     // the server's clock goes a minute ahead, so events have times in the future; see StepClock
	OnTime    Fault = "on-time"   // ends Ahead; events keep the latest sent time until the true time has caught up
	Hidden    Fault = "hidden"    // the relay omits an event, see HideFromRelay

	// Of subscribeEvents.
	Downgrade         Fault = "downgrade"          // the server has no such service: 404
	Upgrade           Fault = "upgrade"            // it has it
	ConsumerTooSlow   Fault = "consumer-too-slow"  // every connection ends with this error
	FailStream        Fault = "fail-stream"        // every connection ends with InternalError
	RotateDictionary  Fault = "rotate-dictionary"  // the server has another dictionary
	UnknownDictionary Fault = "unknown-dictionary" // a client requested another dictionary than the server's
	LongURL           Fault = "long-url"           // a client requested a longer URL than LimitURL allows
)

// Faults returns the faults that Do triggers.
func Faults() []Fault {
	return []Fault{Cut, Stall, Garbage, NotUTF8, Oversized, Duplicate, Stale, Renumber, Restart, TooOld, Refuse, Accept, Ahead, OnTime,
		Downgrade, Upgrade, ConsumerTooSlow, FailStream, RotateDictionary}
}

// renumbering is how far Renumber lowers every number. Lowering is the dangerous
// direction: a client that resumes by number misses events.
const renumbering = 4

// firedCounts counts how often each fault has affected a client.
type firedCounts struct {
	mu     sync.Mutex
	counts map[Fault]int
}

func (f *firedCounts) add(fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = map[Fault]int{}
	}
	f.counts[fault]++
}

// Fired returns how often each fault has happened: connections cut or stalled,
// frames sent, cursors clamped, connections refused, servers restarted. A fault
// that affected no client is not counted.
func (n *Net) Fired() map[Fault]int {
	n.fired.mu.Lock()
	defer n.fired.mu.Unlock()
	return maps.Clone(n.fired.counts)
}

// Do triggers a fault.
func (n *Net) Do(f Fault) error {
	switch f {
	case Cut, Stall:
		for _, w := range n.streams() {
			n.fired.add(f)
			if f == Cut {
				w.cut()
			} else {
				w.stall()
			}
		}
	case Garbage:
		n.put(&item{raw: []byte(`{"did": this is not JSON`), fault: f})
	case NotUTF8:
		n.put(&item{raw: []byte("{\"did\":\"did:plc:\xff\xfe\xfa\"}"), fault: f})
	case Oversized:
		raw := append(append([]byte(`{"kind":"`), bytes.Repeat([]byte("x"), 17<<20)...), `"}`...)
		n.put(&item{raw: raw, fault: f, passing: true})
	case Duplicate:
		n.duplicate(10)
	case Stale:
		n.stale(20)
	case Renumber, Restart:
		return n.restartFor(f)
	case TooOld:
		n.mu.Lock()
		defer n.mu.Unlock()
		n.floor.Store(int64(n.log.size()))
	case Refuse:
		n.refuse.Store(true)
	case Accept:
		n.refuse.Store(false)
		n.fired.add(f)
	case Ahead:
		n.StepClock(time.Minute)
	case OnTime:
		n.StepClock(0)
		n.fired.add(f)
	case Downgrade, Upgrade:
		n.events.offered.Store(f == Upgrade)
	case ConsumerTooSlow:
		n.endEvents(f, "ConsumerTooSlow")
	case FailStream:
		n.endEvents(f, "InternalError")
	case RotateDictionary:
		return n.useDictionary(n.events.dictionary.Load().id + 1)
	default:
		return fmt.Errorf("unknown fault %q: expected one of %v", f, Faults())
	}
	return nil
}

// restartFor restarts the server for a fault. Numbers change while it is down,
// so that no connection sees both.
func (n *Net) restartFor(f Fault) error {
	n.life.Lock()
	defer n.life.Unlock()
	if err := n.restart(func() {
		if f == Renumber {
			n.shift.Add(-renumbering)
		}
	}); err != nil {
		return err
	}
	n.fired.add(f)
	return nil
}

// Forget drops all events except those within a period before the latest one,
// like a server with a short retention. Older cursors are clamped, which counts
// as TooOld. It returns the number of the first entry left.
func (n *Net) Forget(allBut time.Duration) (first int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	items, _ := n.log.from(0)
	oldest := n.model.latest - allBut.Microseconds()
	at := firstEntry(items, func(e *Entry) bool { return e.TimeUS >= oldest })
	n.floor.Store(max(n.floor.Load(), int64(at)))
	for _, it := range items[n.floor.Load():] {
		if it.entry != nil {
			return it.entry.Seq
		}
	}
	return n.model.seq + 1
}

// StepClock sets the server's clock ahead of the true time; 0 corrects it. The
// authors' clocks stay right. Times on the wire never decrease: after a step
// back they stand still until the true time has caught up. Each event sent ahead
// of its time counts as Ahead.
func (n *Net) StepClock(ahead time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.model.ahead = ahead
}

// now returns the time by the server's clock.
func (n *Net) now() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.model.clock().Add(n.model.ahead)
}

// items returns log items for new entries. The caller holds n.mu.
func (n *Net) items(entries ...*Entry) []*item {
	var fault Fault
	if n.model.ahead > 0 {
		fault = Ahead
	}
	items := make([]*item, len(entries))
	for i, e := range entries {
		items[i] = &item{entry: e, fault: fault}
	}
	return items
}

// streams returns the current Jetstream connections.
func (n *Net) streams() []*wire {
	n.life.Lock()
	defer n.life.Unlock()
	if n.listener == nil {
		return nil
	}
	return slices.DeleteFunc(n.listener.all(), func(w *wire) bool { return !w.isStream() })
}

// Inject adds a frame to the stream unchanged, live and in replays.
func (n *Net) Inject(raw []byte) { n.put(&item{raw: slices.Clone(raw)}) }

func (n *Net) put(items ...*item) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log.add(items...)
}

// duplicate sends the latest events again, unchanged.
func (n *Net) duplicate(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	items, _ := n.log.from(int(n.floor.Load())) // dropped events are not sent
	var again []*item
	for i := len(items) - 1; i >= 0 && len(again) < count; i-- {
		if items[i].entry != nil {
			again = append(again, &item{again: items[i], fault: Duplicate})
		}
	}
	slices.Reverse(again)
	n.log.add(again...)
}

// stale sends revisions again that are no longer the newest.
func (n *Net) stale(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	items, _ := n.log.from(int(n.floor.Load()))
	changed := map[string]bool{}
	var again []*item
	for i := len(items) - 1; i >= 0 && len(again) < count; i-- {
		e := items[i].entry
		if e == nil || e.Kind != "commit" {
			continue
		}
		key := e.DID + "/" + e.Collection + "/" + e.Rkey
		if changed[key] && e.Record != nil {
			again = append(again, &item{again: items[i], fault: Stale})
		}
		changed[key] = true
	}
	n.log.add(again...)
}
