package nostr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// errOlderList means that the relays no longer have the list that was read before.
var errOlderList = errors.New("the relays have only an older follow list than the one that was read before: its accounts stay followed")

// Listing reads the members of a watch, which are in one event. Relays do not hide accounts from a list.
func (r *relays) Listing(
	ctx context.Context, t workers.Target, kind string,
) (members []schema.Member, store func(context.Context, pgx.Tx) error, err error) {
	key, ok := nostr.ParseDID(t.DID)
	switch {
	case !ok:
		return nil, nil, workers.NonRetryable(errors.New("a watch has the key of an account, not a name: `weir watch add` looks names up"))
	case kind == schema.WatchAccount:
		return []schema.Member{{DID: t.DID}}, nil, nil
	case kind != schema.WatchFollows:
		return nil, nil, workers.NonRetryable(
			fmt.Errorf("a watch of the kind %s cannot have an account of Nostr: expected follows or account", kind))
	}
	list, err := r.followList(ctx, t.DID, key)
	if err != nil {
		return nil, nil, err
	}
	for _, key := range list.Follows() {
		members = append(members, schema.Member{DID: nostr.DID(key)})
	}
	return members, func(ctx context.Context, tx pgx.Tx) error {
		newest, err := directory.RecordFollowList(ctx, tx, t.DID, nostr.Revision(list.CreatedAt, list.ID))
		if err == nil && !newest {
			err = workers.NonRetryable(errOlderList)
		}
		return err
	}, nil
}

// followList returns the newest follow list of an account. It also reads the account's relay
// list, because no other job does so unless the account is followed. It asks the relays on that
// list, too.
func (r *relays) followList(ctx context.Context, did string, key [32]byte) (*nostr.Event, error) {
	if err := r.Check(); err != nil {
		return nil, workers.NonRetryable(err)
	}
	further, err := directory.RelaysOf(ctx, r.Pool, []string{did})
	if err != nil {
		return nil, err
	}
	found, unread, err := r.Latest(ctx, further, []int{nostr.KindFollows, nostr.KindRelays}, [][32]byte{key})
	if err != nil {
		return nil, fmt.Errorf("read the follow list of %s: %w", nostr.Npub(key), err)
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
		found, more, err := r.Latest(ctx, named, []int{nostr.KindFollows}, [][32]byte{key})
		if unread = append(unread, more...); err != nil {
			return nil, fmt.Errorf("read the follow list of %s: %w", nostr.Npub(key), err)
		}
		for _, e := range found {
			if list == nil || nostr.Revision(e.CreatedAt, e.ID) > nostr.Revision(list.CreatedAt, list.ID) {
				list = e
			}
		}
	}
	if list == nil {
		return nil, workers.NonRetryable(
			errors.Join(append(unread, fmt.Errorf("no relay has the follow list (kind 3) of %s", nostr.Npub(key)))...))
	}
	if len(unread) > 0 {
		workers.JobLog(ctx, r.Log).Info("relays_unread", "did", did, "error", errors.Join(unread...))
	}
	return list, nil
}
