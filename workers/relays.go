package workers

import (
	"context"
	"errors"
	"time"

	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
)

// Relays reads Nostr relays: the configured ones, and further ones that authors named.
type Relays interface {
	// Latest returns the newest signed event of each kind and author. unread has an error
	// for each relay that was not read to its end. err means that no configured relay was
	// read.
	Latest(ctx context.Context, further []string, kinds []int, authors [][32]byte) (found []*nostr.Event, unread []error, err error)
	// Backfill stores what an author wrote since a time. An error is the database's,
	// or that of a relay if no configured relay was read.
	Backfill(ctx context.Context, further []string, author [32]byte, since time.Time) (Backfilled, error)
	// AuthorPast stores events of the past that an author wrote. Its error is as Backfill's.
	AuthorPast(ctx context.Context, further []string, author [32]byte, of Past) (Backfilled, error)
	// RelayPast stores events of the past, newest first, that the configured relay of a stream
	// has. read is how many it sent. The rest begins at the date next; zero: there is none.
	// unread says why the relay could not be read. err is the database's error.
	RelayPast(ctx context.Context, stream string, of Past) (found Backfilled, read int, next time.Time, unread, err error)
	// Read stores what authors wrote since a time to a relay that they named, and returns
	// how many records changed. unread says why the relay was not read to its end; if it is
	// ErrIncomplete, another attempt would not read more. err is the database's error.
	Read(ctx context.Context, relay string, authors [][32]byte, since time.Time) (written int, unread, err error)
	// Audit compares a time at the configured relay of a stream, by the authors' dates, with
	// the stored events, and stores the events that were never stored. unread says why the
	// comparison is incomplete; if it is ErrIncomplete, it can never be completed. err is
	// the database's error.
	Audit(ctx context.Context, stream string, from, to time.Time) (found directory.Audit, unread, err error)
	// Streams returns the names of the configured relays' streams.
	Streams() []string
	// Configured returns the configured relays, in the spelling of nostr.ParseRelay.
	Configured() []string
}

// Past selects events of the past.
type Past struct {
	Kinds        []int                        // none: every kind
	Includes     func(collection string) bool // reports whether events of a kind are stored; requests to delete always are
	Since, Until time.Time                    // by the authors' dates, inclusive; zero: everything
	Most         int                          // maximum number of events to read from a relay
}

// Backfilled is the result of reading an author's events from relays.
type Backfilled struct {
	Written int // records
	Newest  time.Time
	Unread  string    // why configured relays were not read; "": all were read
	Cut     string    // why older events are missing; "": none are missing
	Oldest  time.Time // no events are missing since then
}

// ErrIncomplete is wrapped by the error of a relay that does not send everything that it
// has.
var ErrIncomplete = errors.New("the relay does not send everything")

// errNoRelays means that a Nostr account cannot be read because no relay is configured.
var errNoRelays = errors.New("accounts of Nostr are read from relays: set WEIR_NOSTR")

// nostrTarget returns the account that a watch names. ok is false if it is not a Nostr
// account.
func nostrTarget(target string) (t nostr.Target, ok bool, err error) {
	t, ok, err = nostr.ParseTarget(target)
	if ok && err == nil && t.Name != "" {
		err = errors.New("a watch has the key of an account, not a name: `weir watch add` looks names up")
	}
	return t, ok, err
}
