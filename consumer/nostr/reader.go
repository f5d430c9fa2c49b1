package nostr

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/nostr"
)

// ReaderConfig configures a Reader. Zero values take the defaults.
type ReaderConfig struct {
	Relays       []string      // the operator's relays
	Key          *[32]byte     // the secret key to authenticate with at Relays; nil: none
	AuthorRelays *http.Client  // connects to relays that authors name, so it must guard addresses; nil: such relays are not read
	Timeout      time.Duration // 10 s: to connect, and between two messages
	UserAgent    string
	Logger       *slog.Logger
}

// Reader requests stored events from relays, each over its own connection. It is safe for
// concurrent use.
type Reader struct {
	cfg ReaderConfig
	log *slog.Logger
}

const (
	relaysAtOnce = 8                // relays that one call reads at once
	latestWithin = 30 * time.Second // timeout for the latest lists of one relay, which may keep sending a little
)

var errSlow = errors.New("the relay is too slow")

// NewReader sets the defaults.
func NewReader(cfg ReaderConfig) *Reader {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.AuthorRelays != nil {
		guarded := *cfg.AuthorRelays
		guarded.CheckRedirect = socket.NoRedirects.CheckRedirect
		cfg.AuthorRelays = &guarded
	}
	return &Reader{cfg: cfg, log: cfg.Logger}
}

// Query selects the events to request from relays.
type Query struct {
	Kinds    []int
	Every    bool       // every kind, whatever Kinds has
	Authors  [][32]byte // if empty, no relay is contacted
	Everyone bool       // events of all authors; only comparisons use it
	Since    time.Time  // by the authors' dates; zero: everything
	Until    time.Time  // by the authors' dates, inclusive; zero: the newest. A Comparison has its own
	Most     int        // maximum number of events to read from a relay
}

// empty reports whether the query selects nothing: a relay would take it for everything.
func (q *Query) empty() bool {
	return len(q.Authors) == 0 && !q.Everyone || len(q.Kinds) == 0 && !q.Every
}

// filters divides the authors among filters.
func (q *Query) filters(limits limits) (all []filter) {
	if q.Every {
		q.Kinds = nil
	}
	if q.Everyone {
		return []filter{{Kinds: q.Kinds}}
	}
	for some := range slices.Chunk(q.Authors, limits.authors()) {
		f := filter{Kinds: q.Kinds}
		for _, key := range some {
			f.Authors = append(f.Authors, hex.EncodeToString(key[:]))
		}
		all = append(all, f)
	}
	return all
}

// ErrIncomplete is wrapped by the error of a relay that has more events than it sent or than
// were requested.
var ErrIncomplete = errors.New("not everything was read")

// A MissedError is the error of a relay that cannot be made to send everything.
type MissedError struct{ Reason string }

func (e *MissedError) Error() string { return ErrIncomplete.Error() + ": " + e.Reason }

func (e *MissedError) Unwrap() error { return ErrIncomplete }

// A MoreError is the error of a relay that has more events than were requested.
type MoreError struct {
	Most int
	// Until is the date until which the rest is, inclusive: by then, everything later was read. Zero:
	// nothing can be said of it.
	Until time.Time
}

func (e *MoreError) Error() string {
	return fmt.Sprintf("%s: more than %d events", ErrIncomplete, e.Most)
}

func (e *MoreError) Unwrap() error { return ErrIncomplete }

// Stored reads the stored events of one relay, newest first. It sends one query after the
// other over one connection, and calls each with the events of each page. They have the right
// ids, kinds and authors; their signatures are not checked. If a query is not answered
// completely, the others are still sent.
func (r *Reader) Stored(ctx context.Context, relay string, each func([]*nostr.Event) error, queries ...Query) error {
	queries = slices.DeleteFunc(slices.Clone(queries), func(q Query) bool { return q.empty() })
	if len(queries) == 0 {
		return nil
	}
	a, limits, err := r.connect(ctx, relay)
	if err != nil {
		return err
	}
	defer a.ws.CloseNow() // it is over
	var incomplete error
	for _, q := range queries {
		a.query = q
		err := a.read(ctx, limits, each)
		if errors.Is(err, ErrIncomplete) {
			incomplete, err = cmp.Or(incomplete, err), nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", relay, err)
		}
	}
	if incomplete != nil {
		return fmt.Errorf("read %s: %w", relay, incomplete)
	}
	return nil
}

// connect connects to a configured relay, or to one that authors name.
func (r *Reader) connect(ctx context.Context, relay string) (*asking, limits, error) {
	client, key := r.cfg.AuthorRelays, (*[32]byte)(nil)
	if slices.Contains(r.cfg.Relays, relay) {
		client, key = socket.NoRedirects, r.cfg.Key
	}
	if client == nil {
		return nil, limits{}, errors.New("relays that others name are not asked")
	}
	limits := readLimits(ctx, client, relay, r.cfg.UserAgent, r.cfg.Timeout, r.log)
	limits.Page = min(limits.Page, askedPage)
	a, err := r.dial(ctx, client, relay, key)
	if err != nil {
		return nil, limits, fmt.Errorf("connect to %s: %w", relay, err)
	}
	return a, limits, nil
}

