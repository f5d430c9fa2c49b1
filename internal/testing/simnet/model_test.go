package simnet_test

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/api/bsky"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/bluesky-social/indigo/lex/util"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	feedPost   = "app.bsky.feed.post"
	feedLike   = "app.bsky.feed.like"
	feedRepost = "app.bsky.feed.repost"
)

func history(t *testing.T, mix simnet.Mix) []*simnet.Entry {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 42, Accounts: 1500, Mix: mix, History: 20_000, Start: fixedStart()})
	require.NoError(t, err)
	return n.Log().Entries()
}

func TestEventKindsFollowTheMix(t *testing.T) {
	t.Parallel()
	long(t)
	want := map[simnet.Mix]map[string]float64{ // per thousand
		simnet.MixPosts: {"create " + feedPost: 870, "delete " + feedRepost: 5, "update " + feedPost: 20, "delete " + feedPost: 40,
			"create " + feedLike: 10, "create " + feedRepost: 45, "identity": 6, "account": 4},
		simnet.MixNetwork: {"create " + feedPost: 108, "update " + feedPost: 1, "delete " + feedPost: 8,
			"create " + feedLike: 680, "delete " + feedLike: 34, "delete " + feedRepost: 2, "create " + feedRepost: 95,
			"create app.bsky.graph.follow": 50, "create app.bsky.graph.block": 8, "update app.bsky.actor.profile": 4,
			"create fm.teal.alpha.actor.status": 4, "identity": 4, "account": 2},
	}
	for mix, shares := range want {
		seen := map[string]float64{}
		entries := history(t, mix)
		for _, e := range entries {
			name := e.Kind
			if e.Kind == "commit" {
				name = e.Operation + " " + e.Collection
			}
			seen[name] += 1000 / float64(len(entries))
		}
		for name, of := range shares {
			require.InDelta(t, of, seen[name], 0.15*of+1.5, "%s in mix %d", name, mix)
			require.NotZero(t, seen[name], name)
		}
		for name := range seen {
			require.Contains(t, shares, name)
		}
	}
}

func TestOnlyExistingRecordsAreEditedOrDeleted(t *testing.T) {
	t.Parallel()
	for _, mix := range []simnet.Mix{simnet.MixPosts, simnet.MixNetwork} {
		exists := map[string]bool{}
		for _, e := range history(t, mix) {
			if e.Kind != "commit" || e.Collection == "app.bsky.actor.profile" {
				continue
			}
			key := e.DID + "/" + e.Collection + "/" + e.Rkey
			require.Equal(t, e.Operation != "create", exists[key], "%s of %s", e.Operation, key)
			require.Equal(t, e.Operation == "delete", e.Record == nil)
			require.Equal(t, e.Operation == "delete", e.CreatedAt.IsZero())
			exists[key] = e.Operation != "delete"
		}
	}
}

func TestIdentifiersAreWellFormedAndRevsAscend(t *testing.T) {
	t.Parallel()
	revs, lastTime := map[string]string{}, int64(0)
	var before *simnet.Entry
	for _, e := range history(t, simnet.MixNetwork) {
		_, err := syntax.ParseDID(e.DID)
		require.NoError(t, err)
		require.GreaterOrEqual(t, e.TimeUS, lastTime)
		lastTime = e.TimeUS
		if e.Kind != "commit" {
			continue
		}
		for _, id := range []string{e.Rev, e.Rkey} {
			if id == "self" && e.Collection == "app.bsky.actor.profile" {
				continue
			}
			tid, err := syntax.ParseTID(id)
			require.NoError(t, err)
			if id == e.Rev { // an rkey may equal that of an old record
				require.WithinDuration(t, time.UnixMicro(e.TimeUS), tid.Time(), 10*time.Millisecond)
			}
		}
		if before != nil && before.Rev == e.Rev {
			require.Equal(t, before.DID, e.DID, "one rev, two accounts")
		} else {
			require.Greater(t, e.Rev, revs[e.DID], "the revs of an account rise")
		}
		revs[e.DID], before = e.Rev, e
		if e.Record != nil {
			id, err := cid.Decode(e.CID)
			require.NoError(t, err)
			require.Equal(t, uint64(cid.DagCBOR), id.Prefix().Codec)
		}
	}
}

// known decodes a record into its lexicon's type.
func known(t *testing.T, record json.RawMessage) any {
	t.Helper()
	value, err := util.JsonDecodeValue(record)
	require.NoError(t, err, "%s", record)
	var cbor bytes.Buffer
	require.NoError(t, value.(util.CBOR).MarshalCBOR(&cbor)) // checks the lengths
	again, err := json.Marshal(value)
	require.NoError(t, err)
	require.JSONEq(t, string(record), string(again), "the record holds what its lexicon does not know")
	return value
}

