package links

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestWithheldAccountIsOneAccount has two accounts share, quote and repost, of which one is not shown to
// strangers: its shares count, and neither a page nor the API tells its name or text.
func TestWithheldAccountIsOneAccount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const alice, bob, post, repost = "did:plc:aliceisshownaliceisshown", "did:plc:bobisnotshownbobisnotsho",
		"app.bsky.feed.post", "app.bsky.feed.repost"
	r.Exec(`INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at)
		VALUES ($1, $1, 'a.example', 'T', $2, 6, $2::timestamptz - interval '1 hour')`, sharedLink, r.Now)
	r.Exec(`INSERT INTO accounts (did, handle, display_name, avatar)
		VALUES ($1, 'alice.example', 'Alice', 'https://x.example/alice'), ($2, 'bob.example', 'Bob', 'https://x.example/bob')`, alice, bob)
	r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES
		($1, $2, '1', 'r', 'c', $4, '{"text": "heron of alice"}'),
			($1, $3, '1', 'r', 'c', $4, '{"text": "stork of bob"}')`, post, alice, bob, r.Now)
	r.Exec(`INSERT INTO subjects (did, collection, rkey, links) VALUES ($1, $2, '1', '{1}')`, bob, post)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, words, subject_did, subject_collection,
		subject_rkey) VALUES
		($1, $3, '1', 1, 1, 'post', $5::timestamptz - interval '3 min', to_tsvector('simple', 'heron of alice'), NULL, NULL, NULL),
		($2, $3, '1', 1, 1, 'post', $5::timestamptz - interval '2 min', to_tsvector('simple', 'stork of bob'), NULL, NULL, NULL),
		($1, $4, '1', 1, 1, 'repost', $5::timestamptz - interval '1 min', NULL, $2, $3, '1')`, alice, bob, post, repost, r.Now)

	everywhere := func() (all string) {
		for _, target := range []string{"/", "/links/1", "/links/1?window=24h", "/api/v1/trending", "/api/v1/links/1", "/api/v1/links/1/shares"} {
			all += r.Get(target)
		}
		return all
	}
	found := func(query string) int { return len(webtest.Find(r.Parse(r.Get("/?"+query)), webtest.Class("link"))) }
	all := everywhere()
	for _, of := range []string{"alice.example", "heron of alice", "bob.example", "stork of bob"} {
		require.Contains(t, all, of)
	}
	require.Equal(t, []int{1, 1, 1}, []int{found("by=bob.example"), found("by=" + bob), found("text=stork")})

	r.Exec(`INSERT INTO profiles (did) VALUES ($1)`, bob)
	all = everywhere()
	for _, of := range []string{"alice.example", "heron of alice"} {
		require.Contains(t, all, of)
	}
	for _, of := range []string{"bob.example", "Bob", "x.example/bob", "stork of bob"} {
		require.NotContains(t, all, of)
	}
	require.Equal(t, []int{0, 0, 0}, []int{found("by=bob.example"), found("by=" + bob), found("text=stork")})
	require.Equal(t, []row{{"T", "shared by 2", "@alice.example one account"}}, r.rows("/"))
	page := r.Parse(r.Get("/links/1"))
	require.Contains(t, webtest.Text(webtest.Find(page, webtest.Class("how"))[0]), "1 share does not count",
		"the share of the withheld account counts")
	require.Contains(t, webtest.Text(webtest.Find(page, webtest.Class("shares"))[0]), "one account")
	require.Contains(t, webtest.Text(webtest.Find(page, webtest.Class("shares"))[0]), say("why_withheld"))
	r.Exec(`UPDATE profiles SET withheld = false, read_at = $1`, r.Now.Add(time.Second))
	require.Contains(t, everywhere(), "stork of bob")
}
