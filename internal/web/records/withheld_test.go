package records

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithheldAccountHasNoRecords shows that neither the API, a search nor XRPC shows records of an account
// that is not shown to strangers.
func TestWithheldAccountHasNoRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const bob, post = "did:plc:bobisnotshownbobisnotsho", "app.bsky.feed.post"
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ($1, 'bob.example')`, bob)
	r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ($1, $2, '1', 'r', 'c', $3, '{"text": "stork of bob"}')`, post, bob, r.Now)
	r.Exec(`INSERT INTO record_texts (collection, did, rkey, text, words)
		VALUES ($1, $2, '1', 'stork of bob', to_tsvector('simple', 'stork of bob'))`, post, bob)
	lists := []string{"/api/v1/records/" + post, "/api/v1/search?q=stork"}
	one := []string{"/records/" + post + "/" + bob + "/1", "/api/v1/records/" + post + "/" + bob + "/1",
		"/xrpc/com.atproto.repo.getRecord?repo=bob.example&collection=" + post + "&rkey=1",
		"/xrpc/com.atproto.repo.listRecords?repo=" + bob + "&collection=" + post}
	for _, target := range append(lists, one...) {
		require.Contains(t, r.Get(target), "stork of bob", target)
	}
	r.Exec(`INSERT INTO profiles (did) VALUES ($1)`, bob)
	for _, target := range lists {
		require.NotContains(t, r.Get(target), "stork of bob", target)
	}
	for _, target := range one {
		require.NotEqual(t, http.StatusOK, r.Do(http.MethodGet, target).Code, target)
	}
	r.Exec(`UPDATE profiles SET withheld = false, read_at = $1`, r.Now)
	require.Contains(t, r.Get(lists[0]), "stork of bob")
}