func TestRecordsMatchTheLexicons(t *testing.T) {
	t.Parallel()
	long(t)
	for _, e := range append(history(t, simnet.MixPosts)[:3000], history(t, simnet.MixNetwork)[:3000]...) {
		if e.Record == nil || strings.HasPrefix(e.Collection, "fm.teal.") {
			continue
		}
		var head struct {
			Type      string `json:"$type"`
			CreatedAt string `json:"createdAt"`
		}
		require.NoError(t, json.Unmarshal(e.Record, &head))
		require.Equal(t, e.Collection, head.Type)
		created, err := syntax.ParseDatetime(head.CreatedAt)
		require.NoError(t, err)
		require.True(t, e.CreatedAt.Equal(created.Time()), "%s is not %s", e.CreatedAt, created)
		require.WithinDuration(t, time.UnixMicro(e.TimeUS), e.CreatedAt, 3*time.Second)
		switch r := known(t, e.Record).(type) {
		case *bsky.FeedPost:
			require.LessOrEqual(t, utf8.RuneCountInString(r.Text), 300)
			if r.Reply != nil {
				requirePost(t, r.Reply.Parent.Uri)
			}
		case *bsky.FeedLike:
			requirePost(t, r.Subject.Uri)
		case *bsky.FeedRepost:
			requirePost(t, r.Subject.Uri)
		case *bsky.GraphFollow:
			_, err := syntax.ParseDID(r.Subject)
			require.NoError(t, err)
		}
	}
}

func requirePost(t *testing.T, uri string) {
	t.Helper()
	at, err := syntax.ParseATURI(uri)
	require.NoError(t, err)
	require.Equal(t, feedPost, at.Collection().String())
}

// shared returns the URLs that a post's record shares, by its parts.
func shared(t *testing.T, p *bsky.FeedPost) (uris []string) {
	t.Helper()
	for _, f := range p.Facets {
		uri := f.Features[0].RichtextFacet_Link.Uri
		text := p.Text[f.Index.ByteStart:f.Index.ByteEnd]
		require.True(t, utf8.ValidString(text), "a facet cuts a character in two")
		_, bare, _ := strings.Cut(uri, "://")
		bare = strings.TrimPrefix(bare, "www.")
		require.True(t, strings.HasPrefix(bare, strings.TrimSuffix(text, "...")), "%q is not the link %s", text, uri)
		require.GreaterOrEqual(t, len(text), 20)
		uris = append(uris, uri)
	}
	if i := strings.Index(p.Text, "http"); i >= 0 {
		uris = append(uris, strings.Fields(p.Text[i:])[0])
	}
	switch e := p.Embed; {
	case e == nil:
	case e.EmbedExternal != nil:
		uris = append(uris, e.EmbedExternal.External.Uri)
	case e.EmbedRecordWithMedia != nil:
		uris = append(uris, e.EmbedRecordWithMedia.Media.EmbedExternal.External.Uri)
	}
	return uris
}

func TestLinksAreThePagesOfThePost(t *testing.T) {
	t.Parallel()
	long(t)
	ways := map[string]int{}
	for _, e := range history(t, simnet.MixPosts) {
		if e.Collection != feedPost || e.Record == nil {
			require.Empty(t, e.Links)
			continue
		}
		var p bsky.FeedPost
		require.NoError(t, json.Unmarshal(e.Record, &p))
		var pages []string
		said := map[string]bool{} // the spellings that posts contain
		for _, uri := range shared(t, &p) {
			if strings.HasPrefix(uri, "https://media.tenor.com/") {
				ways["gif"]++
				require.Empty(t, e.Links, "a GIF shares nothing")
				continue
			}
			page, _, _ := strings.Cut(uri, "?")
			said[page] = true // an anchor stays
			page, _, _ = strings.Cut(page, "#")
			_, page, _ = strings.Cut(page, "://")
			page = "https://" + strings.TrimSuffix(strings.TrimPrefix(page, "www."), "/")
			if page != uri {
				ways["variant"]++
			}
			pages = append(pages, page)
		}
		slices.Sort(pages)
		require.ElementsMatch(t, slices.Compact(pages), e.Links, "%s", e.Record)
		requireClaims(t, e, &p, said)
		for _, link := range e.Links {
			u, err := url.Parse(link)
			require.NoError(t, err)
			require.Equal(t, link, (&url.URL{Scheme: "https", Host: u.Host, Path: u.Path}).String())
			require.True(t, strings.HasSuffix(u.Host, ".example"))
			require.Equal(t, strings.ToLower(link), link)
		}
		ways[way(&p)]++
		if p.Embed != nil && p.Embed.EmbedImages != nil {
			require.Empty(t, e.Links, "pictures share nothing")
		}
	}
	for _, name := range []string{
		"gif", "variant", "images", "quote", "external", "quote with card", "facet", "two facets", "bare", "nothing",
	} {
		require.Greater(t, ways[name], 50, name)
	}
}

