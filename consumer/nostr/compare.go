package nostr

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/negentropy"
)

// Comparison selects the events for which a relay is compared with the store.
type Comparison struct {
	Query           // Most is how many events may be missing
	Until time.Time // by the authors' dates, exclusive

	Have []StoredEvent // stored events of that time, in any order
	// Unknown returns those ids that were never stored, not even for a while.
	Unknown func(ctx context.Context, ids [][32]byte) ([][32]byte, error)
	// Store stores events that were missing. They have the right ids, kinds and authors; their
	// signatures are not checked.
	Store func(ctx context.Context, events []*nostr.Event) error
}

// StoredEvent is an event that is stored.
type StoredEvent struct {
	Author [32]byte
	negentropy.Item
}

// Compared is what a comparison has found so far.
type Compared struct {
	By      string // how: BySets or ByPages
	Missing int    // events that the relay has and that were never stored
	Sent    int    // of these, those that it sent, including unwanted and unreadable ones
}

// How a relay was compared.
const (
	BySets  = "negentropy" // see NIP-77
	ByPages = "pages"      // everything was read
)

const (
	syncRounds = 1000  // messages that one comparison may send
	syncFrame  = 60000 // bytes of one message, if the relay names no limit
	idsAtOnce  = 100   // events that are asked for by their ids
)

// errUnlike is the error of a comparison that failed with a relay that may still send pages.
var errUnlike = errors.New("the sets of events could not be compared")

// Compare finds the events of a time that one relay has and that were never stored, and stores
// them. It compares sets of ids if the relay says that it supports NIP-77, and otherwise reads all
// events.
func (r *Reader) Compare(ctx context.Context, relay string, c Comparison) (Compared, error) {
	found := Compared{By: ByPages}
	if c.empty() {
		return found, nil
	}
	a, limits, err := r.connect(ctx, relay)
	if err != nil {
		return found, err
	}
	defer func() { a.ws.CloseNow() }() // it is over
	a.query = c.Query
	if limits.syncs {
		found.By = BySets
	}
	since, until := max(0, c.Since.Unix()), c.Until.Unix()-1
	for _, f := range c.filters(limits) {
		f.Since, f.Until = &since, &until
		k := comparing{asking: a, Comparison: &c, filter: f, limits: limits, found: &found}
		if found.By == BySets {
			err := k.bySets(ctx)
			if err != nil && !errors.Is(err, errUnlike) {
				return found, fmt.Errorf("compare with %s: %w", relay, err)
			}
			if err == nil {
				continue
			}
			r.log.Info("relay_comparison_failed", "relay", relay, "error", err)
			found.By = ByPages
			a.ws.CloseNow() // the connection may be in the middle of a response
			again, _, err := r.connect(ctx, relay)
			if err != nil {
				return found, err
			}
			a = again
			a.query = c.Query
			k.asking = a
		}
		if err := k.byPages(ctx); err != nil {
			return found, fmt.Errorf("compare with %s: %w", relay, err)
		}
	}
	return found, nil
}

// comparing is the comparison of the events that one filter selects.
type comparing struct {
	*asking
	*Comparison
	filter filter
	limits limits
	found  *Compared
}

// have returns the stored events of the filter.
func (k *comparing) have() (items []negentropy.Item) {
	authors := map[[32]byte]bool{}
	for _, author := range k.filter.Authors {
		key, _ := hex.DecodeString(author) // it is one
		authors[[32]byte(key)] = true
	}
	for _, stored := range k.Have {
		if (k.Everyone || authors[stored.Author]) && stored.At >= *k.filter.Since && stored.At <= *k.filter.Until {
			items = append(items, stored.Item)
		}
	}
	return items
}

