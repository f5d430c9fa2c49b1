package nostr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/consumer"
	source "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/nostr/wellknown"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// relays reads the relays. It is a workers.Network.
type relays struct {
	*Variables
	feature.Core
	*source.Reader
	names    *wellknown.Client // asks domains for the keys of names, at public addresses only
	streams  []feature.Stream  // of the configured relays
	kinds    []int             // stored ones that have their own entry
	every    bool              // every kind is stored
	key      *[32]byte         // to authenticate with; nil: none
	verifier *source.Verifier  // of all relays
}

var errNoRelays = errors.New("an account of Nostr is read from relays: set WEIR_NOSTR to some, such as wss://relay.example")

// Check returns an error if no relay is configured.
func (r *relays) Check() error {
	if len(r.streams) == 0 {
		return errNoRelays
	}
	return nil
}

// Has reports whether an account, a collection or a stream is of Nostr.
func (r *relays) Has(name string) bool {
	return strings.HasPrefix(name, nostr.DIDPrefix) || strings.HasPrefix(name, nostr.Prefix) || strings.HasPrefix(name, network+":")
}

// ParseTarget parses an npub and the like, or a name by NIP-05. Its errors never contain a secret key.
func (r *relays) ParseTarget(named string) (t workers.Target, ok bool, err error) {
	of, ok, err := nostr.ParseTarget(named)
	if t.Name, t.Servers = of.Name, of.Relays; ok && err == nil && t.Name == "" {
		t.DID, t.Text = nostr.DID(of.Key), nostr.Npub(of.Key)
	}
	return t, ok, err
}

// LookUp asks the domain of a name.
func (r *relays) LookUp(ctx context.Context, name string) (t workers.Target, err error) {
	found, err := r.names.LookUp(ctx, name)
	if err != nil {
		return t, fmt.Errorf("look up %s: %w", name, err)
	}
	return workers.Target{DID: nostr.DID(found.Key), Text: nostr.Npub(found.Key), Servers: found.Relays}, nil
}

// Describe asks the relays. They may not have an account that exists.
func (r *relays) Describe(ctx context.Context, t workers.Target, follows bool) (string, error) {
	key, ok := nostr.ParseDID(t.DID)
	if !ok {
		return "", errNoRelays
	}
	events, _, err := r.Latest(ctx, t.Servers, []int{nostr.KindProfile, nostr.KindFollows}, [][32]byte{key})
	switch {
	case err != nil:
		return "", err
	case len(events) == 0:
		return "", errors.New("the relays of WEIR_NOSTR have neither its profile nor its follow list")
	}
	found := t.DID
	for _, e := range events {
		profile, _ := e.Profile()
		switch {
		case e.Kind == nostr.KindProfile && profile.Name != "":
			found += ", " + profile.Name
		case e.Kind == nostr.KindFollows && follows:
			found += fmt.Sprintf(", follows %d accounts", len(e.Follows()))
		}
	}
	return found, nil
}

// AddHints stores the relays that a user named for an account.
func (r *relays) AddHints(ctx context.Context, tx pgx.Tx, t workers.Target) error {
	return directory.AddRelayHints(ctx, tx, t.DID, t.Servers)
}

// configured returns the configured relays, in one spelling.
func (r *relays) configured() []string {
	var all []string
	for _, relay := range r.Relays {
		if same, ok := nostr.ParseRelay(relay); ok {
			all = append(all, same)
		}
	}
	return all
}

// requested returns what stores events of the accounts that are followed now. Requests to vanish take effect
// whatever relay they name: the reader yields only those that name the relay that they come from.
func (r *relays) requested(ctx context.Context) (*consumer.Retry, error) {
	retry, err := r.Requested(ctx)
	if err == nil {
		retry.Wires[source.WireName] = r.wire(nil)
	}
	return retry, err
}

// Read stores what followed authors wrote to a relay that they named.
func (r *relays) Read(ctx context.Context, relay string, authors [][32]byte, since time.Time, most int) (written int, unread, err error) {
	retry, err := r.requested(ctx)
	if err != nil {
		return 0, nil, err
	}
	sum, err := r.backfill(ctx)
	if err != nil {
		return 0, nil, err
	}
	kinds := r.deleting()
	q := source.Query{Kinds: kinds, Every: r.every, Authors: authors, Since: since, Most: most}
	unread = r.Stored(ctx, relay, func(page []*nostr.Event) error { // the last hour is read every time
		unseen, err := r.unseen(ctx, page)
		if err != nil {
			if ctx.Err() == nil {
				sum.failed = err
			}
			return err
		}
		return sum.add(ctx, unseen, retry)
	}, q)
	if sum.failed != nil {
		return sum.found.Written, nil, sum.failed
	}
	return sum.found.Written, unread, nil
}

