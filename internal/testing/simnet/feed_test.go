package simnet_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	postCollection   = "app.bsky.feed.post"
	repostCollection = "app.bsky.feed.repost"
)

// standing returns the newest revision of each record of a collection that the log
// has not deleted, oldest first.
func standing(n *simnet.Net, did, collection string) (all []*simnet.Entry) {
	for _, e := range n.Log().Entries() {
		if e.Kind != "commit" || e.DID != did || e.Collection != collection {
			continue
		}
		i := slices.IndexFunc(all, func(other *simnet.Entry) bool { return other.Rkey == e.Rkey })
		switch {
		case e.Operation == "delete" && i >= 0:
			all = slices.Delete(all, i, i+1)
		case e.Operation == "update" && i >= 0:
			all[i] = e
		case e.Operation != "delete":
			all = append(all, e)
		}
	}
	return all
}

func uriOf(e *simnet.Entry) string { return "at://" + e.DID + "/" + e.Collection + "/" + e.Rkey }

// recordOf returns the JSON of the record in a post view, through the lexicon's type.
func recordOf(t testing.TB, view *bsky.FeedDefs_PostView) string {
	t.Helper()
	data, err := json.Marshal(view.Record)
	require.NoError(t, err)
	return string(data)
}

func TestFeedEqualsTheFoldedLog(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, Accounts: 40, History: 3000, Start: fixedStart()})
	require.NoError(t, n.Do(simnet.TooOld), "events dropped from the stream stay in the feeds")
	edited, seen := map[string]bool{}, 0
	for _, e := range n.Log().Entries() {
		if e.Operation == "update" && e.Collection == postCollection {
			edited[uriOf(e)] = true
		}
	}
	require.NotEmpty(t, edited)
	compare := func(a simnet.Account, limit string) {
		var own []string
		before := "9"
		for _, item := range everyItem(t, n, a.DID, limit) {
			at := item.Post.IndexedAt
			if item.Reason != nil {
				r := item.Reason.FeedDefs_ReasonRepost
				require.Equal(t, a.DID, r.By.Did)
				require.LessOrEqual(t, item.Post.IndexedAt, r.IndexedAt, "the post was there before")
				at = r.IndexedAt
			} else {
				require.Equal(t, a.DID, item.Post.Author.Did)
				require.Equal(t, a.Handle, item.Post.Author.Handle)
				own = append(own, item.Post.Uri)
				if edited[item.Post.Uri] {
					seen++
				}
			}
			require.LessOrEqual(t, at, before, "the latest item must come first")
			before = at
		}
		var want []string
		for _, e := range slices.Backward(standing(n, a.DID, postCollection)) {
			want = append(want, uriOf(e))
		}
		require.Equal(t, want, own)
	}
	for i, a := range n.Accounts() {
		if a.Status == "" {
			compare(a, []string{"3", "50", "100"}[i%3])
		}
	}
	require.NotZero(t, seen)
	n.Play(500) // the index must include these
	for _, a := range n.Accounts() {
		if a.Status == "" {
			compare(a, "100")
		}
	}
}

func TestEditsShowAndDeletesDisappearAtOnce(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, History: 2000})
	a := n.Hub()
	require.Empty(t, everyItem(t, n, a.Handle, "50"))
	older, err := n.PostNow(a.DID, "older")
	require.NoError(t, err)
	e, err := n.PostNow(a.DID, "worth reading", "https://one.example/2026/05/a", "https://two.example/2026/05/b")
	require.NoError(t, err)
	require.Same(t, e, n.Log().Last())
	require.Equal(t, []string{"https://one.example/2026/05/a", "https://two.example/2026/05/b"}, e.Links)
	var p bsky.FeedPost
	require.NoError(t, json.Unmarshal(e.Record, &p))
	require.ElementsMatch(t, e.Links, shared(t, &p))
	items := everyItem(t, n, a.DID, "50")
	require.Len(t, items, 2)
	require.Equal(t, []string{uriOf(e), e.CID}, []string{items[0].Post.Uri, items[0].Post.Cid})
	require.JSONEq(t, string(e.Record), recordOf(t, items[0].Post))

	edited, err := n.EditPost(uriOf(older), "older, but wiser", "https://one.example/2026/05/c")
	require.NoError(t, err)
	require.Equal(t, []string{"update", older.Rkey}, []string{edited.Operation, edited.Rkey})
	items = everyItem(t, n, a.DID, "50")
	require.Len(t, items, 2)
	require.Equal(t, edited.CID, items[1].Post.Cid, "an edit leaves the post in its place")
	require.JSONEq(t, string(edited.Record), recordOf(t, items[1].Post))

	require.NoError(t, n.DeleteRecord(uriOf(e)))
	require.Len(t, everyItem(t, n, a.DID, "50"), 1)
	require.ErrorContains(t, n.DeleteRecord(uriOf(e)), "no record")
	_, err = n.EditPost(uriOf(e), "again")
	require.ErrorContains(t, err, "no record")
	require.Equal(t, "delete", n.Log().Last().Operation)
}

