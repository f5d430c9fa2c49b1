package records

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestRecordsAreAsDescribed asks the API of records what its description says.
func TestRecordsAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	r.refer("three", "/near", "one") // a second referrer, for a second page
	require.Contains(t, r.Get("/api/v1/openapi.json"), "getRecord and listRecords describe both methods below /xrpc/", "they are not in it")
	base := "/api/v1/records/" + treeCollection + "/" + aliceDID + "/"
	r.RequireDescribed(webtest.Requests{
		Values: map[string][]string{
			"collection": {treeCollection}, "did": {aliceDID}, "rkey": {"one"}, "uri": {treeURI("one")}, "q": {"heron"},
			"language": {"de", "de-CH"}, "media": {"audio", "audio/mpeg"}, "from": {treeURI("two")}, "to": {treeURI("never")},
		},
		Also: []string{base + "gone", base + "never/references", "/api/v1/search?q=nothing", "/api/v1/graph/" + url.PathEscape(treeURI("never"))},
	})
}
