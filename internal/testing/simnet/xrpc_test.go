package simnet_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	getFollows     = "app.bsky.graph.getFollows"
	getList        = "app.bsky.graph.getList"
	getStarterPack = "app.bsky.graph.getStarterPack"
	getAuthorFeed  = "app.bsky.feed.getAuthorFeed"
	getProfiles    = "app.bsky.actor.getProfiles"
	resolveHandle  = "com.atproto.identity.resolveHandle"
	getRecord      = "com.atproto.repo.getRecord"
	listRecords    = "com.atproto.repo.listRecords"
	latestCommit   = "com.atproto.sync.getLatestCommit"
	createSession  = "com.atproto.server.createSession"
	refreshSession = "com.atproto.server.refreshSession"
)

// reply is a raw response.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error // of reading the body
}

// send makes a request with an optional bearer token and body.
func send(t testing.TB, method, address, token, body string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close() // read to the end
	data, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, data, err}
}

// call makes a query of pairs of names and values.
func call(t testing.TB, n *simnet.Net, method string, pairs ...string) reply {
	t.Helper()
	return send(t, http.MethodGet, n.AppViewURL()+"/xrpc/"+method+query(pairs...), "", "")
}

// fetch makes a query that must succeed, and decodes it into a lexicon's type.
func fetch[T any](t testing.TB, n *simnet.Net, method string, pairs ...string) *T {
	t.Helper()
	r := call(t, n, method, pairs...)
	require.NoError(t, r.err)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	require.Contains(t, r.header.Get("Content-Type"), "application/json")
	out := new(T)
	require.NoError(t, json.Unmarshal(r.body, out), "%s", r.body)
	return out
}

// requireError requires an error of the services.
func requireError(t testing.TB, r reply, status int, name, message string) {
	t.Helper()
	var e struct{ Error, Message string }
	require.NoError(t, json.Unmarshal(r.body, &e), "%s", r.body)
	require.Equal(t, []any{status, name, message}, []any{r.status, e.Error, e.Message})
}

// everyFollow pages through the follows of an account.
func everyFollow(t testing.TB, n *simnet.Net, actor, limit string) (dids []string, pages int) {
	t.Helper()
	for cursor := ""; ; {
		out := fetch[bsky.GraphGetFollows_Output](t, n, getFollows, "actor", actor, "limit", limit, "cursor", cursor)
		pages++
		for _, f := range out.Follows {
			dids = append(dids, f.Did)
		}
		if out.Cursor == nil {
			return dids, pages
		}
		cursor = *out.Cursor
	}
}

// everyItem pages through the feed of an account.
func everyItem(t testing.TB, n *simnet.Net, actor, limit string, pairs ...string) (items []*bsky.FeedDefs_FeedViewPost) {
	t.Helper()
	for cursor := ""; ; {
		out := fetch[bsky.FeedGetAuthorFeed_Output](t, n, getAuthorFeed, append(pairs, "actor", actor, "limit", limit, "cursor", cursor)...)
		items = append(items, out.Feed...)
		if out.Cursor == nil {
			require.Empty(t, out.Feed, "the last page is the empty one")
			return items
		}
		cursor = *out.Cursor
	}
}

// everyRecord pages through a collection of a repository.
func everyRecord(t testing.TB, n *simnet.Net, repo, collection string, pairs ...string) (records []*comatproto.RepoListRecords_Record) {
	t.Helper()
	for cursor := ""; ; {
		out := fetch[comatproto.RepoListRecords_Output](t, n, listRecords,
			append(pairs, "repo", repo, "collection", collection, "cursor", cursor)...)
		records = append(records, out.Records...)
		if out.Cursor == nil {
			return records
		}
		cursor = *out.Cursor
	}
}

func TestInvalidParametersGetTheServicesErrors(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1})
	hub := n.Hub().DID
	for _, c := range []struct {
		method  string
		pairs   []string
		message string
	}{
		{getFollows, nil, `Error: Params must have the property "actor"`},
		{getFollows, []string{"actor", "alice"}, "Error: actor must be a valid did or a handle"},
		{getFollows, []string{"actor", "did:plc:nobody"}, "Actor not found: did:plc:nobody"},
		{getFollows, []string{"actor", hub, "limit", "101"}, "Error: limit can not be greater than 100"},
		{getFollows, []string{"actor", hub, "limit", "0"}, "Error: limit can not be less than 1"},
		{getFollows, []string{"actor", hub, "limit", "many"}, "Error: limit must be an integer"},
		{getAuthorFeed, []string{"actor", "nobody.example"}, "Profile not found"},
		{getAuthorFeed, []string{"actor", hub, "limit", "101"}, "Error: limit can not be greater than 100"},
		{getAuthorFeed, []string{"actor", hub, "cursor", "soon"}, "Malformed cursor"},
		{getList, []string{"list", "app.bsky.graph.list"}, "Error: list must be a valid at-uri"},
		{
			getList, []string{"list", "at://" + hub + "/app.bsky.graph.list/2222222222222"},
			"List not found: at://" + hub + "/app.bsky.graph.list/2222222222222",
		},
		{getStarterPack, []string{"starterPack", "at://x.example/y/z"}, "Starter pack not found: at://x.example/y/z"},
		{getProfiles, nil, `Error: Params must have the property "actors"`},
		{getProfiles, []string{"actors", "?"}, "Error: actors/0 must be a valid did or a handle"},
		{resolveHandle, []string{"handle", "nobody.example"}, "Unable to resolve handle"},
		{resolveHandle, []string{"handle", hub}, "Error: handle must be a valid handle"},
		{listRecords, []string{"repo", hub}, `Error: Params must have the property "collection"`},
		{listRecords, []string{"repo", hub, "collection", "post"}, "Error: collection must be a valid nsid"},
		{listRecords, []string{"repo", "nobody.example", "collection", "app.bsky.feed.post"}, "Could not find repo: nobody.example"},
		{createSession, nil, "Incorrect HTTP method (GET) expected POST"},
	} {
		requireError(t, call(t, n, c.method, c.pairs...), http.StatusBadRequest, "InvalidRequest", c.message)
	}
	requireError(t, call(t, n, "app.bsky.feed.getTimeline"), http.StatusNotImplemented, "MethodNotImplemented", "Method Not Implemented")
}

