package links

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

const (
	noteAuthor = "did:nostr:84dee6e676e5bb67b4ad4e042cf70cbd8681155db535942fcc6a0533858a7240"
	noteID     = "3f1ab5b5a6a1c3b5c2e8d6f4a7b9c0d1e2f3041526374859606162738495a6b7"
)

// nostrPart shows what is of Nostr.
func nostrPart() web.Part {
	return web.Part{Network: web.Network{
		Name: "Nostr", Profile: "Profile on njump.me",
		Account: func(did string) (name, profile string) {
			key, ok := strings.CutPrefix(did, "did:nostr:")
			if !ok {
				return "", ""
			}
			return "npub1" + key, "https://njump.me/npub1" + key
		},
		Record: func(uri string) string {
			if rest, ok := strings.CutPrefix(uri, "at://did:nostr:"); ok {
				return "https://njump.me/nevent1" + url.PathEscape(rest)
			}
			return ""
		},
	}}
}

// nostrShare stores a share. An account without a name has a profile.
func (r *rig) nostrShare(did, name, profile, url string, ago time.Duration) {
	r.T.Helper()
	r.Exec(`INSERT INTO links (identity, url, site, first_seen) VALUES ($1, $1, 'a.example', $2) ON CONFLICT DO NOTHING`, url, r.Now)
	collection, rkey := "app.bsky.feed.post", "1"
	if strings.HasPrefix(did, "did:nostr:") {
		collection, rkey = "nostr.1", noteID
		r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, '1', 'c', $4, $5)
			ON CONFLICT DO NOTHING`,
			collection, did, rkey, r.Now, `{"kind":1,"tags":[],"content":"A <b>note</b>\u202e about `+url+`"}`)
	}
	r.Exec(`INSERT INTO accounts (did, handle, display_name) VALUES ($1, NULL, $2) ON CONFLICT DO NOTHING`, did, name)
	if name == "" {
		r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
			VALUES ('nostr.0', $1, 'self', '1', 'c', $2, jsonb_build_object('content', $3::text)) ON CONFLICT DO NOTHING`, did, r.Now, profile)
	}
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) SELECT $1, $2, $3, id, id, 'post', $5
		FROM links WHERE identity = $4`, did, collection, rkey, url, r.Now.Add(-ago))
}

// TestPageShowsBothNetworks covers names, marks, addresses, texts and the network control. There is
// no control while only one network is stored.
func TestPageShowsBothNetworks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	count := func() {
		_, err := ranking.Count(t.Context(), r.Pool, r.Now)
		require.NoError(t, err)
	}
	r.nostrShare("did:plc:alice", "Alice", "", "https://a.example/", time.Minute)
	count()
	require.NotContains(t, r.Get("/"), "network=nostr", "there is no choice")
	require.Contains(t, r.Get("/"), "most shared on Bluesky in")
	r.nostrShare(noteAuthor, "@<i>Bob</i>\u202e", "", "https://a.example/", 2*time.Minute)
	r.nostrShare("did:nostr:"+strings.Repeat("ab", 32), "", `{"name":7,"display_name":["x"]}`, "https://b.example/", time.Minute)
	r.nostrShare("did:nostr:"+strings.Repeat("cd", 32), "", `{"name":" carol ","display_name":""}`, "https://b.example/", 2*time.Minute)
	r.nostrShare("did:nostr:"+strings.Repeat("ef", 32), "", `{"name":`, "https://b.example/", 3*time.Minute)
	count()
	page := r.Get("/")
	r.Audit(page)
	require.Contains(t, page, "most shared on Bluesky and Nostr in")
	require.Contains(t, page, `href="/?network=nostr"`)
	require.Contains(t, page, `<bdi>&lt;i&gt;Bob&lt;/i&gt;</bdi> <span class="network">Nostr</span>`, "a name that is no handle")
	require.Contains(t, page, "npub1abababa…abab", "a profile without a name")
	require.Contains(t, page, `<bdi>carol</bdi> <span class="network">`)
	require.Contains(t, page, "npub1efefefe…efef", "a profile that cannot be read")
	require.Contains(t, r.Get("/links/3"), `<bdi>carol</bdi> <span class="network">`)
	sites := func(address string) (all []string) {
		for _, li := range webtest.Find(r.Parse(r.Get(address)), webtest.Class("link")) {
			all = append(all,
				strings.TrimSpace(webtest.Text(webtest.Find(li, webtest.Class("count"))[0]))+" "+webtest.Attr(webtest.Find(li, func(n *html.Node) bool {
					return n.Data == "h2"
				})[0].FirstChild, "href"))
		}
		return all
	}
	require.Equal(t, []string{"shared by 3 https://b.example/", "shared by 2 https://a.example/"}, sites("/"))
	require.Equal(t, []string{"shared by 1 https://a.example/"}, sites("/?network=bluesky"))
	require.Equal(t, []string{"shared by 3 https://b.example/", "shared by 1 https://a.example/"}, sites("/?network=nostr"))
	require.Contains(t, r.Get("/?network=nostr"), "most shared on Nostr in")
	require.Contains(t, r.Get("/?network=nostr"), "only Nostr", "the filter can be removed")
	require.Contains(t, r.Get("/?by="+noteAuthor), "https://njump.me/npub1")

	shares := r.Get("/links/1")
	r.Audit(shares)
	require.Contains(t, shares, "https://njump.me/nevent1")
	require.Contains(t, shares, "A &lt;b&gt;note&lt;/b&gt; about https://a.example/")
	var response sharesJSON
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1/shares")), &response))
	require.Equal(t, []ranking.Network{ranking.Bluesky, ranking.Nostr}, []ranking.Network{
		response.Shares[0].Network, response.Shares[1].Network,
	})
	require.Contains(t, response.Shares[1].Text, "A <b>note</b>")

	wrong := r.Do(http.MethodGet, "/?network=mastodon")
	require.Equal(t, http.StatusBadRequest, wrong.Code)
	require.Contains(t, wrong.Body.String(), "network is &#34;mastodon&#34;: send one of bluesky, nostr, both")
}