func TestRepostsCarryTheirReasonAndTheOldPost(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3})
	author, reader := n.Accounts()[0], n.Hub()
	old, err := n.PostNow(author.DID, "old")
	require.NoError(t, err)
	own, err := n.PostNow(reader.DID, "own")
	require.NoError(t, err)
	again, err := n.RepostNow(reader.DID, uriOf(old))
	require.NoError(t, err)
	items := everyItem(t, n, reader.DID, "1")
	require.Len(t, items, 2)
	require.Equal(t, uriOf(old), items[0].Post.Uri)
	require.Equal(t, author.DID, items[0].Post.Author.Did)
	reason := items[0].Reason.FeedDefs_ReasonRepost
	require.Equal(t, []string{reader.DID, uriOf(again)}, []string{reason.By.Did, *reason.Uri})
	require.Equal(t, uriOf(own), items[1].Post.Uri)

	require.Len(t, everyItem(t, n, reader.DID, "5", "filter", "posts_with_replies"), 2)
	require.Empty(t, everyItem(t, n, reader.DID, "5", "filter", "posts_with_video"))
	require.NoError(t, n.Deactivate(author.DID))
	require.Len(t, everyItem(t, n, reader.DID, "1"), 1, "reposts of hidden accounts are omitted, and paging continues")
	require.NoError(t, n.Reactivate(author.DID))
	require.Len(t, everyItem(t, n, reader.DID, "1"), 2)
	require.NoError(t, n.DeleteRecord(uriOf(again)))
	require.Len(t, everyItem(t, n, reader.DID, "1"), 1)
	_, err = n.RepostNow(reader.DID, "at://"+author.DID+"/app.bsky.feed.post/2222222222222")
	require.ErrorContains(t, err, "no record")
}

func TestPinnedPostIsFirstOnTheFirstPageOnRequest(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3})
	a := n.Accounts()[1]
	var uris []string
	for range 5 {
		e, err := n.PostNow(a.DID, "one of five")
		require.NoError(t, err)
		uris = append(uris, uriOf(e))
	}
	require.NoError(t, n.Pin(uris[1]))
	order := func(pairs ...string) (got []string) {
		for i, item := range everyItem(t, n, a.DID, "2", pairs...) {
			got = append(got, item.Post.Uri)
			pinned := item.Reason != nil && item.Reason.FeedDefs_ReasonPin != nil
			require.Equal(t, len(pairs) > 0 && i == 0 && len(got) == 1 && pinned, pinned)
		}
		return got
	}
	require.Equal(t, []string{uris[4], uris[3], uris[2], uris[1], uris[0]}, order())
	require.Equal(t, []string{uris[1], uris[4], uris[3], uris[2], uris[1], uris[0]}, order("includePins", "true"), "once more in its place")
	profile := fetch[bsky.ActorGetProfiles_Output](t, n, getProfiles, "actors", a.DID).Profiles[0]
	require.Equal(t, uris[1], profile.PinnedPost.Uri)
	require.NoError(t, n.DeleteRecord(uris[1]))
	require.Equal(t, []string{uris[4], uris[3], uris[2], uris[0]}, order("includePins", "true"))
	require.NoError(t, n.Pin(uris[3]))
	require.Equal(t, []string{uris[3], uris[4], uris[2], uris[0]}, order("includePins", "true"), "not twice on one page")
	list, err := n.MakeList(a.DID)
	require.NoError(t, err)
	require.ErrorContains(t, n.Pin(list), "not a post")
	_, err = n.EditPost(list, "a list")
	require.ErrorContains(t, err, "not a post")
}

