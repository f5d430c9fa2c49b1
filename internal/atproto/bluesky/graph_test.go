package bluesky_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

const listURI = "at://" + alice + "/app.bsky.graph.list/3kabc"

// pages responds to every request with the body, in which %s is the cursor
// after the requested one: "", 1, 2.
func pages(body string, last int) answerer {
	return func(w http.ResponseWriter, r *http.Request, _ int) {
		at := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &at)
		cursor := ""
		if at < last {
			cursor = fmt.Sprintf(`"cursor":"%d",`, at+1)
		}
		reply(w, 200, strings.Replace(body, "%s", cursor, 1))
	}
}

func TestFollowsPages(t *testing.T) {
	t.Parallel()
	base, j := serve(t, pages(`{"subject":{"did":"`+bob+`"},%s"follows":[
		{"did":"`+alice+`","handle":"Alice.Example","displayName":"Alice","avatar":"https://cdn.example/a.jpg","unknown":[1]},
		{"did":"`+bob+`"}]}`, 2))
	c := newClient(t, base, nil)
	cursor, n := "", 0
	for {
		page, next, err := c.Follows(t.Context(), "@Bob.Example", cursor)
		require.NoError(t, err)
		require.Equal(t, []bluesky.Profile{
			{DID: alice, Handle: "alice.example", DisplayName: "Alice", Avatar: "https://cdn.example/a.jpg"}, {DID: bob}}, page)
		n++
		if cursor = next; cursor == "" {
			break
		}
	}
	require.Equal(t, 3, n)
	require.Equal(t, requested{call: "app.bsky.graph.getFollows",
		query: url.Values{"actor": {"bob.example"}, "limit": {"100"}, "cursor": {"2"}}, at: j.all()[2].at}, j.all()[2])
}

func TestRepeatedCursorEndsPaging(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"cursor":"same","follows":[],"feed":[]}`)
	})
	c := newClient(t, base, nil)
	_, next, err := c.Follows(t.Context(), alice, "")
	require.NoError(t, err)
	require.Equal(t, "same", next)
	_, next, err = c.Follows(t.Context(), alice, "same")
	require.NoError(t, err)
	require.Empty(t, next)
	_, next, err = c.AuthorFeed(t.Context(), alice, "same", 50)
	require.NoError(t, err)
	require.Empty(t, next)
}

// TestIncompleteListingIsAnError prevents a response from being mistaken for an
// empty list, which would unfollow every account.
func TestIncompleteListingIsAnError(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		`{}`, `{"follows":null}`, `{"follows":{}}`, `{"items":[]}`, `{"follows":[`, `{"error":"x"}`,
		`{"follows":[],"cursor":"a\u0000"}`, `{"follows":[],"cursor":"\ud800"}`, `{"follows":[],"cursor":"` + strings.Repeat("x", 1025) + `"}`,
	} {
		base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, body) })
		_, _, err := newClient(t, base, noRetries).Follows(t.Context(), alice, "")
		require.Equal(t, bluesky.Transient, failure(t, err).Class, body)
	}
}

func TestProfileNamesAreStorable(t *testing.T) {
	t.Parallel()
	long := "x" + strings.Repeat("é", 1000)
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"follows":[
			{"did":"`+alice+`","handle":"not a handle","displayName":"a\u0000b\ud800c\nd","avatar":"javascript:alert(1)"},
			{"did":"`+alice+`","handle":7,"displayName":{},"avatar":[]},
			{"did":"`+alice+`","displayName":`+quoted(long)+`,"avatar":"https://cdn.example/`+strings.Repeat("x", 2048)+`"},
			{"did":"`+alice+`","did":"`+bob+`"},
			{"did":"did:plc:\u0000"}, {"did":7}, {}, null, "x", 7, []
		]}`)
	})
	page, _, err := newClient(t, base, nil).Follows(t.Context(), alice, "")
	require.NoError(t, err)
	require.Len(t, page, 4)
	require.Equal(t, bluesky.Profile{DID: alice, DisplayName: "a\ufffdb\ufffdc d"}, page[0])
	require.Equal(t, bluesky.Profile{DID: alice}, page[1])
	require.Equal(t, bluesky.Profile{DID: alice, DisplayName: "x" + strings.Repeat("é", 319)}, page[2])
	require.True(t, utf8.ValidString(page[2].DisplayName))
}

func TestListMembers(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if strings.HasSuffix(r.URL.Path, resolve) {
			resolved(w)
			return
		}
		reply(w, 200,
			`{"list":{"uri":"x"},"cursor":"c","items":[{"uri":"at://x","subject":{"did":"`+bob+`","handle":"bob.example"}},{"subject":7},{}]}`)
	})
	c := newClient(t, base, nil)
	for _, uri := range []string{listURI, "at://alice.example/app.bsky.graph.list/3kabc"} {
		page, next, err := c.List(t.Context(), uri, "b")
		require.NoError(t, err)
		require.Equal(t, []bluesky.Profile{{DID: bob, Handle: "bob.example"}}, page)
		require.Equal(t, "c", next)
	}
	require.Equal(t, []string{"app.bsky.graph.getList", resolve, "app.bsky.graph.getList"}, j.calls())
	require.Equal(t, url.Values{"list": {listURI}, "limit": {"100"}, "cursor": {"b"}}, j.all()[2].query)
}

