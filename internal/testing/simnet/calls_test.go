package simnet_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestCallsAreRecorded(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8})
	require.Zero(t, n.MaxConcurrent())
	require.Zero(t, n.MinGap())
	began := time.Now()
	call(t, n, getFollows, "actor", n.Hub().DID, "limit", "10")
	call(t, n, getAuthorFeed, "actor", "nobody.example", "cursor", "2026-01-01T00:00:00Z")
	call(t, n, getProfiles, "actors", n.Hub().DID)
	calls := n.Calls()
	require.Len(t, calls, 3)
	require.Equal(t, []any{"/xrpc/" + getFollows, getFollows, n.Hub().DID, "", 200, 1},
		[]any{calls[0].Path, calls[0].Endpoint, calls[0].Actor, calls[0].Cursor, calls[0].Status, calls[0].Concurrent})
	require.Equal(t, []any{getAuthorFeed, "nobody.example", "2026-01-01T00:00:00Z", 400},
		[]any{calls[1].Endpoint, calls[1].Actor, calls[1].Cursor, calls[1].Status})
	require.Equal(t, n.Hub().DID, calls[2].Actor)
	before := began
	for _, c := range calls {
		require.True(t, c.At.After(before) && !c.End.Before(c.At))
		before = c.End
	}
	require.Equal(t, min(calls[1].At.Sub(calls[0].At), calls[2].At.Sub(calls[1].At)), n.MinGap())
	require.Equal(t, calls[1].At.Sub(calls[0].At), n.MinGap(getFollows, getAuthorFeed))
	require.Equal(t, 1, n.MaxConcurrent())
	require.Len(t, n.Calls(getFollows), 1)
	n.ForgetCalls()
	require.Empty(t, n.Calls())
}

func TestCallsAtOnceAreCounted(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8})
	hub := n.Hub().DID
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Slow, Endpoint: getFollows, Count: 7, Wait: time.Hour}))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var asking sync.WaitGroup
	for range 7 {
		asking.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.AppViewURL()+"/xrpc/"+getFollows+query("actor", hub), nil)
			if err == nil {
				if response, err := http.DefaultClient.Do(r); err == nil {
					response.Body.Close() // not reached
				}
			}
		})
	}
	eventually.True(t, func() bool { return len(n.Calls()) == 7 }, time.Millisecond)
	require.Equal(t, 7, n.MaxConcurrent())
	call(t, n, getAuthorFeed, "actor", hub)
	require.Equal(t, 8, n.MaxConcurrent())
	require.Equal(t, 8, n.Calls()[7].Concurrent)
	require.Equal(t, 1, n.MaxConcurrent(getAuthorFeed))
	require.True(t, n.Calls()[0].End.IsZero())
	cancel()
	asking.Wait()
	eventually.True(t, func() bool { return !n.Calls()[0].End.IsZero() }, time.Millisecond)
	require.Zero(t, n.Calls()[0].Status, "the call has no response yet")
	eventually.True(t, func() bool {
		call(t, n, getFollows, "actor", hub)
		all := n.Calls()
		return all[len(all)-1].Concurrent == 1
	}, time.Millisecond)
	require.Equal(t, map[simnet.CallFaultKind]int{simnet.Slow: 7}, n.CallsFired())
}

// TestCallEndsBeforeItsResponseIsRead shows that sequential calls never count
// as concurrent, however large the responses.
func TestCallEndsBeforeItsResponseIsRead(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8, Accounts: 300, Follows: 200})
	for range 200 {
		call(t, n, getFollows, "actor", n.Hub().DID, "limit", "100")
	}
	require.Equal(t, 1, n.MaxConcurrent())
	for _, c := range n.Calls() {
		require.Equal(t, 1, c.Concurrent)
	}
}

func TestRateLimitIsSentAndEnforced(t *testing.T) {
	t.Parallel()
	opened := time.Now().Truncate(time.Second)
	n := network(t, simnet.Config{Seed: 8, Access: simnet.Access{Rate: simnet.Rate{Calls: 3, Window: time.Hour}}})
	hub := n.Hub().DID
	for left := 2; left >= 0; left-- {
		r := call(t, n, getFollows, "actor", hub)
		require.Equal(t, 200, r.status)
		require.Equal(t, []string{"3", strconv.Itoa(left), "3;w=3600"},
			[]string{r.header.Get("RateLimit-Limit"), r.header.Get("RateLimit-Remaining"), r.header.Get("RateLimit-Policy")})
		reset, err := strconv.ParseInt(r.header.Get("RateLimit-Reset"), 10, 64)
		require.NoError(t, err)
		require.WithinRange(t, time.Unix(reset, 0), opened.Add(time.Hour), time.Now().Add(time.Hour+time.Second))
		require.Empty(t, r.header.Get("Retry-After"))
	}
	r := call(t, n, getAuthorFeed, "actor", hub)
	requireError(t, r, 429, "RateLimitExceeded", "Rate Limit Exceeded")
	wait, err := strconv.Atoi(r.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, wait)
	require.LessOrEqual(t, wait, 3600)
	require.Equal(t, "0", r.header.Get("RateLimit-Remaining"))
	require.Equal(t, 429, n.Calls()[3].Status)

	n.SetRate(simnet.Rate{Calls: 1, Window: 50 * time.Millisecond})
	require.Equal(t, 200, call(t, n, getFollows, "actor", hub).status)
	eventually.True(t, func() bool { return call(t, n, getFollows, "actor", hub).status == 200 }, time.Millisecond, "a new window begins")
	n.SetRate(simnet.Rate{})
	require.Empty(t, call(t, n, getFollows, "actor", hub).header.Get("RateLimit-Limit"))
}

