package simnet_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestRecordsAreListedInBothDirections(t *testing.T) {
	t.Parallel()
	long(t)
	n := network(t, simnet.Config{Seed: 5, Accounts: 40, Mix: simnet.MixNetwork, History: 3000, Start: fixedStart()})
	require.NoError(t, n.Do(simnet.TooOld))
	listed := 0
	for _, a := range n.Accounts() {
		if a.Status != "" {
			continue
		}
		for _, collection := range []string{postCollection, repostCollection, "app.bsky.feed.like"} {
			want := standing(n, a.DID, collection)
			for _, order := range []string{"true", "false"} {
				got := everyRecord(t, n, a.Handle, collection, "limit", "9", "reverse", order)
				require.Len(t, got, len(want))
				for i, e := range want {
					require.Equal(t, []string{uriOf(e), e.CID}, []string{got[i].Uri, got[i].Cid})
					value, err := json.Marshal(got[i].Value)
					require.NoError(t, err)
					require.JSONEq(t, string(e.Record), string(value))
					listed++
				}
				slices.Reverse(want)
			}
		}
	}
	require.Greater(t, listed, 2000)
	require.Empty(t, everyRecord(t, n, n.Hub().DID, "org.nobody.knows"))
	require.Len(t, everyRecord(t, n, n.Hub().DID, "app.bsky.graph.follow", "limit", "100"), 40)
}

// TestRecordsOfAnyCollection shows that they can be written, replaced, deleted,
// described and sent.
func TestRecordsOfAnyCollection(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 5})
	did := n.Accounts()[3].DID
	const note, persona = "pub.layers.note", "pub.layers.persona"
	described := func() []string {
		out := fetch[comatproto.RepoDescribeRepo_Output](t, n, "com.atproto.repo.describeRepo", "repo", did)
		require.Equal(t, did, out.Did)
		return slices.DeleteFunc(out.Collections, func(c string) bool { return c != note && c != persona })
	}
	require.Empty(t, described())
	for rkey, operation := range map[string]string{"": "create", "self": "create"} {
		e, err := n.PutRecord(did, persona, rkey, json.RawMessage(`{"$type":"pub.layers.persona","n":1}`))
		require.NoError(t, err)
		require.Equal(t, operation, e.Operation)
	}
	e, err := n.PutRecord(did, persona, "self", json.RawMessage(`{"$type":"pub.layers.persona","n":2}`))
	require.NoError(t, err)
	require.Equal(t, "update", e.Operation)
	_, err = n.PutRecord(did, note, "", json.RawMessage(`{}`))
	require.NoError(t, err)
	require.Equal(t, []string{note, persona}, described())
	type page struct{ Records []struct{ URI, CID string } }
	listed := func() *page { return fetch[page](t, n, listRecords, "repo", did, "collection", persona) }
	records := listed().Records
	require.Len(t, records, 2)
	require.Equal(t, "at://"+did+"/"+persona+"/self", records[0].URI)
	require.Equal(t, e.CID, records[0].CID)
	one := fetch[struct {
		URI, CID string
		Value    struct{ N int }
	}](t, n, getRecord, "repo", did, "collection", persona, "rkey", "self")
	require.Equal(t, records[0].URI+" "+e.CID+" 2", fmt.Sprint(one.URI, " ", one.CID, " ", one.Value.N))
	require.Equal(t, []string{one.URI}, n.Calls(getRecord)[0].URIs)
	require.NoError(t, n.DeleteRecord("at://"+did+"/"+persona+"/self"))
	require.Len(t, listed().Records, 1)
	requireError(t, call(t, n, getRecord, "repo", did, "collection", persona, "rkey", "self"), http.StatusBadRequest, "RecordNotFound",
		"Could not locate record: "+one.URI)
	_, err = n.PutRecord(did, "nonsense", "", json.RawMessage(`{}`))
	require.Error(t, err)
}

func TestDirectoryReturnsHandleAndPDS(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 5})
	a := n.Accounts()[3]
	type document struct {
		ID          string
		AlsoKnownAs []string
		Service     []struct{ ID, Type, ServiceEndpoint string }
	}
	send := func(did string) (doc document, status int) {
		r := send(t, http.MethodGet, n.DirectoryURL()+"/"+did, "", "")
		require.NoError(t, json.Unmarshal(r.body, &doc))
		return doc, r.status
	}
	require.NoError(t, n.Rename(a.DID, "changed.example"))
	doc, status := send(a.DID)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, []any{a.DID, []string{"at://changed.example"}}, []any{doc.ID, doc.AlsoKnownAs})
	require.Equal(t, []string{"#atproto_pds", "AtprotoPersonalDataServer", n.PDSURL()},
		[]string{doc.Service[0].ID, doc.Service[0].Type, doc.Service[0].ServiceEndpoint})
	require.NoError(t, n.Deactivate(a.DID))
	_, status = send(a.DID)
	require.Equal(t, http.StatusOK, status)
	require.NoError(t, n.Delete(a.DID))
	_, status = send(a.DID)
	require.Equal(t, http.StatusGone, status)
	_, status = send("did:plc:nobody")
	require.Equal(t, http.StatusNotFound, status)
	require.Len(t, n.Calls("plc"), 4)
	require.Equal(t, a.DID, n.Calls("plc")[0].Actor)
}

