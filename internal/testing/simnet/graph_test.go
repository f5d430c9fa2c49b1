package simnet_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestSeededGraphIsReproducibleAndHasALongTail(t *testing.T) {
	t.Parallel()
	cfg := simnet.Config{Seed: 4, Accounts: 1000, Start: fixedStart()}
	n, again := network(t, cfg), network(t, cfg)
	var each []int
	followers := map[string]int{}
	for i, a := range n.Accounts() {
		follows := n.Follows(a.DID)
		if i < 50 {
			require.Equal(t, follows, again.Follows(a.DID))
		}
		require.NotContains(t, follows, a.DID)
		require.Len(t, slices.Compact(slices.Sorted(slices.Values(follows))), len(follows), "each once")
		require.NotEmpty(t, follows)
		each = append(each, len(follows))
		for _, f := range follows {
			followers[f]++
		}
	}
	require.Greater(t, top(each), 300)
	require.Less(t, median(each), 30)
	require.Greater(t, followers[n.Accounts()[0].DID], 5*followers[n.Accounts()[950].DID], "active accounts are followed more")
	cfg.Seed = 5
	require.NotEqual(t, n.Accounts()[0].DID, network(t, cfg).Accounts()[0].DID)
}

func TestFollowsArePagedLatestFirst(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Accounts: 500, Follows: 230})
	hub := n.Hub()
	want := n.Follows(hub.DID)
	require.Len(t, want, 230)
	for limit, pages := range map[string]int{"": 5, "100": 3, "1": 230} {
		got, count := everyFollow(t, n, hub.Handle, limit)
		require.Equal(t, want, got)
		require.Equal(t, pages, count, "limit %q", limit)
	}
	out := fetch[bsky.GraphGetFollows_Output](t, n, getFollows, "actor", hub.DID)
	require.Equal(t, []string{hub.DID, "hub.example"}, []string{out.Subject.Did, out.Subject.Handle})
	for _, f := range out.Follows {
		a, ok := n.Account(f.Did)
		require.True(t, ok)
		require.Equal(t, a.Handle, f.Handle)
		require.NotEmpty(t, *f.DisplayName)
	}

	require.NoError(t, n.Deactivate(want[3]))
	require.NoError(t, n.Delete(want[4]))
	out = fetch[bsky.GraphGetFollows_Output](t, n, getFollows, "actor", hub.DID, "limit", "10")
	require.Len(t, out.Follows, 8, "hidden accounts shorten the page")
	require.NotNil(t, out.Cursor)
	got, _ := everyFollow(t, n, hub.DID, "10")
	require.Equal(t, slices.Delete(slices.Clone(want), 3, 5), got)
	require.NoError(t, n.Reactivate(want[3]))
	got, _ = everyFollow(t, n, hub.DID, "10")
	require.Equal(t, slices.Delete(slices.Clone(want), 4, 5), got)
}

func TestFollowingAndUnfollowingAreEventsAndShowAtOnce(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Accounts: 300, Follows: 20})
	hub := n.Hub()
	before := n.Follows(hub.DID)
	var strangers []string
	for _, a := range n.Accounts() {
		if !slices.Contains(before, a.DID) {
			strangers = append(strangers, a.DID)
		}
	}
	c := dial(t, n, "wantedDids", hub.DID)
	require.NoError(t, n.Follow(hub.DID, strangers[0], strangers[1]))
	var rkeys []string
	for _, want := range strangers[:2] {
		e := c.next()
		require.Equal(t, []string{"create", "app.bsky.graph.follow"}, []string{e.Commit.Operation, e.Commit.Collection})
		var record bsky.GraphFollow
		require.NoError(t, json.Unmarshal(e.Commit.Record, &record))
		require.Equal(t, want, record.Subject)
		rkeys = append(rkeys, e.Commit.Rkey)
	}
	got, _ := everyFollow(t, n, hub.DID, "100")
	require.Equal(t, append([]string{strangers[1], strangers[0]}, before...), got)

	require.NoError(t, n.Unfollow(hub.DID, strangers[0], before[5]))
	first, second := c.next(), c.next()
	require.Equal(t, []string{"delete", "delete"}, []string{first.Commit.Operation, second.Commit.Operation})
	require.Contains(t, []string{first.Commit.Rkey, second.Commit.Rkey}, rkeys[0])
	got, _ = everyFollow(t, n, hub.DID, "100")
	require.Equal(t, append([]string{strangers[1]}, slices.Delete(slices.Clone(before), 5, 6)...), got)

	last := n.Log().Last()
	require.ErrorContains(t, n.Unfollow(hub.DID, strangers[0], strangers[1]), "follows only 1 of the 2")
	require.Same(t, last, n.Log().Last(), "a failed unfollow must write nothing")
	n.Play(1)
	require.Equal(t, last.Seq+1, n.Log().Last().Seq, "no number went missing")
	require.ErrorContains(t, n.Follow(hub.DID, "did:plc:nobody"), "did:plc:nobody")
}

