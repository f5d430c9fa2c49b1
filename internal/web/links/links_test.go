package links

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

const sharedLink = "https://a.example/"

// fillLink stores a link that is shared in every way, with a share for every reason not to count.
func (r *rig) fillLink() {
	r.T.Helper()
	// The link has no votes: a kept link still has its card.
	r.Exec(`INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at)
		VALUES ($1, $1, 'a.example', 'T', $2, 6, $2::timestamptz - interval '1 hour')`, sharedLink, r.Now)
	add := func(did, collection, rkey, how string, ago time.Duration, subject ...any) {
		subject = append(subject, nil, nil)
		r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, subject_did, subject_collection,
			subject_rkey) VALUES ($1, $2, $3, 1, 1, $4, $5, $6, $8, $7)`,
			did, collection, rkey, how, r.Now.Add(-ago), subject[0], subject[1], "app.bsky.feed.post")
	}
	const post, repost = "app.bsky.feed.post", "app.bsky.feed.repost"
	add("did:plc:alice", post, "1", "post", 10*time.Minute)
	add("did:plc:alice", post, "2", "post", 20*time.Minute)
	add("did:plc:bob", repost, "1", "repost", 5*time.Minute, "did:plc:alice", "1")
	add("did:plc:carol", post, "1", "quote", 4*time.Minute, "did:plc:gone", "1")
	add("did:plc:hidden", post, "1", "post", 3*time.Minute)
	add("did:plc:dan", repost, "1", "repost", 2*time.Minute, "did:plc:hidden", "1")
	add("did:plc:eve", post, "1", "post", time.Minute)
	add("did:plc:frank", post, "1", "post", 26*time.Hour)
	add("did:plc:gina", post, "1", "post", 30*time.Hour)
	add("did:plc:gina", post, "2", "post", 25*time.Hour)
	r.Exec(`INSERT INTO subjects (did, collection, rkey, links)
		VALUES ('did:plc:alice', $1, '1', '{1}'), ('did:plc:hidden', $1, '1', '{1}')`, post)
	r.Exec(`INSERT INTO accounts (did, handle, display_name, status)
		VALUES ('did:plc:alice', 'alice.example', 'Alice', 'active'), ('did:plc:hidden', 'hidden.example', 'H', 'takendown')`)
	r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT $1, did, '1', 'r', 'c', $2, jsonb_build_object('text', 'Text of ' || did)
		FROM unnest('{did:plc:alice,did:plc:hidden,did:plc:carol}'::text[]) AS t (did)`, post, r.Now)
	r.Exec(`INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey, since) VALUES
		('links', $2, 'did:plc:wendy', '1', $1, 'did:plc:alice', '1', $3), ('links', $2, 'did:plc:will', '1', $1, 'did:plc:gone', '1', $3),
		('links', $2, 'did:plc:other', '1', $1, 'did:plc:alice', '9', $3),
			('else', $2, 'did:plc:other', '2', $1, 'did:plc:alice', '1', $3)`, post, repost, r.Now)
	r.watch("follows", "hub.example", "did:plc:alice", "did:plc:bob", "did:plc:carol", "did:plc:hidden", "did:plc:dan",
		"did:plc:frank", "did:plc:gina")
	r.watch("account", "did:plc:bob", "did:plc:bob")
	r.watch("account", "did:plc:will", "did:plc:will")
}

// shares returns all shares of a link as "account rkey why", page by page.
func (r *rig) shares(query string) (all []string, raw string) {
	r.T.Helper()
	for cursor := ""; ; {
		raw = r.Get("/api/v1/links/1/shares?" + query + cursor)
		var response sharesJSON
		require.NoError(r.T, json.Unmarshal([]byte(raw), &response))
		for _, s := range response.Shares {
			rkey := s.URI[strings.LastIndex(s.URI, "/")+1:]
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", strings.TrimPrefix(s.DID, "did:plc:"), rkey, s.Why)))
			require.Equal(r.T, s.Why == "", s.Counts)
		}
		if cursor = "&cursor=" + url.QueryEscape(string(response.Next)); response.Next == "" {
			return all, raw
		}
	}
}

func TestEveryShareOfALinkIsListedWithItsReason(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	want := []string{"eve 1 not_followed", "dan 1 subject_hidden", "hidden 1 hidden", "carol 1 subject_gone", "bob 1",
		"alice 1", "alice 2 same_person",
		"gina 2", "frank 1", "gina 1 same_person", "wendy 1 not_followed", "will 1 waiting"}
	for _, limit := range []string{"200", "7", "3", "1"} {
		got, _ := r.shares("limit=" + limit)
		require.Equal(t, want, got, limit)
	}
	got, _ := r.shares("window=24h")
	require.Equal(t, []string{"gina 2 outside_window", "frank 1 outside_window", "gina 1 outside_window"}, got[7:10])
	got, _ = r.shares("watch=did:plc:bob&limit=4")
	require.Equal(t, []string{
		"eve 1 not_followed", "dan 1 not_followed", "hidden 1 hidden", "carol 1 not_followed", "bob 1", "alice 1 not_followed",
		"alice 2 not_followed",
	}, got[:7])
	require.Equal(t, []string{"wendy 1 not_followed", "will 1 not_followed"}, got[len(got)-2:])
	r.Exec(`DELETE FROM watches`)
	got, _ = r.shares("limit=5")
	require.Equal(t, "eve 1", got[0], "everyone counts")
	require.Equal(t, []string{"wendy 1 waiting", "will 1 waiting"}, got[len(got)-2:])
}

