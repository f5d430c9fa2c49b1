package workers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// errOlderList means that the relays no longer have the list that was read before.
var errOlderList = errors.New("the relays have only an older follow list than the one that was read before: its accounts stay followed")

// fromRelays reads the listing of a Nostr watch, which is one event. Accounts that are not in
// it are no longer followed, because relays do not hide accounts from a list.
func (w *SyncFollows) fromRelays(ctx context.Context, job *river.Job[jobs.SyncFollows], at *listingPlace, target nostr.Target) error {
	did := nostr.DID(target.Key)
	members, rev := []schema.Member{{DID: did}}, ""
	switch at.Watch.Kind {
	case schema.WatchAccount:
	case schema.WatchFollows:
		list, err := w.followList(ctx, did, target)
		if err != nil {
			return err
		}
		rev, members = nostr.Revision(list.CreatedAt, list.ID), nil
		for _, key := range list.Follows() {
			members = append(members, schema.Member{DID: nostr.DID(key)})
		}
	default:
		return NonRetryable(fmt.Errorf("a watch of the kind %s cannot have an account of Nostr: expected follows or account", at.Watch.Kind))
	}
	place := *at
	place.Pages, place.End = 1, true
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := schema.CheckListing(ctx, tx, at.Watch, at.Began); err != nil {
			return err
		}
		if rev != "" {
			newest, err := directory.RecordFollowList(ctx, tx, did, rev)
			if err == nil && !newest {
				err = NonRetryable(errOlderList)
			}
			if err != nil {
				return err
			}
		}
		if err := schema.AddListingMembers(ctx, tx, job.ID, "", members); err != nil {
			return err
		}
		_, err := river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// followList returns the newest follow list of an account. It also reads the account's relay
// list, because no other job does so unless the account is followed. It asks the relays on that
// list, too.
func (w *SyncFollows) followList(ctx context.Context, did string, target nostr.Target) (*nostr.Event, error) {
	if w.relays == nil {
		return nil, NonRetryable(errNoRelays)
	}
	further, err := directory.RelaysOf(ctx, w.pool, []string{did})
	if err != nil {
		return nil, err
	}
	found, unread, err := w.relays.Latest(ctx, further, []int{nostr.KindFollows, nostr.KindRelays}, [][32]byte{target.Key})
	if err != nil {
		return nil, fmt.Errorf("read the follow list of %s: %w", nostr.Npub(target.Key), err)
	}
	var list *nostr.Event
	var named []string
	for _, e := range found {
		switch e.Kind {
		case nostr.KindFollows:
			list = e
		case nostr.KindRelays:
			named = slices.DeleteFunc(e.WriteRelays(authorRelays), func(relay string) bool { return slices.Contains(further, relay) })
		}
	}
	if len(named) > 0 {
		found, more, err := w.relays.Latest(ctx, named, []int{nostr.KindFollows}, [][32]byte{target.Key})
		if unread = append(unread, more...); err != nil {
			return nil, fmt.Errorf("read the follow list of %s: %w", nostr.Npub(target.Key), err)
		}
		for _, e := range found {
			if list == nil || nostr.Revision(e.CreatedAt, e.ID) > nostr.Revision(list.CreatedAt, list.ID) {
				list = e
			}
		}
	}
	if list == nil {
		return nil, NonRetryable(errors.Join(append(unread, fmt.Errorf("no relay has the follow list (kind 3) of %s", nostr.Npub(target.Key)))...))
	}
	if len(unread) > 0 {
		JobLog(ctx, w.log).Info("relays_unread", "did", did, "error", errors.Join(unread...))
	}
	return list, nil
}