func TestStarterPackList(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		uri := r.URL.Query().Get("starterPack")
		list := map[string]string{
			"good": listURI, "none": "", "post": "at://" + alice + "/app.bsky.feed.post/3kabc",
		}[uri[strings.LastIndex(uri, "/")+1:]]
		reply(w, 200, `{"starterPack":{"uri":`+quoted(uri)+`,"record":{"list":`+quoted(list)+`}}}`)
	})
	c := newClient(t, base, noRetries)
	pack := "at://" + alice + "/app.bsky.graph.starterpack/"
	list, err := c.StarterPack(t.Context(), pack+"good")
	require.NoError(t, err)
	require.Equal(t, listURI, list)
	require.Equal(t, url.Values{"starterPack": {pack + "good"}}, j.all()[0].query)
	for _, rkey := range []string{"none", "post"} {
		list, err = c.StarterPack(t.Context(), pack+rkey)
		require.Equal(t, bluesky.Transient, failure(t, err).Class)
		require.Empty(t, list)
	}
}

// TestOwnLabelWithholdsAProfile has servers send labels of every shape: only one that the account has put on
// itself counts.
func TestOwnLabelWithholdsAProfile(t *testing.T) {
	t.Parallel()
	own := `{"src":"` + alice + `","val":"!no-unauthenticated"}`
	for labels, withheld := range map[string]bool{
		`[` + own + `]`: true, `[null,1,{"val":1},` + strings.Repeat(`{"src":"`+alice+`","val":"x"},`, 3000) + own + `]`: true,
		`[]`: false, `null`: false, `{}`: false, `"!no-unauthenticated"`: false, own: false, `[[` + own + `]]`: false,
		`[{"src":"` + bob + `","val":"!no-unauthenticated"}]`:     false,
		`[{"src":["` + alice + `"],"val":"!no-unauthenticated"}]`: false,
	} {
		base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, 200, `{"profiles":[{"did":"`+alice+`","labels":`+labels+`}]}`)
		})
		page, err := newClient(t, base, nil).Profiles(t.Context(), []string{alice})
		require.NoError(t, err)
		require.Equal(t, []bluesky.Profile{{DID: alice, Withheld: withheld}}, page, "%.200s", labels)
	}
}

func TestUnknownProfilesAreOmitted(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		reply(w, 200, `{"profiles":[{"did":"`+bob+`","handle":"bob.example"},{"did":"did:plc:somebodyelse"}]}`)
	})
	c := newClient(t, base, nil)
	page, err := c.Profiles(t.Context(), []string{alice, bob})
	require.NoError(t, err)
	require.Equal(t, []bluesky.Profile{{DID: bob, Handle: "bob.example"}}, page)
	require.Equal(t, url.Values{"actors": {alice, bob}}, j.all()[0].query)

	page, err = c.Profiles(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, page)
	require.Len(t, j.all(), 1)
}

func TestInvalidArgumentsAreNotSent(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { resolved(w) })
	c, ctx := newClient(t, base, nil), t.Context()
	for name, call := range map[string]func() error{
		"handle":       func() error { _, err := c.ResolveHandle(ctx, "not a handle"); return err },
		"actor":        func() error { _, _, err := c.Follows(ctx, "did:x", ""); return err },
		"list":         func() error { _, _, err := c.List(ctx, "at://"+alice+"/app.bsky.feed.post/3k", ""); return err },
		"list rkey":    func() error { _, _, err := c.List(ctx, "at://"+alice+"/app.bsky.graph.list", ""); return err },
		"starter pack": func() error { _, err := c.StarterPack(ctx, listURI); return err },
		"profile":      func() error { _, err := c.Profiles(ctx, []string{"alice.example"}); return err },
		"profiles":     func() error { _, err := c.Profiles(ctx, make([]string, 26)); return err },
		"feed":         func() error { _, _, err := c.AuthorFeed(ctx, "alice.example", "", 50); return err },
		"records":      func() error { _, _, err := c.Records(ctx, "alice.example", "app.bsky.feed.post", "", 50); return err },
		"collection":   func() error { _, _, err := c.Records(ctx, alice, "post", "", 50); return err },
	} {
		e := failure(t, call())
		require.Equal(t, bluesky.Permanent, e.Class, name)
		require.Equal(t, "InvalidArgument", e.Name, name)
	}
	require.Empty(t, j.all())
}

// TestRepeatedCursorWithItemsIsAnError prevents a part of a listing from being
// mistaken for the whole.
func TestRepeatedCursorWithItemsIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, `{"cursor":"same","follows":[{"did":"`+bob+`","handle":"bob.example"}],"feed":[{}]}`)
	}))
	defer server.Close()
	c, err := bluesky.New(bluesky.Config{
		AppView: server.URL, Directory: server.URL, Retries: []time.Duration{time.Millisecond}, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	_, _, err = c.Follows(t.Context(), alice, "same")
	require.ErrorContains(t, err, "the cursor of the next page is that of this one")
	require.Equal(t, bluesky.Transient, bluesky.Classify(err))
	_, _, err = c.AuthorFeed(t.Context(), alice, "same", 50)
	require.Error(t, err)
}
