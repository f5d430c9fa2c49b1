package links

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestManyMembersAreNotCountedForEachPage covers the number of followed accounts, which each page
// shows. If the watches have thousands of members, they are not counted again for each page.
func TestManyMembersAreNotCountedForEachPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	views := 0
	says := func() string {
		t.Helper()
		views++ // each page is different
		doc := r.Parse(r.Get("/?window=3h&at_least=" + string(rune('1'+views))))
		return webtest.Text(webtest.Find(doc, func(n *html.Node) bool { return webtest.Attr(n, "id") == "subtitle" })[0])
	}
	const all, fewer = "The links most shared in the last 3 hours by the 1,000 followed accounts.",
		"The links most shared in the last 3 hours by the 999 followed accounts."
	r.Exec(`INSERT INTO watches (kind, target) SELECT 'follows', 'a' || n || '.example' FROM generate_series(1, 10) AS n`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT w.id, 'did:plc:' || n FROM watches AS w, generate_series(1, 1000) AS n`)
	require.Equal(t, all, says())
	r.Exec(`DELETE FROM watch_members WHERE did = 'did:plc:1'`)
	require.Equal(t, all, says(), "the members were counted a moment ago")
	r.Now = r.Now.Add(31 * time.Second)
	require.Equal(t, fewer, says(), "the members must be counted again after half a minute")
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT id, 'did:plc:1' FROM watches`)
	require.Equal(t, all, says(), "few members are counted each time: the last count had fewer than ten thousand")
	r.Exec(`INSERT INTO watches (kind, target) VALUES ('follows', 'b.example')`)
	r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT max(id), 'did:plc:b' FROM watches`)
	require.Equal(t, "The links most shared in the last 3 hours by the 1,001 followed accounts.", says(), "a watch was added")
	r.Exec(`DELETE FROM watches`)
	require.Equal(t, "The links most shared on Bluesky in the last 3 hours.", says())
}