// read reads what the query selects.
func (a *asking) read(ctx context.Context, limits limits, each func([]*nostr.Event) error) error {
	since := int64(0)
	if !a.query.Since.IsZero() {
		since = max(0, a.query.Since.Unix())
	}
	pages := past{limit: limits.Page, named: limits.named}
	pages.add(a.query.filters(limits), since)
	if !a.query.Until.IsZero() {
		for i := range pages.windows {
			pages.windows[i].until = a.query.Until.Unix()
		}
	}
	return a.through(ctx, &pages, a.query.Most, each)
}

// through requests one page after another, until most events have been read.
func (a *asking) through(ctx context.Context, pages *past, most int, each func([]*nostr.Event) error) error {
	var incomplete error
	for read := 0; ; {
		f, more := pages.request()
		switch {
		case !more:
			return incomplete
		case read >= most:
			return errors.Join(incomplete, &MoreError{most, pages.rest()})
		}
		events, err := a.page(ctx, f, pages)
		if err == nil {
			err = each(events)
		}
		if err != nil {
			return err
		}
		read += max(1, pages.page.events)
		if missed := pages.end(time.Now()); missed != nil {
			incomplete = &MissedError{missed.Reason}
		}
	}
}

// Latest returns the newest signed event of each kind and author from the configured relays
// and from further ones that authors named. unread has an error for each relay that could
// not be read to its end. err is the error of the first configured relay if all configured
// relays failed.
func (r *Reader) Latest(
	ctx context.Context, further []string, kinds []int, authors [][32]byte,
) (found []*nostr.Event, unread []error, err error) {
	q := Query{Kinds: kinds, Authors: authors, Most: 100 + 4*len(authors)*len(kinds)}
	latest := latestEvents{}
	var mu sync.Mutex
	failed, unread, err := r.All(ctx, further, func(ctx context.Context, relay string) error {
		ctx, cancel := context.WithTimeoutCause(ctx, latestWithin, errSlow)
		defer cancel()
		return r.Stored(ctx, relay, func(page []*nostr.Event) error {
			mu.Lock()
			defer mu.Unlock()
			latest.add(page)
			return ctx.Err()
		}, q)
	})
	if err != nil {
		return nil, unread, err
	}
	if failed == len(r.cfg.Relays) {
		return nil, unread, cmp.Or(errors.Join(unread...), errors.New("no relay is configured: set WEIR_NOSTR"))
	}
	return latest.events(), unread, nil
}

// All calls ask for each configured relay and for further ones, several at once. failed is
// the number of configured relays that failed.
func (r *Reader) All(
	ctx context.Context, further []string, ask func(ctx context.Context, relay string) error,
) (failed int, unread []error, err error) {
	var mu sync.Mutex
	g := errgroup.Group{}
	g.SetLimit(relaysAtOnce)
	asked := map[string]bool{}
	for i, relay := range slices.Concat(r.cfg.Relays, further) {
		one := relay
		if same, ok := nostr.ParseRelay(relay); ok {
			one = same
		}
		if asked[one] || i >= len(r.cfg.Relays) && r.cfg.AuthorRelays == nil {
			continue
		}
		asked[one] = true
		g.Go(func() error {
			err := ask(ctx, relay)
			if err == nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			unread = append(unread, err)
			if i < len(r.cfg.Relays) && !errors.Is(err, ErrIncomplete) {
				failed++
			}
			return nil
		})
	}
	g.Wait() // the goroutines return no error
	return failed, unread, ctx.Err()
}

// latestEvents keeps the newest event of each kind and author.
type latestEvents map[authorKind]*nostr.Event

type authorKind struct {
	author [32]byte
	kind   int
}

// add adds those events whose signatures are valid.
func (n latestEvents) add(page []*nostr.Event) {
	for _, e := range page {
		at := authorKind{e.PubKey, e.Kind}
		old := n[at]
		if old != nil && nostr.Revision(e.CreatedAt, e.ID) <= nostr.Revision(old.CreatedAt, old.ID) || e.CheckSignature() != nil {
			continue
		}
		n[at] = e
	}
}

// events returns the kept events, ordered by author and kind.
func (n latestEvents) events() []*nostr.Event {
	all := make([]*nostr.Event, 0, len(n))
	for _, e := range n {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *nostr.Event) int {
		return cmp.Or(slices.Compare(a.PubKey[:], b.PubKey[:]), cmp.Compare(a.Kind, b.Kind))
	})
	return all
}

// refusal returns the error of a subscription that a relay closed.
func refusal(msg *message) error {
	if strings.HasPrefix(msg.text, authRequired) {
		return errAuth
	}
	return fmt.Errorf("the relay closed the subscription: %s", consumer.Shorten(msg.text))
}

// refusedAnswer returns the error of a relay that does not accept the response to its
// challenge.
func refusedAnswer(msg *message) error {
	return fmt.Errorf("the relay refused the authentication: %s", consumer.Shorten(msg.text))
}