func TestLatestCommitEqualsTheLog(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 5, Accounts: 20, History: 500})
	revs := map[string]string{}
	for _, e := range n.Log().Entries() {
		if e.Kind == "commit" {
			revs[e.DID] = e.Rev
		}
	}
	latest := func(did string) comatproto.SyncGetLatestCommit_Output {
		return *fetch[comatproto.SyncGetLatestCommit_Output](t, n, latestCommit, "did", did)
	}
	for _, a := range n.Accounts() {
		if a.Status == "" && revs[a.DID] != "" {
			require.Equal(t, revs[a.DID], latest(a.DID).Rev)
		}
	}
	hub := n.Hub().DID
	before := latest(hub)
	require.NotEmpty(t, before.Rev)
	e, err := n.PostNow(hub, "news")
	require.NoError(t, err)
	require.Equal(t, e.Rev, latest(hub).Rev)
	require.NotEqual(t, before.Cid, latest(hub).Cid)
	require.Less(t, before.Rev, latest(hub).Rev)
}

// login opens a session.
func login(t *testing.T, n *simnet.Net, identifier string) (access, refresh string) {
	t.Helper()
	r := send(t, http.MethodPost, n.PDSURL()+"/xrpc/"+createSession, "", `{"identifier":"`+identifier+`","password":"`+n.Password()+`"}`)
	require.Equal(t, http.StatusOK, r.status, "%s", r.body)
	var out comatproto.ServerCreateSession_Output
	require.NoError(t, json.Unmarshal(r.body, &out))
	a, _ := n.Account(identifier)
	require.Equal(t, []string{a.DID, a.Handle}, []string{out.Did, out.Handle})
	return out.AccessJwt, out.RefreshJwt
}

func TestSessionsAreOpenedRefreshedAndExpire(t *testing.T) {
	t.Parallel()
	for _, status := range []int{0, http.StatusBadRequest} {
		n := network(t, simnet.Config{Seed: 5, Access: simnet.Access{RequireLogin: true, ExpiredStatus: status}})
		if status == 0 {
			status = http.StatusUnauthorized
		}
		hub := n.Hub()
		follows := func(token string) reply {
			return send(t, http.MethodGet, n.PDSURL()+"/xrpc/"+getFollows+query("actor", hub.DID), token, "")
		}
		renew := func(token string) reply {
			return send(t, http.MethodPost, n.PDSURL()+"/xrpc/"+refreshSession, token, "")
		}
		requireError(t, follows(""), 401, "AuthMissing", "Authentication Required")
		requireError(t, follows("nonsense"), status, "InvalidToken", "Token could not be verified")
		access, refresh := login(t, n, hub.Handle)
		require.Equal(t, 200, follows(access).status)
		requireError(t, follows(refresh), status, "InvalidToken", "Token could not be verified")
		requireError(t, renew(access), status, "InvalidToken", "Token could not be verified")
		requireError(t, renew(""), 401, "AuthMissing", "Authentication Required")
		n.ExpireTokens()
		requireError(t, follows(access), status, "ExpiredToken", "Token has expired")
		r := renew(refresh)
		require.Equal(t, 200, r.status)
		var out comatproto.ServerRefreshSession_Output
		require.NoError(t, json.Unmarshal(r.body, &out))
		require.NotEqual(t, access, out.AccessJwt)
		require.Equal(t, 200, follows(out.AccessJwt).status)
		requireError(t, follows(access), status, "ExpiredToken", "Token has expired")
		n.RevokeSessions()
		requireError(t, follows(out.AccessJwt), status, "ExpiredToken", "Token has expired")
		requireError(t, renew(out.RefreshJwt), status, "ExpiredToken", "Token has been revoked")
	}
}

func TestWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 5, Access: simnet.Access{Password: "correct-horse", TokenLife: time.Nanosecond}})
	require.Equal(t, "correct-horse", n.Password())
	open := func(body string) reply {
		return send(t, http.MethodPost, n.PDSURL()+"/xrpc/"+createSession, "", body)
	}
	hub := n.Hub()
	for _, body := range []string{
		`{"identifier":"` + hub.DID + `","password":"wrong"}`, `{"identifier":"nobody.example","password":"correct-horse"}`,
	} {
		requireError(t, open(body), 401, "AuthenticationRequired", "Invalid identifier or password")
	}
	for _, body := range []string{"", "{", `{"identifier":"x"}`} {
		require.Equal(t, 400, open(body).status)
	}
	access, refresh := login(t, n, hub.DID)
	r := send(t, http.MethodGet, n.PDSURL()+"/xrpc/"+getFollows+query("actor", hub.DID), access, "")
	requireError(t, r, 401, "ExpiredToken", "Token has expired")
	require.Equal(t, 200, call(t, n, getFollows, "actor", hub.DID).status, "no login is needed here")
	require.NoError(t, n.TakeDown(hub.DID))
	requireError(t, open(`{"identifier":"`+hub.DID+`","password":"correct-horse"}`), 401, "AccountTakedown", "Account has been taken down")
	requireError(t, send(t, http.MethodPost, n.PDSURL()+"/xrpc/"+refreshSession, refresh, ""), 401, "AccountTakedown",
		"Account has been taken down")
}