func TestFiltersLeaveShortPages(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, Accounts: 10, History: 3000})
	a := n.Accounts()[0]
	if a.Status != "" {
		require.NoError(t, n.Reactivate(a.DID))
	}
	all := everyItem(t, n, a.DID, "3")
	kinds := map[string]int{}
	for _, item := range all {
		require.Equal(t, item.Reply != nil, item.Post.Record.Val.(*bsky.FeedPost).Reply != nil)
		if r := item.Reply; r != nil && item.Reason == nil { // the repost of a reply is not a reply
			kinds["reply"]++
			if r.Parent.FeedDefs_PostView != nil {
				kinds["parent found"]++
			} else {
				require.True(t, r.Parent.FeedDefs_NotFoundPost.NotFound)
				kinds["parent gone"]++
			}
		}
	}
	require.NotZero(t, kinds["parent found"])
	require.NotZero(t, kinds["parent gone"])
	require.Len(t, everyItem(t, n, a.DID, "3", "filter", "posts_no_replies"), len(all)-kinds["reply"])
	threads := len(everyItem(t, n, a.DID, "3", "filter", "posts_and_author_threads"))
	require.Greater(t, threads, len(all)-kinds["reply"], "some replied to themselves")
	require.Less(t, threads, len(all))
	media := everyItem(t, n, a.DID, "3", "filter", "posts_with_media")
	require.NotEmpty(t, media)
	for _, item := range media {
		require.NotNil(t, item.Post.Record.Val.(*bsky.FeedPost).Embed.EmbedImages)
	}
}

func TestFeedOfTwentyThousandPostsIsPagedQuickly(t *testing.T) {
	t.Parallel()
	long(t)
	n := network(t, simnet.Config{Seed: 3})
	hub := n.Hub().DID
	var uris []string
	for range 20_000 {
		e, err := n.PostNow(hub, "one of many")
		require.NoError(t, err)
		uris = append(uris, uriOf(e))
	}
	slices.Reverse(uris)
	cursor := ""
	for at := 0; at < 2000; at += 100 {
		out := fetch[bsky.FeedGetAuthorFeed_Output](t, n, getAuthorFeed, "actor", hub, "limit", "100", "cursor", cursor)
		require.Equal(t, []string{uris[at], uris[at+99]}, []string{out.Feed[0].Post.Uri, out.Feed[99].Post.Uri})
		cursor = *out.Cursor
	}
	for range 200 { // far from both ends
		r := call(t, n, getAuthorFeed, "actor", hub, "limit", "1", "cursor", cursor)
		require.Contains(t, string(r.body), uris[2000])
	}
}

func TestHiddenAccountsCannotWriteByHand(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, History: 10})
	a := n.Accounts()[2]
	require.NoError(t, n.Deactivate(a.DID))
	before := n.Log().Last()
	_, err := n.PostNow(a.DID, "hello")
	require.ErrorContains(t, err, "deactivated")
	_, err = n.PostNow("did:plc:nobody", "hello")
	require.ErrorContains(t, err, "did:plc:nobody")
	require.ErrorContains(t, n.Follow(a.DID, n.Hub().DID), "deactivated")
	require.ErrorContains(t, n.Unfollow(a.DID, n.Hub().DID), "deactivated")
	_, err = n.MakeList(a.DID, n.Hub().DID)
	require.ErrorContains(t, err, "deactivated")
	require.Same(t, before, n.Log().Last())
	n.Play(1)
	require.Equal(t, before.Seq+1, n.Log().Last().Seq, "no number went missing")
	require.True(t, strings.HasPrefix(n.Log().Last().DID, "did:plc:"))
}