// unseen returns those events that were never stored.
func (r *relays) unseen(ctx context.Context, page []*nostr.Event) ([]*nostr.Event, error) {
	ids := make([][32]byte, len(page))
	for i, e := range page {
		ids[i] = e.ID
	}
	unknown, err := r.neverSeen(ctx, ids)
	return slices.DeleteFunc(page, func(e *nostr.Event) bool { return !slices.Contains(unknown, e.ID) }), err
}

// deleting returns the stored kinds that have their own entry, and the kinds that delete.
func (r *relays) deleting() []int {
	kinds := append(slices.Clone(r.kinds), nostr.KindDeletion, nostr.KindVanish)
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// mostBackfilled is the maximum number of an author's events read from one relay.
const mostBackfilled = 5000

// Backfill reads all relays at once. Events that replace or delete others are read whatever their
// date, because another relay may still have events that were deleted long ago.
func (r *relays) Backfill(ctx context.Context, did string, since time.Time) (workers.Backfilled, error) {
	retry, err := r.requested(ctx)
	if err != nil {
		return workers.Backfilled{}, err
	}
	retry.Follows = nil // a user requested the account
	sum, err := r.backfill(ctx)
	if err != nil {
		return workers.Backfilled{}, err
	}
	deletes := []int{nostr.KindDeletion, nostr.KindVanish}
	kinds := slices.Clone(r.kinds)
	if r.every { // there are too many kinds to request those whose date does not matter
		kinds = append(kinds, nostr.KindProfile, nostr.KindFollows, nostr.KindRelays)
	}
	var dated, latest []int
	for _, kind := range kinds {
		if replaces(kind) {
			latest = append(latest, kind)
		} else if isDated(kind) {
			dated = append(dated, kind)
		}
	}
	return r.fromAll(ctx, did, since, sum, retry, source.Query{Kinds: deletes, Most: mostBackfilled},
		source.Query{Kinds: latest, Most: mostBackfilled},
		source.Query{Kinds: dated, Every: r.every, Since: since, Most: mostBackfilled})
}

// AccountPast reads all relays at once.
func (r *relays) AccountPast(ctx context.Context, did string, of workers.Past) (workers.Backfilled, error) {
	sum, retry, q, err := r.past(ctx, of)
	if err != nil {
		return workers.Backfilled{}, err
	}
	deletes := source.Query{Kinds: []int{nostr.KindDeletion, nostr.KindVanish}, Most: mostBackfilled}
	return r.fromAll(ctx, did, of.Since, sum, retry, deletes, q)
}

// mostWithoutProgress is how many events are read if fewer do not lead to an earlier date: a relay
// has many of one second, or does not send the newest events first.
const mostWithoutProgress = 100_000

// StreamPast also stores the requests to delete of that time: the relay may not have applied them.
func (r *relays) StreamPast(
	ctx context.Context, stream string, of workers.Past,
) (found workers.Backfilled, read int, next time.Time, unread, err error) {
	sum, retry, q, err := r.past(ctx, of)
	if err != nil {
		return found, 0, next, nil, err
	}
	q.Everyone = true
	q.Kinds = append(slices.Clone(q.Kinds), nostr.KindDeletion, nostr.KindVanish)
	for ; ; q.Most *= 4 {
		read = 0
		unread = r.Stored(ctx, r.url(stream), func(page []*nostr.Event) error {
			read += len(page)
			return sum.add(ctx, page, retry)
		}, q)
		if sum.failed != nil {
			return sum.found, read, next, nil, sum.failed
		}
		more, ok := errors.AsType[*source.MoreError](unread)
		if missed, ok := errors.AsType[*source.MissedError](unread); ok {
			sum.found.Cut, unread = missed.Reason, nil
		}
		switch {
		case !ok:
			return sum.found, read, next, unread, nil
		case !more.Until.IsZero() && (of.Until.IsZero() || more.Until.Before(of.Until)):
			return sum.found, read, more.Until, nil, nil
		case q.Most < mostWithoutProgress:
		case of.Until.IsZero():
			return sum.found, read, next, more, nil
		default:
			sum.found.Cut = "the relay has more events of one second than are read"
			return sum.found, read, of.Until.Add(-time.Second), nil, nil
		}
	}
}

// past returns what reads events of the past.
func (r *relays) past(ctx context.Context, of workers.Past) (*backfill, *consumer.Retry, source.Query, error) {
	q := source.Query{Since: of.Since, Until: of.Until, Most: of.Most}
	if kind, err := strconv.Atoi(strings.TrimPrefix(of.Collection, nostr.Prefix)); err == nil {
		q.Kinds = []int{kind}
	}
	q.Every = len(q.Kinds) == 0
	retry, err := r.requested(ctx)
	if err != nil {
		return nil, nil, q, err
	}
	sum, err := r.backfill(ctx)
	if err == nil {
		sum.includes = of.Includes
	}
	return sum, retry, q, err
}

// fromAll sends queries for an author's events to all relays at once. since is the time since which
// dated events are requested.
func (r *relays) fromAll(
	ctx context.Context, did string, since time.Time, sum *backfill, retry *consumer.Retry, queries ...source.Query,
) (workers.Backfilled, error) {
	author, _ := nostr.ParseDID(did) // as the network says
	for i := range queries {
		queries[i].Authors = [][32]byte{author}
	}
	further, err := directory.RelaysOf(ctx, r.Pool, []string{did})
	if err != nil {
		return workers.Backfilled{}, err
	}
	failed, unread, _ := r.All(ctx, further, func(ctx context.Context, relay string) error {
		var oldest time.Time // of the events that this relay sent
		err := r.Stored(ctx, relay, func(page []*nostr.Event) error {
			sum.mu.Lock()
			defer sum.mu.Unlock()
			for _, e := range page {
				if at := time.Unix(min(e.CreatedAt, time.Now().Unix()), 0); isDated(e.Kind) && !at.Before(since) &&
					(oldest.IsZero() || at.Before(oldest)) {
					oldest = at
				}
			}
			return sum.add(ctx, page, retry)
		}, queries...)
		if errors.Is(err, source.ErrIncomplete) {
			if slices.Contains(r.Relays, relay) { // a stranger's relay is no reason to read the account again
				sum.cut(oldest, err)
			}
			return nil
		}
		return err
	})
	sum.mu.Lock()
	defer sum.mu.Unlock()
	found := sum.found
	switch {
	case sum.failed != nil:
		return found, sum.failed
	case failed == len(r.streams):
		return found, errors.Join(unread...)
	}
	if failed > 0 {
		found.Unread = errors.Join(unread...).Error()
	}
	return found, nil
}

// replaces reports whether events of a kind replace older ones.
func replaces(kind int) bool {
	class := nostr.ClassOf(kind)
	return class == nostr.Replaceable || class == nostr.Addressable
}

// isDated reports whether events of a kind are read only since a time.
func isDated(kind int) bool {
	return !replaces(kind) && kind != nostr.KindDeletion && kind != nostr.KindVanish
}

// backfill holds what relays have brought so far.
type backfill struct {
	ahead    time.Duration                // how far our clock is ahead of the database's
	includes func(collection string) bool // nil: all kinds are stored

	mu     sync.Mutex // guards what follows if several relays are read, and is held while a page is stored
	found  workers.Backfilled
	failed error // of the database
}

// backfill returns an empty backfill.
func (r *relays) backfill(ctx context.Context) (*backfill, error) {
	now, err := schema.Now(ctx, r.Pool)
	return &backfill{ahead: max(0, time.Since(now))}, err
}

// cut records that a relay did not send everything, and the date down to which it did. If several
// relays did not, the latest date is used.
func (b *backfill) cut(oldest time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if oldest.IsZero() {
		oldest = time.Now()
	}
	b.found.Cut = err.Error()
	if oldest.After(b.found.Oldest) {
		b.found.Oldest = oldest
	}
}

// add stores a page.
func (b *backfill) add(ctx context.Context, page []*nostr.Event, retry *consumer.Retry) error {
	if b.includes != nil {
		page = slices.DeleteFunc(slices.Clone(page), func(e *nostr.Event) bool {
			return e.Kind != nostr.KindDeletion && e.Kind != nostr.KindVanish && !b.includes(nostr.Collection(e.Kind))
		})
	}
	now := time.Now().Add(-b.ahead)
	frames := make([][]byte, len(page))
	for i, e := range page {
		frames[i] = e.AppendNotepack(nil)
		at := time.Unix(min(e.CreatedAt, now.Unix()), 0)
		if isDated(e.Kind) && at.After(b.found.Newest) {
			b.found.Newest = at
		}
	}
	written, err := retry.Store(ctx, source.WireName, frames, now)
	b.found.Written += written
	if err != nil && ctx.Err() == nil {
		b.failed = err
	}
	return err
}