func TestFollowingTwiceIsListedOnceUntilBothAreDeleted(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Follows: 5})
	hub := n.Hub().DID
	follows := n.Follows(hub)
	require.NoError(t, n.Follow(hub, follows[2]))
	got, _ := everyFollow(t, n, hub, "2")
	require.Equal(t, follows, got)
	records := everyRecord(t, n, hub, "app.bsky.graph.follow")
	require.Len(t, records, 6)
	require.NoError(t, n.DeleteRecord(records[3].Uri), "the first of the two")
	got, _ = everyFollow(t, n, hub, "2")
	require.Equal(t, []string{follows[2], follows[0], follows[1], follows[3], follows[4]}, got)
	require.NoError(t, n.DeleteRecord(records[0].Uri))
	got, _ = everyFollow(t, n, hub, "2")
	require.Equal(t, slices.Delete(slices.Clone(follows), 2, 3), got)
}

func TestFollowsOfTheModelCount(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Mix: simnet.MixNetwork, History: 4000})
	checked := 0
	for _, e := range n.Log().Entries() {
		if a, _ := n.Account(e.DID); e.Collection != "app.bsky.graph.follow" || a.Status == "deleted" {
			continue
		}
		var record bsky.GraphFollow
		require.NoError(t, json.Unmarshal(e.Record, &record))
		require.Contains(t, n.Follows(e.DID), record.Subject)
		checked++
	}
	require.Greater(t, checked, 100)
}

func TestHubFollowsAsManyAsConfigured(t *testing.T) {
	t.Parallel()
	for _, cfg := range []simnet.Config{{Accounts: 20, Follows: 21}, {Follows: -1}} {
		_, err := simnet.New(cfg)
		require.ErrorContains(t, err, "the hub follows")
	}
	n := network(t, simnet.Config{Accounts: 20, Follows: 20})
	require.Len(t, n.Follows(n.Hub().DID), 20)
	require.Empty(t, n.Follows("did:plc:nobody"))
}

func TestListsAndStarterPacksArePagedAndChange(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4})
	var dids []string
	for _, a := range n.Accounts()[:30] {
		dids = append(dids, a.DID)
	}
	owner := n.Hub()
	uri, err := n.MakeList(owner.DID, dids...)
	require.NoError(t, err)
	require.Regexp(t, `^at://`+owner.DID+`/app\.bsky\.graph\.list/[2-7a-z]{13}$`, uri)
	require.Len(t, n.Log().Entries(), 31)
	members := func(uri string) (all []string) {
		for cursor := ""; ; {
			out := fetch[bsky.GraphGetList_Output](t, n, getList, "list", uri, "limit", "8", "cursor", cursor)
			require.Equal(t, []string{uri, owner.DID}, []string{out.List.Uri, out.List.Creator.Did})
			for _, item := range out.Items {
				all = append(all, item.Subject.Did)
			}
			if out.Cursor == nil {
				return all
			}
			cursor = *out.Cursor
		}
	}
	slices.Reverse(dids)
	require.Equal(t, dids, members(uri))
	require.NoError(t, n.Deactivate(dids[7]))
	require.Equal(t, slices.Delete(slices.Clone(dids), 7, 8), members(uri))
	require.NoError(t, n.Reactivate(dids[7]))
	require.NoError(t, n.RemoveFromList(uri, dids[0], dids[9]))
	require.ErrorContains(t, n.RemoveFromList(uri, dids[0]), "none of the accounts")
	require.NoError(t, n.AddToList(uri, owner.DID))
	require.Equal(t, append([]string{owner.DID}, append(slices.Clone(dids[1:9]), dids[10:]...)...), members(uri))

	pack, err := n.MakeStarterPack(owner.DID, "Start here", dids[:3]...)
	require.NoError(t, err)
	out := fetch[bsky.GraphGetStarterPack_Output](t, n, getStarterPack, "starterPack", pack)
	require.Equal(t, []string{pack, owner.DID, "Start here"},
		[]string{out.StarterPack.Uri, out.StarterPack.Creator.Did, out.StarterPack.List.Name})
	require.Equal(t, "app.bsky.graph.defs#referencelist", *out.StarterPack.List.Purpose)
	require.Equal(t, out.StarterPack.List.Uri, out.StarterPack.Record.Val.(*bsky.GraphStarterpack).List)
	require.ElementsMatch(t, dids[:3], members(out.StarterPack.List.Uri))
	require.NoError(t, n.Delete(owner.DID))
	require.Equal(t, 400, call(t, n, getList, "list", uri).status)
	require.Equal(t, 400, call(t, n, getStarterPack, "starterPack", pack).status)
}
