package simnet_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestStatusesSetByHandAreEventsAndStay(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, Accounts: 50, History: 500})
	var a simnet.Account
	for _, one := range n.Accounts() {
		if one.Status == "" {
			a = one
		}
	}
	c := dial(t, n, "wantedDids", a.DID)
	require.NoError(t, n.Deactivate(a.DID))
	e := c.next()
	require.Equal(t, []any{"account", false, "deactivated"}, []any{e.Kind, e.Account.Active, e.Account.Status})
	n.Play(2000)
	now, ok := n.Account(a.DID)
	require.True(t, ok)
	require.Equal(t, simnet.Account{DID: a.DID, Handle: a.Handle, Status: "deactivated"}, now)
	require.ErrorContains(t, n.Deactivate(a.DID), "already")
	require.NoError(t, n.Reactivate(a.DID))
	e = c.next()
	require.Equal(t, []any{"account", true, ""}, []any{e.Kind, e.Account.Active, e.Account.Status})
	require.ErrorContains(t, n.Reactivate(a.DID), "already")
	require.ErrorContains(t, n.Delete("did:plc:nobody"), "did:plc:nobody")
}

func TestReactivatedAccountsAreNotHiddenAtRandom(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, Accounts: 20})
	all := n.Accounts()[:3] // the most active
	for _, a := range all {
		require.NoError(t, n.Deactivate(a.DID))
		require.NoError(t, n.Reactivate(a.DID))
	}
	before := len(n.Log().Entries())
	n.Play(5000)
	for _, a := range all {
		now, _ := n.Account(a.DID)
		require.Empty(t, now.Status)
	}
	require.True(t, slices.ContainsFunc(n.Log().Entries()[before:], func(e *simnet.Entry) bool { return e.Kind == "account" && !e.Active }),
		"others were hidden")
}

func TestDeletedAccountIsReplacedAndStaysDeleted(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, Accounts: 30, History: 300})
	before := len(n.Accounts())
	var a simnet.Account
	for _, one := range n.Accounts() {
		if one.Status == "" && len(standing(n, one.DID, postCollection)) > 0 {
			a = one
		}
	}
	require.NoError(t, n.Delete(a.DID))
	require.Len(t, n.Accounts(), before+1)
	require.ErrorContains(t, n.Reactivate(a.DID), "permanently deleted")
	_, ok := n.Account(a.Handle)
	require.False(t, ok, "the handle of a deleted account must be free")
	require.Empty(t, n.Follows(a.DID))
	n.Play(3000)
	over := false
	for _, e := range n.Log().Entries() {
		require.False(t, over && e.DID == a.DID, "a deleted account wrote")
		over = over || e.DID == a.DID && e.Status == "deleted"
	}
	require.True(t, over)
	gone, ok := n.Account(a.DID)
	require.True(t, ok)
	require.Equal(t, "deleted", gone.Status)
	newest := n.Accounts()[before]
	require.NotEqual(t, a.DID, newest.DID)
}

func TestStatusesOfAccountsEqualTheLog(t *testing.T) {
	t.Parallel()
	long(t)
	n := network(t, simnet.Config{Seed: 6, Accounts: 300, History: 12_000})
	active := slices.DeleteFunc(n.Accounts(), func(a simnet.Account) bool { return a.Status != "" })
	for i, hide := range []func(string) error{n.TakeDown, n.Suspend, n.Deactivate} { // others are hidden at random
		require.NoError(t, hide(active[i].DID))
	}
	status, handles := map[string]string{}, map[string]string{}
	for _, e := range n.Log().Entries() {
		switch e.Kind {
		case "account":
			status[e.DID] = e.Status
		case "identity":
			handles[e.DID] = e.Handle
		}
	}
	seen := map[string]bool{}
	require.Greater(t, len(n.Accounts()), 300)
	for _, a := range n.Accounts() {
		require.Equal(t, status[a.DID], a.Status)
		seen[a.Status] = true
		if handle := handles[a.DID]; handle != "" {
			require.Equal(t, handle, a.Handle)
		}
	}
	require.GreaterOrEqual(t, len(seen), 4, "%v", seen)
}

func TestLastActiveAccountStays(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, Accounts: 10})
	a := n.Accounts()
	for _, one := range a[:9] {
		require.NoError(t, n.Suspend(one.DID))
	}
	require.ErrorContains(t, n.TakeDown(a[9].DID), "the network needs a writer")
	n.Play(3000)
	for _, e := range n.Log().Entries()[9:] {
		require.Equal(t, a[9].DID, e.DID)
	}
	require.NoError(t, n.Deactivate(n.Hub().DID), "who is not one of them")
}
