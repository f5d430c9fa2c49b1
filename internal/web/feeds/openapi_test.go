package feeds

import (
	"testing"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestFeedsAreAsDescribed asks for the feeds as the description of the API says.
func TestFeedsAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillFeed(3, 5)
	r.Exec(`UPDATE links SET image = 'blob:did:plc:abc/bafkreiabcdefgh' WHERE id = 1`)
	r.Exec(`INSERT INTO watches (target, synced_at) VALUES ('alice.example', $1)`, r.Now)
	r.RequireDescribed(webtest.Requests{
		Only:   "/feed.",
		Values: map[string][]string{"domain": {"site.example"}, "by": {"did:plc:001"}, "watch": {"alice.example"}},
		Beside: map[string]string{"degree": "watch=alice.example"},
	})
}
