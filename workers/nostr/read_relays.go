package nostr

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/riverqueue/river"

	source "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// ReadRelays reads, in turn, the relays that most followed accounts name. From each it reads what
// these accounts wrote since an hour before its last read, because events reach relays late.
// Events that are stored already do not change, so reading twice changes nothing.
type ReadRelays struct {
	river.WorkerDefaults[ReadRelaysArgs]
	*relays
	most   int           // events of some accounts that are read at once
	window time.Duration // how far back a relay is read the first time

	patience time.Duration
}

const (
	relayAgain   = 5 * time.Minute // between two reads of a relay
	relayOverlap = time.Hour       // how late an event may reach a relay
	relayLongest = 24 * time.Hour  // between two reads of a relay that fails
	relayAuthors = 500             // accounts per request
)

// Work reads the relays that are due.
func (w *ReadRelays) Work(ctx context.Context, _ *river.Job[ReadRelaysArgs]) error {
	if err := w.Check(); err != nil {
		return workers.NonRetryable(err) // a process with configured relays added it
	}
	started := time.Now()
	if err := directory.ChooseRelays(ctx, w.Pool, w.configured(), w.AuthorRelays); err != nil {
		return err
	}
	for time.Since(started) < w.patience {
		relay, err := directory.DueRelay(ctx, w.Pool)
		if err != nil || relay.URL == "" {
			return err
		}
		now, err := schema.Now(ctx, w.Pool)
		if err != nil {
			return err
		}
		if err := w.read(ctx, relay, now); err != nil {
			return err
		}
	}
	return nil
}

// read reads one relay and stores up to when it was read.
func (w *ReadRelays) read(ctx context.Context, relay directory.Relay, now time.Time) error {
	since := now.Add(-w.window)
	if relay.ReadTo != nil && relay.ReadTo.Add(-relayOverlap).After(since) {
		since = relay.ReadTo.Add(-relayOverlap)
	}
	authors := make([][32]byte, 0, len(relay.Accounts))
	for _, did := range relay.Accounts {
		if key, ok := nostr.ParseDID(did); ok {
			authors = append(authors, key)
		}
	}
	reading, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	written, unread, err := w.ask(reading, relay.URL, authors, since)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	wait := relayAgain
	if unread != nil {
		wait = min(relayLongest, relayAgain<<min(relay.Failures, 10))
		workers.JobLog(ctx, w.Log).Info("relay_unread", "relay", relay.URL, "failures", relay.Failures+1, "error", unread)
		var readTo *time.Time
		if errors.Is(unread, source.ErrIncomplete) { // the relay would not send more the next time, and would have more to send
			readTo = &now
		}
		return directory.RecordRelay(ctx, w.Pool, relay.URL, readTo, now.Add(wait), cmp.Or(unread.Error(), "unread"))
	}
	if written > 0 {
		workers.JobLog(ctx, w.Log).Info("relay_read", "relay", relay.URL, "accounts", len(authors), "records", written, "since", since)
	}
	return directory.RecordRelay(ctx, w.Pool, relay.URL, &now, now.Add(wait), "")
}

// ask reads what accounts wrote to a relay, some accounts at a time. If the relay has too many
// events of some accounts, it still reads the others.
func (w *ReadRelays) ask(ctx context.Context, relay string, authors [][32]byte, since time.Time) (written int, unread, err error) {
	for some := range slices.Chunk(authors, relayAuthors) {
		more, problem, err := w.Read(ctx, relay, some, since, w.most)
		written += more
		if err != nil || problem != nil && !errors.Is(problem, source.ErrIncomplete) {
			return written, problem, err
		}
		unread = cmp.Or(unread, problem)
	}
	return written, unread, nil
}
