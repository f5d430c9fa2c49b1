package links

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestSubtitleDescribesTheCountedAccounts shows that the subtitle does not say
// "on Bluesky" if only some accounts are counted.
func TestSubtitleDescribesTheCountedAccounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	says := func() string {
		t.Helper()
		doc := r.Parse(r.Get("/?window=3h"))
		shown := webtest.Text(webtest.Find(doc, func(n *html.Node) bool { return webtest.Attr(n, "id") == "subtitle" })[0])
		require.Equal(t, shown, webtest.Attr(webtest.Find(doc, func(n *html.Node) bool {
			return webtest.Attr(n, "name") == "description"
		})[0], "content"))
		return shown
	}
	require.Equal(t, "The links most shared on Bluesky in the last 3 hours.", says())
	watch := func(kind, target string, members int) {
		r.Exec(`INSERT INTO watches (kind, target) VALUES ($1, $2)`, kind, target)
		r.Exec(`INSERT INTO watch_members (watch_id, did) SELECT (SELECT max(id) FROM watches), 'did:plc:' || n
			FROM generate_series(1, $1) AS n`, members)
	}
	for want, c := range map[string]struct {
		kind, target string
		members      int
	}{
		"by the 338 accounts that alice.example follows":       {"follows", "alice.example", 338},
		"by the 1,338 accounts that did:plc:z72i…tvur follows": {"follows", "did:plc:z72i7hdynmk6r22z27h6tvur", 1338},
		"by the one account that alice.example follows":        {"follows", "alice.example", 1},
		"by alice.example":                     {"account", "alice.example", 1},
		"by the 52 accounts on a list":         {"list", "at://did:plc:a/app.bsky.graph.list/3k", 52},
		"by the 52 accounts in a starter pack": {"starterpack", "at://did:plc:a/app.bsky.graph.starterpack/3k", 52},
		"by the 52 accounts followed by at least 5 of the accounts that alice.example follows": {"second-degree", "alice.example", 52},
		"by followed accounts. The list of accounts has not been read yet":                     {"follows", "new.example", 0},
	} {
		watch(c.kind, c.target, c.members)
		require.Equal(t, "The links most shared in the last 3 hours "+want+".", says())
		r.Exec(`DELETE FROM watches`)
	}
	for i := range 3 {
		watch("follows", fmt.Sprintf("a%d.example", i), 10*(i+1))
	}
	require.Equal(t, "The links most shared in the last 3 hours by the 30 followed accounts.", says(), "each account counts once")
	r.Audit(r.Get("/"))
}
