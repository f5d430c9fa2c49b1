package simnet_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func fixedStart() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func written(t *testing.T, cfg simnet.Config, g simnet.Generation) ([]byte, *simnet.Net) {
	t.Helper()
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&out, g))
	return out.Bytes(), n
}

func TestSameSeedGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	for _, mix := range []simnet.Mix{simnet.MixPosts, simnet.MixNetwork} {
		cfg := simnet.Config{Seed: 7, Accounts: 300, Mix: mix, History: 2000, Start: fixedStart()}
		for _, g := range []simnet.Generation{simnet.V1, simnet.V2} {
			one, _ := written(t, cfg, g)
			other, _ := written(t, cfg, g)
			require.True(t, bytes.Equal(one, other), "the same seed gave two histories")
		}
		cfg.Seed = 8
		one, _ := written(t, cfg, simnet.V2)
		cfg.Seed = 7
		other, _ := written(t, cfg, simnet.V2)
		require.False(t, bytes.Equal(one, other), "two seeds gave one history")
	}
}

func TestGenerationsAreIndependent(t *testing.T) {
	t.Parallel()
	cfg := simnet.Config{Seed: 3, Accounts: 100, History: 300, Start: fixedStart()}
	want, n := written(t, cfg, simnet.V2)
	v1, _ := written(t, cfg, simnet.V1)
	for _, g := range []simnet.Generation{simnet.V1, simnet.V2} {
		var out bytes.Buffer
		require.NoError(t, n.Log().WriteJSONL(&out, g))
		require.Equal(t, map[simnet.Generation]string{simnet.V1: string(v1), simnet.V2: string(want)}[g], out.String())
	}
}

func TestV1TimesAreUniqueAndAscending(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{
		Seed: 5, Accounts: 100, Mix: simnet.MixNetwork, History: 5000, HistorySpan: 2 * time.Millisecond, Start: fixedStart(),
	})
	require.NoError(t, err)
	n.Play(500)
	last := int64(0)
	for _, line := range lines(t, n, simnet.V1) {
		var e event
		require.NoError(t, json.Unmarshal(line, &e))
		require.Nil(t, e.Cursor, "a server of the first generation sent a cursor: %s", line)
		require.Greater(t, e.TimeUS, last)
		last = e.TimeUS
	}
}

func TestV2NumbersEventsAndSharesTheTimeOfACommit(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 100, Mix: simnet.MixNetwork, History: 5000, Start: fixedStart()})
	require.NoError(t, err)
	entries := n.Log().Entries()
	shared := 0
	var before event
	for i, line := range lines(t, n, simnet.V2) {
		var e event
		require.NoError(t, json.Unmarshal(line, &e))
		require.NotNil(t, e.Cursor)
		require.Equal(t, entries[i].Seq, *e.Cursor)
		require.Equal(t, entries[0].Seq+int64(i), *e.Cursor)
		require.GreaterOrEqual(t, e.TimeUS, before.TimeUS)
		if e.Commit != nil && before.Commit != nil && e.Commit.Rev == before.Commit.Rev {
			require.Equal(t, before.DID, e.DID)
			require.Equal(t, before.TimeUS, e.TimeUS)
			shared++
		}
		before = e
	}
	require.Greater(t, shared, 200, "commits of two operations occur")
}

func TestWrittenEventsAreTheEntries(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 100, History: 3000, Start: fixedStart()})
	require.NoError(t, err)
	entries := n.Log().Entries()
	require.Len(t, entries, 3000)
	require.Same(t, entries[2999], n.Log().Last())
	require.Equal(t, fixedStart().UnixMicro(), entries[2999].TimeUS)
	for i, line := range lines(t, n, simnet.V2) {
		var e event
		require.NoError(t, json.Unmarshal(line, &e))
		want := entries[i]
		require.Equal(t, []any{want.DID, want.TimeUS, want.Kind}, []any{e.DID, e.TimeUS, e.Kind})
		switch want.Kind {
		case "commit":
			require.Equal(t, []any{want.Rev, want.Operation, want.Collection, want.Rkey, want.CID},
				[]any{e.Commit.Rev, e.Commit.Operation, e.Commit.Collection, e.Commit.Rkey, e.Commit.CID})
			require.Equal(t, string(want.Record), string(e.Commit.Record))
			require.Equal(t, want.Operation == "delete", e.Commit.Record == nil && e.Commit.CID == "")
		case "identity":
			require.Equal(t, []any{want.DID, want.Handle, want.RelaySeq}, []any{e.Identity.DID, e.Identity.Handle, e.Identity.Seq})
			require.NotEmpty(t, e.Identity.Time)
		case "account":
			require.Equal(t, []any{want.DID, want.Active, want.Status, want.RelaySeq},
				[]any{e.Account.DID, e.Account.Active, e.Account.Status, e.Account.Seq})
			require.NotEmpty(t, e.Account.Time)
		default:
			require.Fail(t, "unknown kind", want.Kind)
		}
	}
}

func TestTooFewAccountsAreRefused(t *testing.T) {
	t.Parallel()
	_, err := simnet.New(simnet.Config{Accounts: 9})
	require.ErrorContains(t, err, "10 accounts")
}
