// Package linkstest stores shares for tests of pages that show links.
package linkstest

import (
	"testing"
	"time"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// Rig is a page with links.
type Rig struct{ *webtest.Rig }

// New returns a rig without a handler.
func New(t *testing.T) Rig { return Rig{webtest.New(t)} }

// Share stores a share of url by did, ago before now.
func (r Rig) Share(url, did string, ago time.Duration) {
	r.T.Helper()
	// The link has no votes: a kept link keeps its card.
	r.Exec(`
		INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at)
		VALUES ($1, $1, 'site.example', 'Title of ' || $1, $2, 1, $2) ON CONFLICT (identity) DO NOTHING`,
		url, r.Now)
	r.Exec(`
		INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT $1, 'app.bsky.feed.post', gen_random_uuid()::text, id, id, 'post', $3 FROM links WHERE url = $2`,
		did, url, r.Now.Add(-ago))
}