func TestHiddenAccountsAreRefusedByTheirStatus(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1})
	a := n.Accounts()
	require.NoError(t, n.Deactivate(a[3].DID))
	require.NoError(t, n.TakeDown(a[4].DID))
	require.NoError(t, n.Suspend(a[5].DID))
	require.NoError(t, n.Delete(a[6].DID))
	for _, method := range []string{getFollows, getAuthorFeed} {
		requireError(t, call(t, n, method, "actor", a[3].DID), 400, "AccountDeactivated", "Account is deactivated")
		requireError(t, call(t, n, method, "actor", a[4].Handle), 400, "AccountTakedown", "Account has been suspended")
		requireError(t, call(t, n, method, "actor", a[5].DID), 400, "AccountTakedown", "Account has been suspended")
	}
	requireError(t, call(t, n, getAuthorFeed, "actor", a[6].DID), 400, "InvalidRequest", "Profile not found")
	requireError(t, call(t, n, getFollows, "actor", a[6].DID), 400, "InvalidRequest", "Actor not found: "+a[6].DID)
	requireError(t, call(t, n, resolveHandle, "handle", a[6].Handle), 400, "InvalidRequest", "Unable to resolve handle")
	requireError(t, call(t, n, latestCommit, "did", a[3].DID), 400, "RepoDeactivated", "Repo has been deactivated: "+a[3].DID)
	requireError(t, call(t, n, latestCommit, "did", a[4].DID), 400, "RepoTakendown", "Repo has been taken down: "+a[4].DID)
	requireError(t, call(t, n, latestCommit, "did", a[6].DID), 400, "RepoNotFound", "Could not find repo for DID: "+a[6].DID)
	for _, hidden := range a[3:7] {
		requireError(t, call(t, n, listRecords, "repo", hidden.DID, "collection", "app.bsky.feed.post"), 400, "InvalidRequest",
			"Could not find repo: "+hidden.DID)
	}
	out := fetch[bsky.ActorGetProfiles_Output](t, n, getProfiles,
		"actors", a[2].DID, "actors", a[3].DID, "actors", a[4].DID, "actors", a[5].DID, "actors", a[6].DID, "actors", a[7].Handle)
	require.Len(t, out.Profiles, 2, "hidden accounts must be omitted")
	require.Equal(t, []string{a[2].DID, a[7].DID}, []string{out.Profiles[0].Did, out.Profiles[1].Did})

	require.NoError(t, n.Reactivate(a[3].DID))
	require.Equal(t, 200, call(t, n, getAuthorFeed, "actor", a[3].DID).status)
}

func TestProfilesAreLimitedToTwentyFive(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, Mix: simnet.MixNetwork, History: 1500})
	var pairs []string
	a := n.Accounts()
	for _, one := range a[:25] {
		pairs = append(pairs, "actors", one.DID)
	}
	out := fetch[bsky.ActorGetProfiles_Output](t, n, getProfiles, pairs...)
	require.NotEmpty(t, out.Profiles)
	pictures := 0
	for _, p := range out.Profiles {
		account, ok := n.Account(p.Did)
		require.True(t, ok)
		require.Equal(t, account.Handle, p.Handle)
		require.NotEmpty(t, *p.DisplayName)
		if p.Avatar != nil {
			pictures++
			response, _ := request(t, http.MethodGet, *p.Avatar)
			require.Equal(t, "image/jpeg", response.Header.Get("Content-Type"))
		}
	}
	require.NotZero(t, pictures)
	require.Less(t, pictures, len(out.Profiles), "some have no picture")
	requireError(t, call(t, n, getProfiles, append(pairs, "actors", a[25].DID)...), 400, "InvalidRequest",
		"Error: actors must not have more than 25 elements")
}

func TestChangedHandlesResolve(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 300})
	a := n.Accounts()[0]
	resolved := func(handle string) string {
		return fetch[comatproto.IdentityResolveHandle_Output](t, n, resolveHandle, "handle", handle).Did
	}
	require.Equal(t, a.DID, resolved(a.Handle))
	require.Equal(t, a.DID, resolved(strings.ToUpper(a.Handle)))
	require.ErrorContains(t, n.Rename(a.DID, n.Hub().Handle), "taken")
	require.ErrorContains(t, n.Rename(a.DID, "no handle"), "handle")
	require.NoError(t, n.Rename(a.DID, "renamed.example"))
	require.Equal(t, a.DID, resolved("renamed.example"))
	requireError(t, call(t, n, resolveHandle, "handle", a.Handle), 400, "InvalidRequest", "Unable to resolve handle")
	last := n.Log().Last()
	require.Equal(t, []any{"identity", a.DID, "renamed.example"}, []any{last.Kind, last.DID, last.Handle})
	require.Equal(t, "renamed.example", fetch[bsky.GraphGetFollows_Output](t, n, getFollows, "actor", a.DID).Subject.Handle)
	require.WithinDuration(t, time.Now(), time.UnixMicro(last.TimeUS), time.Minute)
}
