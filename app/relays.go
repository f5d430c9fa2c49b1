package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/guard"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/wellknown"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// relays reads Nostr relays for the workers.
type relays struct {
	*nostr.Reader
	app   App
	queue *river.Client[pgx.Tx]
	keep  workers.Retention

	configured []nostrRelay
}

// reader returns a reader of the configured relays, and these relays. The reader is nil if there
// are none.
func (p App) reader() (*nostr.Reader, []nostrRelay, error) {
	configured, err := p.cfg.nostrRelays()
	if err != nil || len(configured) == 0 {
		return nil, nil, err
	}
	key, err := p.cfg.nostrKey()
	if err != nil {
		return nil, nil, err
	}
	urls := make([]string, len(configured))
	for i, r := range configured {
		urls[i] = r.url
	}
	var strangers *http.Client
	if p.cfg.NostrAuthorRelays > 0 {
		strangers = &http.Client{Transport: guard.Transport(http.DefaultTransport.(*http.Transport), p.cfg.NostrAuthorLoopback)} // it is an *http.Transport
	}
	return nostr.NewReader(nostr.ReaderConfig{Relays: urls, Key: key, Strangers: strangers, UserAgent: userAgent, Logger: p.log}), configured, nil
}

// ErrNoRelays means that an account of Nostr cannot be watched because no relay is configured.
var ErrNoRelays = errors.New("an account of Nostr is read from relays: set WEIR_NOSTR to some, such as wss://relay.example")

// wellKnown returns a client that asks domains for the keys of names. It connects only to public
// addresses.
func (p App) wellKnown() *wellknown.Client {
	return wellknown.New(wellknown.Config{UserAgent: userAgent})
}

// LookUpName sets the account of a watch that has only a name.
func (p App) LookUpName(ctx context.Context, w WatchRequest) (WatchRequest, error) {
	found, err := p.wellKnown().LookUp(ctx, w.Name)
	if err != nil {
		return w, fmt.Errorf("look up %s: %w", w.Name, err)
	}
	w.Target, w.Relays = protocol.Npub(found.Key), found.Relays
	return w, nil
}

// DescribeNostr reads the account of a watch from the relays, and describes it. It returns "" if
// they do not know it.
func (p App) DescribeNostr(ctx context.Context, w WatchRequest) (string, error) {
	reader, _, err := p.reader()
	if err != nil {
		return "", err
	}
	key, ok := w.key()
	if reader == nil || !ok {
		return "", ErrNoRelays
	}
	events, _, err := reader.Latest(ctx, w.Relays, []int{protocol.KindProfile, protocol.KindFollows}, [][32]byte{key})
	if err != nil || len(events) == 0 {
		return "", err
	}
	found := protocol.DID(key)
	for _, e := range events {
		profile, _ := e.Profile()
		switch {
		case e.Kind == protocol.KindProfile && profile.Name != "":
			found += ", " + profile.Name
		case e.Kind == protocol.KindFollows && w.Kind == schema.WatchFollows:
			found += fmt.Sprintf(", follows %d accounts", len(e.Follows()))
		}
	}
	return found, nil
}

// relays returns the Nostr relays, or nil if none is configured.
func (p App) relays(keep workers.Retention) (workers.Relays, error) {
	reader, configured, err := p.reader()
	if reader == nil || err != nil {
		return nil, err
	}
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return nil, err
	}
	return &relays{Reader: reader, app: p, queue: queue, keep: keep, configured: configured}, nil
}

// Configured returns the configured relays, in one spelling.
func (r *relays) Configured() []string {
	var all []string
	for _, relay := range r.configured {
		if same, ok := protocol.ParseRelay(relay.url); ok {
			all = append(all, same)
		}
	}
	return all
}