// TestMergedLinkLeadsToTheOneThatCounts shows that its shares name the spelling that their records
// contain, until it is split.
func TestMergedLinkLeadsToTheOneThatCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	r.Exec(`INSERT INTO links (identity, url, site, first_seen) VALUES ('short.example/x', 'https://short.example/x', 'short.example', now())`)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		VALUES ('did:plc:merged', 'app.bsky.feed.post', '1', 2, 2, 'post', $1)`, r.Now)
	merge := func(f func(pgx.Tx) error) {
		t.Helper()
		require.NoError(t, pgx.BeginFunc(t.Context(), r.Pool, f))
	}
	merge(func(tx pgx.Tx) error {
		return ranking.MergeLinks(t.Context(), tx, ranking.Merge{Link: 2, Into: 1, Why: ranking.ByHand, Now: r.Now})
	})
	for from, to := range map[string]string{
		"/links/2?window=1h": "/links/1?window=1h", "/api/v1/links/2": "/api/v1/links/1",
		"/api/v1/links/2/shares?limit=3": "/api/v1/links/1/shares?limit=3",
	} {
		moved := r.Do(http.MethodGet, from)
		require.Equal(t, http.StatusTemporaryRedirect, moved.Code, from)
		require.Equal(t, to, moved.Header().Get("Location"), from)
	}
	var summary ranking.LinkSummary
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1")), &summary))
	require.Equal(t, []ranking.MergedLink{{
		ID: 2, URL: "https://short.example/x", Into: 1, Why: "by hand", MergedAt: summary.Merged[0].MergedAt,
	}}, summary.Merged)
	require.Contains(t, r.Get("/api/v1/links/1/shares"), `"named":"https://short.example/x"`)
	merge(func(tx pgx.Tx) error { return ranking.SplitLink(t.Context(), tx, 2, r.Now) })
	require.NotContains(t, r.Get("/api/v1/links/1/shares"), "named")
	require.Contains(t, r.Get("/api/v1/links/2/shares"), "did:plc:merged")
}

func TestShareNamesItsRecord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	var response struct{ Shares []json.RawMessage }
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1/shares?limit=6")), &response))
	require.JSONEq(t,
		`{"did": "did:plc:alice", "network": "bluesky", "handle": "alice.example", "display_name": "Alice", "how": "post",
		"shared_at": "2026-05-04T11:50:00Z",
		"uri": "at://did:plc:alice/app.bsky.feed.post/1", "text": "Text of did:plc:alice", "counts": true}`, string(response.Shares[5]))
	require.JSONEq(t,
		`{"did": "did:plc:bob", "network": "bluesky", "how": "repost", "shared_at": "2026-05-04T11:55:00Z",
		"uri": "at://did:plc:bob/app.bsky.feed.repost/1",
		"subject": "at://did:plc:alice/app.bsky.feed.post/1", "subject_handle": "alice.example",
		"text": "Text of did:plc:alice", "counts": true}`, string(response.Shares[4]))
	require.JSONEq(t,
		`{"did": "did:plc:carol", "network": "bluesky", "how": "quote", "shared_at": "2026-05-04T11:56:00Z",
		"uri": "at://did:plc:carol/app.bsky.feed.post/1",
		"subject": "at://did:plc:gone/app.bsky.feed.post/1", "text": "Text of did:plc:carol", "counts": false, "why": "subject_gone"}`,
		string(response.Shares[3]))
	require.JSONEq(t,
		`{"did": "did:plc:hidden", "network": "bluesky", "how": "post", "shared_at": "2026-05-04T11:57:00Z",
		"uri": "at://did:plc:hidden/app.bsky.feed.post/1",
		"counts": false, "why": "hidden"}`, string(response.Shares[2]), "neither the name nor the text of a hidden account")
	require.NotContains(t, string(response.Shares[1]), "Text of", "a repost of a hidden account's post")
}

func TestLinkSaysHowItIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	require.JSONEq(t,
		`{"id": 1, "url": "https://a.example/", "site": "a.example", "title": "T",
		"first_seen": "2026-05-04T12:00:00Z", "generated_at": "2026-05-04T12:00:00Z",
		"shares": 10, "accounts": 8, "sharers": 4, "windows": {"1h": 2, "3h": 2, "6h": 2, "12h": 2, "24h": 2, "7d": 4},
		"ways": {"post": 7, "quote": 1, "repost": 2},
		"not_counted": {"hidden": 1, "not_followed": 1, "same_person": 2, "subject_gone": 1, "subject_hidden": 1},
		"first_shared": "2026-05-03T06:00:00Z", "last_shared": "2026-05-04T11:59:00Z",
		"history_from": "2026-05-03T06:00:00Z", "history": [`+strings.Repeat("1,", 6)+strings.Repeat("2,", 41)+
			`4], "other_titles": [], "other_urls": [], "kept_sharers": 6, "kept_at": "2026-05-04T11:00:00Z"}`, r.Get("/api/v1/links/1"))
	var l ranking.LinkSummary
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1?window=3h&watch=hub.example")), &l))
	require.Equal(t, 2, l.Sharers)
	require.Equal(t, map[ranking.Reason]int{
		"hidden": 1, "not_followed": 1, "same_person": 1, "outside_window": 3, "subject_gone": 1, "subject_hidden": 1,
	}, l.NotCounted)
	for window, n := range l.Windows { // the number in the ranking
		var response trendingJSON
		require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/trending?watch=hub.example&window="+window)), &response))
		require.Equal(t, response.Links[0].Sharers, n, window)
	}
}

// TestLoudLinkDiffersFromPopularLink compares a link that one account shares 5,000 times with one
// that 5,000 accounts share. They look different, and all shares of both are listed.
func TestLoudLinkDiffersFromPopularLink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Exec(`INSERT INTO links (identity, url, site, first_seen)
		VALUES ('l', 'https://loud.example/', 'x', now()), ('p', 'https://popular.example/', 'x', now())`)
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT CASE l WHEN 1 THEN 'did:plc:one' ELSE 'did:plc:' || n END, 'app.bsky.feed.post', l || '-' || n, l, l, 'post',
			$1::timestamptz - n / 100 * interval '1 second'
		FROM generate_series(1, 2) AS l, generate_series(1, 5000) AS n`, r.Now)
	var loud, popular ranking.LinkSummary
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1")), &loud))
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/2")), &popular))
	require.Equal(t, []int{5000, 1, 1, 4999}, []int{loud.Shares, loud.Accounts, loud.Sharers, loud.NotCounted[ranking.SamePerson]})
	require.Equal(t, []int{5000, 5000, 5000, 0}, []int{
		popular.Shares, popular.Accounts, popular.Sharers, popular.NotCounted[ranking.SamePerson],
	})
	all, _ := r.shares("limit=200")
	require.Len(t, all, 5000)
	distinct, counted := map[string]bool{}, 0
	for _, s := range all {
		if distinct[s] = true; !strings.HasSuffix(s, "same_person") {
			counted++
		}
	}
	require.Len(t, distinct, 5000)
	require.Equal(t, 1, counted)
}