func TestLatencyIsTheMinimumOfACall(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8, Access: simnet.Access{Latency: 30 * time.Millisecond}})
	call(t, n, getFollows, "actor", n.Hub().DID)
	first := n.Calls()[0]
	require.GreaterOrEqual(t, first.End.Sub(first.At), 30*time.Millisecond)
	n.SetLatency(0)
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Slow, Wait: 20 * time.Millisecond}))
	require.Equal(t, 200, call(t, n, getFollows, "actor", n.Hub().DID).status)
	second := n.Calls()[1]
	require.GreaterOrEqual(t, second.End.Sub(second.At), 20*time.Millisecond)
}

func TestFaultsHappenToTheirEndpointAsOftenAsRequested(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8})
	hub := n.Hub().DID
	for kind, status := range map[simnet.CallFaultKind]int{
		simnet.InternalError: 500, simnet.BadGateway: 502, simnet.Unavailable: 503, simnet.Forbidden: 403, simnet.Expired: 401,
	} {
		require.NoError(t, n.FailCalls(simnet.CallFault{Kind: kind, Endpoint: getFollows, Count: 2}))
		require.Equal(t, 200, call(t, n, getAuthorFeed, "actor", hub).status, "another endpoint")
		for _, want := range []int{status, status, 200} {
			require.Equal(t, want, call(t, n, getFollows, "actor", hub).status)
		}
		require.Equal(t, 2, n.CallsFired()[kind])
	}
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.BadGateway}))
	require.True(t, strings.HasPrefix(string(call(t, n, getProfiles, "actors", hub).body), "<html>"))
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Wait: 90 * time.Second}))
	require.Equal(t, "90", call(t, n, getProfiles, "actors", hub).header.Get("Retry-After"))
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.InternalError, Count: 5}))
	n.ClearCallFaults()
	require.Equal(t, 200, call(t, n, getProfiles, "actors", hub).status)
	require.ErrorContains(t, n.FailCalls(simnet.CallFault{Kind: "flood"}), "expected one of")
}

func TestFaultsAlterSuccessfulResponses(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8})
	hub := n.Hub().DID
	whole := call(t, n, getFollows, "actor", hub).body
	spoilt := func(kind simnet.CallFaultKind) reply {
		require.NoError(t, n.FailCalls(simnet.CallFault{Kind: kind}))
		require.Equal(t, 400, call(t, n, getFollows, "actor", "nobody.example").status, "a refusal is unchanged")
		r := call(t, n, getFollows, "actor", hub)
		require.Equal(t, 200, r.status)
		require.Equal(t, 1, n.CallsFired()[kind])
		return r
	}
	r := spoilt(simnet.Severed)
	require.Error(t, r.err)
	require.True(t, strings.HasPrefix(string(whole), string(r.body)))
	all := n.Calls()
	require.Zero(t, all[len(all)-1].Status)
	r = spoilt(simnet.Malformed)
	require.NoError(t, r.err)
	require.False(t, json.Valid(r.body))
	r = spoilt(simnet.Empty)
	require.NoError(t, r.err)
	require.Empty(t, r.body)
	r = spoilt(simnet.Huge)
	require.NoError(t, r.err)
	require.Greater(t, len(r.body), 64<<20)
	require.Equal(t, string(whole), strings.TrimSpace(string(r.body)))
	require.Equal(t, string(whole), string(call(t, n, getFollows, "actor", hub).body))
}

func TestPagingCanLoopAndContinueAfterTheEnd(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8, Follows: 25})
	hub := n.Hub().DID
	_, err := n.PostNow(hub, "the only one")
	require.NoError(t, err)
	page := func(cursor string) *bsky.GraphGetFollows_Output {
		return fetch[bsky.GraphGetFollows_Output](t, n, getFollows, "actor", hub, "limit", "10", "cursor", cursor)
	}
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Loop, Endpoint: getFollows, Count: 3}))
	cursor := *page("").Cursor
	require.Empty(t, n.CallsFired(), "the first page cannot loop")
	for range 3 {
		require.Equal(t, cursor, *page(cursor).Cursor)
	}
	require.NotEqual(t, cursor, *page(cursor).Cursor)
	require.Equal(t, 3, n.CallsFired()[simnet.Loop])

	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Beyond}))
	last := page(*page(cursor).Cursor)
	require.Len(t, last.Follows, 5)
	require.NotNil(t, last.Cursor)
	beyond := page(*last.Cursor)
	require.Empty(t, beyond.Follows)
	require.Nil(t, beyond.Cursor)
	for range 2 {
		for _, pairs := range [][]string{{"reverse", "true"}, {"reverse", "false"}} {
			require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Beyond}))
			require.Len(t, everyRecord(t, n, hub, "app.bsky.graph.follow", append(pairs, "limit", "10")...), 25)
		}
	}
	require.Equal(t, 5, n.CallsFired()[simnet.Beyond])
}
