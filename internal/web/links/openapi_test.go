package links

import (
	"testing"
	"time"

	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/schema"
)

// TestLinksAreAsDescribed asks the API of links what its description says.
func TestLinksAreAsDescribed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	r.Stream("jetstream", schema.StateLive, "")
	r.Exec(`INSERT INTO watches (target, synced_at) VALUES ('alice.example', $1)`, r.Now)
	r.Exec(`INSERT INTO watch_members (watch_id, did, added_at) SELECT id, 'did:plc:bbb', $1 FROM watches`, r.Now)
	r.Exec(`INSERT INTO accounts (did, handle, display_name, avatar) VALUES ('did:plc:bbb', 'bob.example', 'Bob', 'https://a.example/b@jpeg')`)
	r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('jetstream', $1, $2, 'test', $2)`,
		r.Now.Add(-time.Hour), r.Now.Add(-time.Minute))
	for _, did := range []string{"did:plc:aaa", "did:plc:bbb"} {
		r.Share("https://a.example/", did, time.Minute)
		r.Share("https://b.example/", did, 2*time.Minute)
	}
	r.Exec(`UPDATE links SET image = 'blob:did:plc:abc/bafkreiabcdefgh', description = 'words',
		card_from = 'at://did:plc:abc/app.bsky.feed.post/3k'`)
	r.Exec(`INSERT INTO links (id, identity, url, site, first_seen, merged_into) OVERRIDING SYSTEM VALUE
		VALUES (100, 'https://c.example/', 'https://c.example/', 'c.example', $1, 1),
			(101, 'https://blocked.example/', 'https://blocked.example/', 'blocked.example', $1, NULL)`, r.Now)
	r.Exec(`INSERT INTO blocks (kind, target) VALUES ('link', 'https://blocked.example/')`)
	r.RequireDescribed(webtest.Requests{
		Values: map[string][]string{
			"id": {"1"}, "domain": {"site.example"}, "by": {"did:plc:aaa", "bob.example"}, "watch": {"alice.example"},
		},
		Beside: map[string]string{"degree": "watch=alice.example"},
		Also:   []string{"/api/v1/links/100", "/api/v1/links/100/shares", "/api/v1/links/101/shares"},
		Change: func() { r.Share("https://d.example/", "did:plc:bbb", 0) },
	})
}