// Read stores what followed authors wrote to a relay that they named.
func (r *relays) Read(ctx context.Context, relay string, authors [][32]byte, since time.Time) (written int, unread, err error) {
	retry, err := r.app.retryOfFollowed(ctx, r.queue, r.keep)
	if err != nil {
		return 0, nil, err
	}
	r.obey(retry)
	sum, err := r.backfill(ctx)
	if err != nil {
		return 0, nil, err
	}
	kinds, every := r.kinds()
	q := nostr.Query{Kinds: kinds, Every: every, Authors: authors, Since: since, Most: 4 * mostBackfilled}
	unread = r.Stored(ctx, relay, func(page []*protocol.Event) error { // the last hour is read every time
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
	return sum.found.Written, incomplete(unread), nil
}

// unseen returns those events that were never stored.
func (r *relays) unseen(ctx context.Context, page []*protocol.Event) ([]*protocol.Event, error) {
	ids := make([][32]byte, len(page))
	for i, e := range page {
		ids[i] = e.ID
	}
	unknown, err := r.neverSeen(ctx, ids)
	return slices.DeleteFunc(page, func(e *protocol.Event) bool { return !slices.Contains(unknown, e.ID) }), err
}

// incomplete replaces the reader's error for an incomplete read by the workers' error.
func incomplete(unread error) error {
	if errors.Is(unread, nostr.ErrIncomplete) {
		return fmt.Errorf("%w: %w", workers.ErrIncomplete, unread)
	}
	return unread
}

// obey makes requests to vanish take effect whatever relay they name. The reader yields only
// requests that name the relay that they come from.
func (r *relays) obey(retry *consumer.Retry) {
	retry.Wires[nostr.WireName] = r.app.nostrWireOf(nil)
}

// kinds returns the stored kinds that have their own entry, and the kinds that delete. every: every
// kind is stored.
func (r *relays) kinds() (kinds []int, every bool) {
	kinds, every = r.app.stored.Kinds(nostrNetwork)
	kinds = append(kinds, protocol.KindDeletion, protocol.KindVanish)
	slices.Sort(kinds)
	return slices.Compact(kinds), every
}

// mostBackfilled is the maximum number of an author's events read from one relay.
const mostBackfilled = 5000

// Backfill reads all relays at once. Events that replace or delete others are read whatever their
// date, because another relay may still have events that were deleted long ago.
func (r *relays) Backfill(ctx context.Context, further []string, author [32]byte, since time.Time) (workers.Backfilled, error) {
	retry, err := r.app.retry(ctx, r.queue, r.keep) // for any author, because a user requested the account
	if err != nil {
		return workers.Backfilled{}, err
	}
	r.obey(retry)
	sum, err := r.backfill(ctx)
	if err != nil {
		return workers.Backfilled{}, err
	}
	deletes := []int{protocol.KindDeletion, protocol.KindVanish}
	kinds, every := r.app.stored.Kinds(nostrNetwork)
	if every { // there are too many kinds to request those whose date does not matter
		kinds = append(kinds, protocol.KindProfile, protocol.KindFollows, protocol.KindRelays)
	}
	var dated, latest []int
	for _, kind := range kinds {
		if replaces(kind) {
			latest = append(latest, kind)
		} else if isDated(kind) {
			dated = append(dated, kind)
		}
	}
	of := func(kinds []int, since time.Time) nostr.Query {
		return nostr.Query{Kinds: kinds, Authors: [][32]byte{author}, Since: since, Most: mostBackfilled}
	}
	recent := of(dated, since)
	recent.Every = every
	return r.fromAll(ctx, further, since, sum, retry, of(deletes, time.Time{}), of(latest, time.Time{}), recent)
}

// AuthorPast reads all relays at once.
func (r *relays) AuthorPast(ctx context.Context, further []string, author [32]byte, of workers.Past) (workers.Backfilled, error) {
	sum, retry, q, err := r.past(ctx, of)
	if err != nil {
		return workers.Backfilled{}, err
	}
	q.Authors = [][32]byte{author}
	deletes := nostr.Query{Kinds: []int{protocol.KindDeletion, protocol.KindVanish}, Authors: q.Authors, Most: mostBackfilled}
	return r.fromAll(ctx, further, of.Since, sum, retry, deletes, q)
}

// mostWithoutProgress is how many events are read if fewer do not lead to an earlier date: a relay
// has many of one second, or does not send the newest events first.
const mostWithoutProgress = 100_000

// RelayPast also stores the requests to delete of that time: the relay may not have obeyed them.
func (r *relays) RelayPast(ctx context.Context, stream string, of workers.Past) (found workers.Backfilled, read int, next time.Time, unread, err error) {
	sum, retry, q, err := r.past(ctx, of)
	if err != nil {
		return found, 0, next, nil, err
	}
	q.Everyone = true
	q.Kinds = append(slices.Clone(q.Kinds), protocol.KindDeletion, protocol.KindVanish)
	for ; ; q.Most *= 4 {
		read = 0
		unread = r.Stored(ctx, r.url(stream), func(page []*protocol.Event) error {
			read += len(page)
			return sum.add(ctx, page, retry)
		}, q)
		if sum.failed != nil {
			return sum.found, read, next, nil, sum.failed
		}
		more, ok := errors.AsType[*nostr.MoreError](unread)
		if missed, ok := errors.AsType[*nostr.MissedError](unread); ok {
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
func (r *relays) past(ctx context.Context, of workers.Past) (*backfill, *consumer.Retry, nostr.Query, error) {
	q := nostr.Query{Kinds: of.Kinds, Every: len(of.Kinds) == 0, Since: of.Since, Until: of.Until, Most: of.Most}
	retry, err := r.app.retryOfFollowed(ctx, r.queue, r.keep)
	if err != nil {
		return nil, nil, q, err
	}
	r.obey(retry)
	sum, err := r.backfill(ctx)
	if err == nil {
		sum.includes = of.Includes
	}
	return sum, retry, q, err
}

// fromAll sends queries to all relays at once. since is the time since which dated events are
// requested.
func (r *relays) fromAll(ctx context.Context, further []string, since time.Time, sum *backfill, retry *consumer.Retry, queries ...nostr.Query) (workers.Backfilled, error) {
	failed, unread, _ := r.All(ctx, further, func(ctx context.Context, relay string) error {
		var oldest time.Time // of the events that this relay sent
		err := r.Stored(ctx, relay, func(page []*protocol.Event) error {
			sum.mu.Lock()
			defer sum.mu.Unlock()
			for _, e := range page {
				if at := time.Unix(min(e.CreatedAt, time.Now().Unix()), 0); isDated(e.Kind) && !at.Before(since) && (oldest.IsZero() || at.Before(oldest)) {
					oldest = at
				}
			}
			return sum.add(ctx, page, retry)
		}, queries...)
		if errors.Is(err, nostr.ErrIncomplete) {
			sum.cut(r.trusts(relay), oldest, err)
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
	case failed == len(r.configured):
		return found, errors.Join(unread...)
	}
	if failed > 0 {
		found.Unread = errors.Join(unread...).Error()
	}
	return found, nil
}

// replaces reports whether events of a kind replace older ones.
func replaces(kind int) bool {
	class := protocol.ClassOf(kind)
	return class == protocol.Replaceable || class == protocol.Addressable
}

// isDated reports whether events of a kind are read only since a time.
func isDated(kind int) bool {
	return !replaces(kind) && kind != protocol.KindDeletion && kind != protocol.KindVanish
}

// trusts reports whether a relay is configured. If a stranger's relay is incomplete, that is no
// reason to read the account again.
func (r *relays) trusts(relay string) bool {
	return slices.ContainsFunc(r.configured, func(c nostrRelay) bool { return c.url == relay })
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
	now, err := schema.Now(ctx, r.app.pool)
	return &backfill{ahead: max(0, time.Since(now))}, err
}

// cut records that a relay did not send everything, and the date down to which it did. If several
// relays did not, the latest date is used.
func (b *backfill) cut(trusted bool, oldest time.Time, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !trusted {
		return
	}
	if oldest.IsZero() {
		oldest = time.Now()
	}
	b.found.Cut = err.Error()
	if oldest.After(b.found.Oldest) {
		b.found.Oldest = oldest
	}
}

// add stores a page.
func (b *backfill) add(ctx context.Context, page []*protocol.Event, retry *consumer.Retry) error {
	if b.includes != nil {
		page = slices.DeleteFunc(slices.Clone(page), func(e *protocol.Event) bool {
			return e.Kind != protocol.KindDeletion && e.Kind != protocol.KindVanish && !b.includes(protocol.Collection(e.Kind))
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
	written, err := retry.Store(ctx, nostr.WireName, frames, now)
	b.found.Written += written
	if err != nil && ctx.Err() == nil {
		b.failed = err
	}
	return err
}
