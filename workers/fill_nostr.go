package workers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
)

// ofNostr reports whether the past of a collection is read from relays.
func ofNostr(name string) bool { return strings.HasPrefix(name, nostr.Prefix) }

// pastOf selects the events of a history, as far back as they are kept.
func pastOf(stored collection.Registry, of string, most int) Past {
	past := Past{Most: most, Includes: func(name string) bool { return inHistory(stored, of, name) }}
	if kind, err := strconv.Atoi(strings.TrimPrefix(of, nostr.Prefix)); err == nil {
		past.Kinds = []int{kind}
	}
	if e, _ := stored.Find(of); e.Retention > 0 {
		past.Since = time.Now().Add(-e.Retention)
	}
	return past
}

// readRelay reads a relay for a history of kinds, some events at a time, and stores the date at
// which the rest begins. A killed job reads the last of them again, which changes nothing.
func (p *historyPass) readRelay(ctx context.Context, l history.Listing) error {
	for time.Now().Before(p.until) {
		past := pastOf(p.stored, l.Collection, relayPage)
		if until, err := strconv.ParseInt(l.Cursor, 10, 64); err == nil {
			past.Until = time.Unix(until, 0)
		}
		reading, cancel := context.WithTimeout(ctx, p.patience) // a slow relay must not end the job
		found, read, next, unread, err := p.relays.RelayPast(reading, l.Name, past)
		cancel()
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if unread != nil {
			wait := min(historyRetry<<min(2*l.Tries, 20), longestRetry)
			p.log.Warn("relay_past_unread", "collection", l.Collection, "stream", l.Name, "error", unread, "wait", wait)
			if found.Cut = unread.Error(); l.Tries+1 < historyTries && slices.Contains(p.relays.Streams(), l.Name) {
				return history.FailListing(ctx, p.pool, l, l.Host, found.Cut, false, wait)
			}
		}
		l.Cursor = ""
		if !next.IsZero() && !next.Before(past.Since) {
			l.Cursor = strconv.FormatInt(next.Unix(), 10)
		}
		err = history.MoveRelay(ctx, p.pool, l, read, found.Written, found.Cut)
		if errors.Is(err, history.ErrMoved) { // another process reads the relay
			return nil
		}
		if err != nil || l.Cursor == "" {
			return err
		}
		l.Pages, l.Tries = l.Pages+1, 0
	}
	return nil
}

// fromRelays reads the author's events from the relays, for each history.
func (h *pastReader) fromRelays(ctx context.Context, histories []history.Account, author [32]byte) error {
	if h.relays == nil {
		return h.postpone(ctx, histories, errNoRelays, historyRetry, true, false)
	}
	further, err := directory.RelaysOf(ctx, h.pool, []string{h.did})
	if err != nil {
		return err
	}
	for i, a := range histories {
		found := Backfilled{Cut: "the account has reached the limit"}
		if h.limited.records > 0 {
			reading, cancel := context.WithTimeout(ctx, h.patience) // a slow relay must not end the job
			found, err = h.relays.AuthorPast(reading, further, author, pastOf(h.stored, a.Collection, int(h.limited.records)))
			cancel()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && found.Unread != "":
			err = errors.New(found.Unread)
		}
		if err != nil {
			return h.postpone(ctx, histories[i:], err, historyRetry<<min(2*a.Tries, 20), true, false)
		}
		a.Records = int64(found.Written)
		h.limited.records -= a.Records
		if err := h.end(ctx, a, found.Cut != ""); err != nil {
			return err
		}
	}
	return nil
}
