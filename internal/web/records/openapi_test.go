package records

import (
	"net/url"
	"testing"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestRecordsAreAsDescribed asks the API of records what its description says.
func TestRecordsAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.plant()
	r.refer("three", "/near", "one") // a second referrer, for a second page
	base := "/api/v1/records/" + treeCollection + "/" + aliceDID + "/"
	r.RequireDescribed(webtest.Requests{
		Values: map[string][]string{
			"collection": {treeCollection}, "did": {aliceDID}, "rkey": {"one"}, "uri": {treeURI("one")}, "q": {"heron"},
			"language": {"de", "de-CH"}, "media": {"audio", "audio/mpeg"}, "from": {treeURI("two")}, "to": {treeURI("never")},
		},
		Also: []string{base + "gone", base + "never/references", "/api/v1/search?q=nothing", "/api/v1/graph/" + url.PathEscape(treeURI("never"))},
	})
}