func TestWrongRequestsOfALinkSayWhatToSend(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.fillLink()
	_, page := r.shares("limit=200")
	require.NotContains(t, page, "next")
	var response sharesJSON
	require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1/shares?limit=1")), &response))
	for target, want := range map[string]string{
		"/api/v1/links/x":                    `id is "x": send the id of a link`,
		"/api/v1/links/-1":                   `id is "-1": send`,
		"/api/v1/links/0":                    `id is "0": send`,
		"/api/v1/links/01/shares":            `id is "01": send`,
		"/api/v1/links/1e3":                  `id is "1e3": send`,
		"/api/v1/links/99999999999999999999": `id is "99999999999999999999": send`,
		"/api/v1/links/%3Cscript%3E/shares":  `id is "\u003cscript\u003e": send`,
		"/api/v1/links/1?limit=3":            `unknown parameter "limit": send any of window, watch, degree`,
		"/api/v1/links/1/shares?sort=speed": `unknown parameter "sort": send any of window, watch, degree,` +
			` limit, cursor`,
		"/api/v1/links/1/shares?limit=-1":  `limit is "-1": send a whole number from 1 to 200`,
		"/api/v1/links/1/shares?window=2h": `window is "2h": send one of`,
		"/api/v1/links/1/shares?watch=nobody.example": `watch is "nobody.example": send the target of a watch: ` +
			`did:plc:bob, did:plc:will, hub.example`,
		"/api/v1/links/2/shares?cursor=" + string(response.Next):                                                          `cursor is`,
		"/api/v1/links/1/shares?window=1h&cursor=" + string(response.Next):                                                `cursor is`,
		"/api/v1/links/1/shares?cursor=" + strings.Repeat("e", 9000):                                                      `cursor is`,
		"/api/v1/links/1/shares?cursor=e30":                                                                               `cursor is`,
		"/api/v1/links/1/shares?cursor=%00":                                                                               `cursor is`,
		"/api/v1/links/1/shares?cursor=" + string(ranking.Cursor(strings.Replace(string(response.Next), "ey", "eyB", 1))): `cursor is`,
	} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusBadRequest, rec.Code, target)
		require.Contains(t, rec.Body.String(), strings.ReplaceAll(want, `"`, `\"`), target)
	}
	require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, "/api/v1/links/17").Code)
	require.JSONEq(t, `{"error": "There is no link 17: nobody shares it any more, or nobody did."}`,
		r.Do(http.MethodGet, "/api/v1/links/17").Body.String())
	require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, "/api/v1/links/1/likes").Code)
	require.Zero(t, r.Log.Count())
}