// requireClaims compares the claims of an entry with its post. said contains the spellings in the
// post.
func requireClaims(t *testing.T, e *simnet.Entry, p *bsky.FeedPost, said map[string]bool) {
	t.Helper()
	require.Len(t, e.Claims, len(e.Links))
	for _, c := range e.Claims {
		require.True(t, said[c.URL], "%s: %v", c.URL, said)
		delete(said, c.URL)
	}
	require.Empty(t, said)
	var card *bsky.EmbedExternal_External
	switch embed := p.Embed; {
	case embed == nil:
	case embed.EmbedExternal != nil:
		card = embed.EmbedExternal.External
	case embed.EmbedRecordWithMedia != nil:
		card = embed.EmbedRecordWithMedia.Media.EmbedExternal.External
	}
	want := simnet.Claim{}
	if card != nil && len(e.Claims) > 0 {
		want = simnet.Claim{URL: e.Claims[0].URL, Title: card.Title, Description: card.Description}
		if card.Thumb != nil {
			want.Picture = card.Thumb.Ref.String()
		}
		require.Equal(t, []simnet.Claim{want}, e.Claims)
	}
	for _, c := range e.Claims {
		require.Equal(t, simnet.Claim{URL: c.URL, Title: want.Title, Description: want.Description, Picture: want.Picture}, c)
	}
}

func way(p *bsky.FeedPost) string {
	switch e := p.Embed; {
	case e != nil && e.EmbedImages != nil:
		return "images"
	case e != nil && e.EmbedExternal != nil:
		return "external"
	case e != nil && e.EmbedRecord != nil:
		return "quote"
	case e != nil && e.EmbedRecordWithMedia != nil:
		return "quote with card"
	case len(p.Facets) == 2:
		return "two facets"
	case len(p.Facets) == 1:
		return "facet"
	case strings.Contains(p.Text, "http"):
		return "bare"
	}
	return "nothing"
}

func TestHandlesChangeAndHiddenAccountsAreSilent(t *testing.T) {
	t.Parallel()
	for _, mix := range []simnet.Mix{simnet.MixPosts, simnet.MixNetwork} {
		status, counts, handles := map[string]string{}, map[string]int{}, map[string]string{}
		for _, e := range history(t, mix) {
			switch e.Kind {
			case "identity":
				_, err := syntax.ParseHandle(e.Handle)
				require.NoError(t, err)
				require.NotEqual(t, e.Handle, handles[e.DID])
				handles[e.DID] = e.Handle
				counts["handle"]++
				require.Empty(t, status[e.DID], "a hidden account changed its handle")
			case "account":
				require.NotEqual(t, e.Active, status[e.DID] == "", "an account event changed nothing")
				require.NotEqual(t, "deleted", status[e.DID], "a deleted account came back")
				require.Equal(t, e.Active, e.Status == "")
				status[e.DID] = e.Status
				counts["account "+e.Status]++
			default:
				require.Empty(t, status[e.DID], "a hidden account wrote")
			}
		}
		require.Greater(t, counts["handle"], 20)
		require.Greater(t, counts["account deactivated"], 5)
		require.Greater(t, counts["account "], 5)
		require.NotZero(t, counts["account deleted"])
	}
}

func TestSharersOfLinksHaveALongTail(t *testing.T) {
	t.Parallel()
	long(t)
	sharers := map[string]map[string]bool{}
	posts := map[string]int{}
	for _, e := range history(t, simnet.MixPosts) {
		posts[e.DID]++
		for _, link := range e.Links {
			if sharers[link] == nil {
				sharers[link] = map[string]bool{}
			}
			sharers[link][e.DID] = true
		}
	}
	require.Greater(t, len(sharers), 100)
	require.Greater(t, top(counted(sharers)), 8*median(counted(sharers)))
	var each []int
	for _, n := range posts {
		each = append(each, n)
	}
	require.Greater(t, top(each), 20*median(each), "few write much, most write little")
	require.Greater(t, len(posts), 1000)
}

func counted(sets map[string]map[string]bool) (sizes []int) {
	for _, set := range sets {
		sizes = append(sizes, len(set))
	}
	return sizes
}

func top(all []int) int { return slices.Max(all) }

func median(all []int) int {
	slices.Sort(all)
	return all[len(all)/2]
}

// TestSmallNetworkStaysActive covers the smallest network: at least one account must always be able
// to write.
func TestSmallNetworkStaysActive(t *testing.T) {
	t.Parallel()
	long(t)
	n, err := simnet.New(simnet.Config{Seed: 1, Accounts: 10, History: 60_000, Start: fixedStart()})
	require.NoError(t, err)
	late := map[string]bool{}
	deleted := 0
	for i, e := range n.Log().Entries() {
		if i > 55_000 && e.Kind == "commit" {
			late[e.DID] = true
		}
		if e.Status == "deleted" {
			deleted++
		}
	}
	require.Greater(t, deleted, 10)
	require.GreaterOrEqual(t, len(late), 8)
}
