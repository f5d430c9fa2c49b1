package nostr

import (
	"context"
	"errors"
	"fmt"
	"time"

	source "github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/nostr/negentropy"
	"github.com/weir-social/weir/schema"
)

const (
	mostMissing = 20_000    // maximum of missing events that one relay may bring per day
	mostStored  = 2_000_000 // maximum of stored records of a day that can be compared: 150 MB of memory
)

// Streams returns the names of the configured relays' streams.
func (r *relays) Streams() (all []string) {
	for _, s := range r.streams {
		all = append(all, s.Name)
	}
	return all
}

// Audit compares a relay with the stored events of the accounts that have been followed
// since that time, or of everyone.
func (r *relays) Audit(ctx context.Context, stream string, from, to time.Time) (found directory.Audit, unread, err error) {
	c := source.Comparison{Query: source.Query{Kinds: r.deleting(), Every: r.every, Since: from, Most: mostMissing}, Until: to}
	dids, everyone, err := directory.AuditedAuthors(ctx, r.Pool, from)
	if err != nil {
		return found, nil, err
	}
	c.Everyone = everyone
	for _, did := range dids {
		if key, ok := nostr.ParseDID(did); ok {
			c.Authors = append(c.Authors, key)
		}
	}
	if c.Have, err = r.stored(ctx, from, to); errors.Is(err, directory.ErrManyRecords) {
		return found, fmt.Errorf("%w: %w", source.ErrIncomplete, err), nil
	}
	if err != nil {
		return found, nil, err
	}
	found.Events = len(c.Have)
	retry, err := r.requested(ctx)
	if err != nil {
		return found, nil, err
	}
	c.Unknown = func(ctx context.Context, ids [][32]byte) ([][32]byte, error) {
		unknown, failed := r.neverSeen(ctx, ids)
		if failed != nil && ctx.Err() == nil {
			err = failed
		}
		return unknown, failed
	}
	sum, err := r.backfill(ctx)
	if err != nil {
		return found, nil, err
	}
	c.Store = func(ctx context.Context, events []*nostr.Event) error { return sum.add(ctx, events, retry) }
	result, unread := r.Compare(ctx, r.url(stream), c)
	found.Method, found.Missing, found.Stored = result.By, result.Missing, sum.found.Written
	switch {
	case err != nil:
		return found, nil, err
	case sum.failed != nil:
		return found, nil, sum.failed
	case unread == nil && result.Sent < result.Missing:
		unread = fmt.Errorf("%w: it names %d events more than it sends", source.ErrIncomplete, result.Missing-result.Sent)
	}
	return found, unread, nil
}

// url returns the address of a stream's relay.
func (r *relays) url(stream string) string {
	for _, s := range r.streams {
		if s.Name == stream {
			return s.Endpoints[0]
		}
	}
	return ""
}

// stored returns the stored events of a time.
func (r *relays) stored(ctx context.Context, from, to time.Time) (stored []source.StoredEvent, err error) {
	var collections []string
	for _, kind := range r.kinds {
		collections = append(collections, nostr.Collection(kind))
	}
	if r.every {
		if collections, err = schema.CollectionsUnder(ctx, r.Pool, nostr.Prefix, nostr.MaxKind+1); err != nil {
			return nil, err
		}
	}
	records, err := directory.EventsBetween(ctx, r.Pool, collections, nostr.RevisionDate(from.Unix()), nostr.RevisionDate(to.Unix()),
		mostStored)
	for _, record := range records {
		author, ok := nostr.ParseDID(record.DID)
		at, id, dated := nostr.ParseRevision(record.Rev)
		if ok && dated {
			stored = append(stored, source.StoredEvent{Author: author, Item: negentropy.Item{At: at, ID: id}})
		}
	}
	return stored, err
}

// neverSeen returns those ids whose events were never stored.
func (r *relays) neverSeen(ctx context.Context, ids [][32]byte) (unknown [][32]byte, err error) {
	short := make([][16]byte, len(ids))
	for i, id := range ids {
		short[i] = [16]byte(id[:])
	}
	found, err := schema.SeenIDs(ctx, r.Pool, short)
	if err != nil {
		return nil, err
	}
	seen := map[[16]byte]bool{}
	for _, id := range found {
		seen[id] = true
	}
	for i, id := range ids {
		if !seen[short[i]] {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}