// bySets compares ids, and requests the events that are missing.
func (k *comparing) bySets(ctx context.Context) error {
	ids, err := k.named(ctx)
	many := errors.Is(err, negentropy.ErrMany)
	if err != nil && !many {
		return err
	}
	if ids, err = k.unknown(ctx, ids); err != nil {
		return err
	}
	if many && k.found.Missing+len(ids) <= k.Most && *k.filter.Since < *k.filter.Until {
		return k.inHalves(ctx) // most of the ids were stored once
	}
	if k.found.Missing += len(ids); many || k.found.Missing > k.Most {
		return k.tooMany()
	}
	for some := range slices.Chunk(ids, min(idsAtOnce, k.limits.Page, k.limits.authors())) {
		if err := k.fetch(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// inHalves compares the halves of the filter's time.
func (k *comparing) inHalves(ctx context.Context) error {
	since, until := *k.filter.Since, *k.filter.Until
	middle := since + (until-since)/2
	for _, part := range [][2]int64{{since, middle}, {middle + 1, until}} {
		half := *k
		half.filter.Since, half.filter.Until = &part[0], &part[1]
		if err := half.bySets(ctx); err != nil {
			return err
		}
	}
	return nil
}

// unknown returns those ids that were never stored, each once.
func (k *comparing) unknown(ctx context.Context, ids [][32]byte) ([][32]byte, error) {
	slices.SortFunc(ids, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	return k.Unknown(ctx, slices.Compact(ids))
}

func (k *comparing) tooMany() error {
	return fmt.Errorf("%w: more than %d events are missing", ErrIncomplete, k.Most)
}

// named returns the ids that the relay has and that are not among the stored events. If there are
// too many, it returns some of them and negentropy.ErrMany.
func (k *comparing) named(ctx context.Context) ([][32]byte, error) {
	frame := syncFrame
	if k.limits.Message > 0 {
		frame = min(frame, (k.limits.Message-1024)/2) // a byte takes two characters
	}
	s := negentropy.New(k.have(), frame, 10*k.Most)
	k.pages++
	sub := "n" + strconv.Itoa(k.pages)
	begin := func() error {
		return k.sendJSON(ctx, []any{"NEG-OPEN", sub, k.filter, hex.EncodeToString(s.Begin())})
	}
	if err := begin(); err != nil {
		return nil, err
	}
	refused := false // the relay refused this request because the client had not authenticated
	for range syncRounds {
		msg, err := k.receive(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %w", errUnlike, err)
		}
		switch {
		case msg.kind == "NEG-MSG" && msg.sub == sub:
			message, err := hex.DecodeString(msg.text)
			if err != nil {
				return nil, fmt.Errorf("%w: a message is not hexadecimal", errUnlike)
			}
			reply, err := s.Answer(message)
			switch {
			case errors.Is(err, negentropy.ErrMany):
				return s.Missing(), errors.Join(err, k.sendJSON(ctx, []any{"NEG-CLOSE", sub}))
			case err != nil:
				return nil, fmt.Errorf("%w: %w", errUnlike, err)
			case reply == nil:
				return s.Missing(), k.sendJSON(ctx, []any{"NEG-CLOSE", sub})
			}
			if err := k.sendJSON(ctx, []any{"NEG-MSG", sub, hex.EncodeToString(reply)}); err != nil {
				return nil, err
			}
		case msg.kind == "NEG-ERR" && msg.sub == sub:
			err := refusal(&msg)
			switch {
			case k.key == nil || !errors.Is(err, errAuth):
				return nil, fmt.Errorf("%w: %w", errUnlike, err)
			case refused:
				return nil, errKey
			}
			if refused = true; k.accepted { // the relay had not read the response to its challenge before this request
				if err := begin(); err != nil {
					return nil, err
				}
			}
		case msg.kind == "NOTICE":
			return nil, fmt.Errorf("%w: %s", errUnlike, consumer.Shorten(msg.text))
		default:
			again, err := k.recognised(ctx, &msg, refused)
			if err == nil && again {
				err = begin()
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return nil, fmt.Errorf("%w: no end after %d messages", errUnlike, syncRounds)
}

// fetch requests events by their ids, and stores them. If they take too much memory, it requests
// the rest again. Events that cannot be read, or are not wanted (such as a request to vanish from
// another relay), count as sent.
func (k *comparing) fetch(ctx context.Context, ids [][32]byte) error {
	f := filter{Limit: len(ids)}
	for _, id := range ids {
		f.IDs = append(f.IDs, hex.EncodeToString(id[:]))
	}
	pages := past{limit: len(ids), windows: []window{{filter: f, since: 0, until: newest}}}
	events, err := k.page(ctx, f, &pages)
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(ids), func(id [32]byte) bool {
		return slices.ContainsFunc(events, func(e *nostr.Event) bool { return e.ID == id })
	})
	if err := k.store(ctx, events, ids); err != nil {
		return err
	}
	if !pages.page.short || len(rest) == len(ids) {
		k.found.Sent += min(len(rest), pages.page.events-len(events))
		return nil
	}
	if len(rest) == 0 {
		return nil
	}
	return k.fetch(ctx, rest)
}

// store stores the events that have these ids, each once.
func (k *comparing) store(ctx context.Context, events []*nostr.Event, ids [][32]byte) error {
	wanted := map[[32]byte]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	events = slices.DeleteFunc(events, func(e *nostr.Event) bool {
		again := !wanted[e.ID]
		wanted[e.ID] = false
		return again
	})
	if len(events) == 0 {
		return nil
	}
	k.found.Sent += len(events)
	return k.Store(ctx, events)
}

// byPages reads all events of the filter, and stores those that are missing.
func (k *comparing) byPages(ctx context.Context) error {
	have := map[[32]byte]bool{}
	for _, item := range k.have() {
		have[item.ID] = true
	}
	pages := past{
		limit: k.limits.Page, named: k.limits.named, windows: []window{{filter: k.filter, since: *k.filter.Since, until: *k.filter.Until}},
	}
	return k.through(ctx, &pages, maxCompared, func(events []*nostr.Event) error {
		var ids [][32]byte
		for _, e := range events {
			if !have[e.ID] && e.CreatedAt >= *k.filter.Since && e.CreatedAt <= *k.filter.Until {
				ids = append(ids, e.ID)
			}
			have[e.ID] = true
		}
		ids, err := k.unknown(ctx, ids)
		if err != nil {
			return err
		}
		if k.found.Missing += len(ids); k.found.Missing > k.Most {
			return k.tooMany()
		}
		return k.store(ctx, events, ids)
	})
}

// maxCompared is the maximum number of events read from a relay if sets of ids cannot be compared.
const maxCompared = 1_000_000
