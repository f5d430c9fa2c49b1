package simnet_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestRelayNamesTheAccountsOfACollection lists them page by page, in the form that indigo's types
// expect: accounts with records in the collection that are not hidden, also if they are not active.
func TestRelayNamesTheAccountsOfACollection(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, Accounts: 20, History: 10, HistorySpan: time.Hour})
	accounts := n.Accounts()
	var want []string
	for i, a := range accounts[:9] {
		_, err := n.PutRecord(a.DID, "pub.layers.persona", "self", json.RawMessage(fmt.Sprintf(`{"n": %d}`, i)))
		require.NoError(t, err)
		want = append(want, a.DID)
	}
	require.NoError(t, n.DeleteRecord("at://"+want[3]+"/pub.layers.persona/self"))
	require.NoError(t, n.Deactivate(want[4]))
	n.HideFromRelay(want[5], true)
	want = append(want[:3], want[4], want[6], want[7], want[8])

	ask := func(collection, cursor string, limit int) (page comatproto.SyncListReposByCollection_Output, status int) {
		t.Helper()
		response, err := http.Get(fmt.Sprintf("%s/xrpc/com.atproto.sync.listReposByCollection?collection=%s&cursor=%s&limit=%d", n.PDSURL(),
			collection, url.QueryEscape(cursor), limit))
		require.NoError(t, err)
		defer response.Body.Close()
		require.NoError(t, json.NewDecoder(response.Body).Decode(&page))
		return page, response.StatusCode
	}
	var got []string
	pages := 0
	for cursor, more := "", true; more; {
		page, status := ask("pub.layers.persona", cursor, 3)
		require.Equal(t, http.StatusOK, status)
		pages++
		for _, r := range page.Repos {
			got = append(got, r.Did)
		}
		if more = page.Cursor != nil; more {
			cursor = *page.Cursor
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, 3, pages)
	for _, refused := range []func() (comatproto.SyncListReposByCollection_Output, int){
		func() (comatproto.SyncListReposByCollection_Output, int) { return ask("persona", "", 3) },
		func() (comatproto.SyncListReposByCollection_Output, int) { return ask("pub.layers.persona", "", 2001) },
		func() (comatproto.SyncListReposByCollection_Output, int) {
			return ask("pub.layers.persona", "not a cursor", 3)
		},
	} {
		_, status := refused()
		require.Equal(t, http.StatusBadRequest, status)
	}
}
