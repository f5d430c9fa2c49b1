package simnet

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// notFoundActor is the error of getFollows; other methods use notFoundProfile.
const (
	notFoundActor   = "Actor not found: {}"
	notFoundProfile = "Profile not found"
)

// beforeAll is a cursor among rkeys that ends the listing.
const beforeAll = "2222222222222"

func (v *visit) follows() (any, error) {
	limit, err := v.limit()
	if err != nil {
		return nil, err
	}
	p, err := v.actor("actor", notFoundActor)
	if err != nil {
		return nil, err
	}
	out := &struct {
		Subject *profileView   `json:"subject"`
		Follows []*profileView `json:"follows"`
		paging
	}{Subject: v.profile(p), Follows: []*profileView{}, paging: paging{end: beforeAll}}
	page := v.backwards(v.index.collection(p, follow), limit, &out.paging)
	for _, r := range page {
		if other := v.index.byDID[r.subject]; other != nil && other.status == "" { // otherwise the page is shorter than the limit
			out.Follows = append(out.Follows, v.profile(other))
		}
	}
	return out, nil
}

// backwards returns a page of records by rkey, latest first, and sets the cursor
// if there are more.
func (v *visit) backwards(all []*record, limit int, p *paging) (page []*record) {
	at := len(all)
	if cursor := v.query.Get("cursor"); cursor != "" {
		at, _ = searchRkey(all, cursor)
	}
	for at--; at >= 0; at-- {
		if all[at].again {
			continue
		}
		if len(page) == limit {
			p.Cursor = page[limit-1].rkey
			break
		}
		page = append(page, all[at])
	}
	return page
}

func (v *visit) list() (any, error) {
	limit, err := v.limit()
	if err != nil {
		return nil, err
	}
	r, err := v.record("list", list, "List not found: ")
	if err != nil {
		return nil, err
	}
	type item struct {
		URI     string       `json:"uri"`
		Subject *profileView `json:"subject"`
	}
	out := &struct {
		List  *listView `json:"list"`
		Items []item    `json:"items"`
		paging
	}{List: v.listBasic(r), Items: []item{}, paging: paging{end: beforeAll}}
	out.List.Creator = v.profile(r.owner)
	for _, r := range v.backwards(v.index.lists[r.uri()], limit, &out.paging) {
		if other := v.index.byDID[r.subject]; other != nil && other.status == "" {
			out.Items = append(out.Items, item{r.uri(), v.profile(other)})
		}
	}
	return out, nil
}

// record returns the record that a parameter names.
func (v *visit) record(parameter, collection, missing string) (*record, error) {
	uri, err := v.required(parameter)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(uri, "at://") {
		return nil, invalid("Error: %s must be a valid at-uri", parameter)
	}
	r := v.index.find(uri)
	if r == nil || r.collection != collection {
		return nil, invalid("%s%s", missing, uri)
	}
	return r, nil
}

func (v *visit) starterPack() (any, error) {
	r, err := v.record("starterPack", starterPack, "Starter pack not found: ")
	if err != nil {
		return nil, err
	}
	type view struct {
		URI                string          `json:"uri"`
		CID                string          `json:"cid"`
		Record             json.RawMessage `json:"record"`
		Creator            *profileView    `json:"creator"`
		List               *listView       `json:"list,omitempty"`
		JoinedWeekCount    int             `json:"joinedWeekCount"`
		JoinedAllTimeCount int             `json:"joinedAllTimeCount"`
		Labels             []struct{}      `json:"labels"`
		IndexedAt          string          `json:"indexedAt"`
	}
	out := view{
		URI: r.uri(), CID: r.contentID(), Record: r.value(), Creator: v.profileBasic(r.owner), Labels: []struct{}{}, IndexedAt: stamped(r.at),
	}
	var own struct{ List string }
	json.Unmarshal(r.raw, &own) // a pack without a list has none
	if members := v.index.find(own.List); members != nil {
		out.List = v.listBasic(members)
	}
	return struct {
		StarterPack view `json:"starterPack"`
	}{out}, nil
}

func (v *visit) profiles() (any, error) {
	actors := slices.Concat(v.query["actors"], v.query["actors[]"])
	if len(actors) == 0 {
		return nil, invalid("Error: Params must have the property \"actors\"")
	}
	if len(actors) > 25 {
		return nil, invalid("Error: actors must not have more than 25 elements")
	}
	profiles := []*profileView{}
	for _, name := range actors {
		if !identifier.MatchString(name) {
			return nil, invalid("Error: actors/%d must be a valid did or a handle", slices.Index(actors, name))
		}
		if p := v.index.actor(name); p != nil && p.status == "" { // the others are left out
			profiles = append(profiles, v.profileDetailed(p))
		}
	}
	return map[string]any{"profiles": profiles}, nil
}

// posts returns the posts of at most 25 URIs. Posts that are gone, and those of hidden
// accounts, are left out.
func (v *visit) posts() (any, error) {
	uris := slices.Concat(v.query["uris"], v.query["uris[]"])
	if len(uris) == 0 {
		return nil, invalid("Error: Params must have the property \"uris\"")
	}
	if len(uris) > 25 {
		return nil, invalid("Error: uris must not have more than 25 elements")
	}
	posts := []*postView{}
	for i, uri := range uris {
		if _, err := syntax.ParseATURI(uri); err != nil {
			return nil, invalid("Error: uris/%d must be a valid at-uri", i)
		}
		if r := v.index.find(uri); r != nil && r.collection == post {
			posts = append(posts, v.post(r))
		}
	}
	return map[string]any{"posts": posts}, nil
}

func (v *visit) resolveHandle() (any, error) {
	handle, err := v.required("handle")
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(handle, "did:") || !identifier.MatchString(handle) {
		return nil, invalid("Error: handle must be a valid handle")
	}
	p := v.index.actor(handle)
	if p == nil {
		return nil, invalid("Unable to resolve handle")
	}
	return map[string]string{"did": p.did}, nil
}

// feedCursor is the format of a feed's cursor: a time, exact enough to name one
// item.
const feedCursor = "2006-01-02T15:04:05.000000Z"

func (v *visit) authorFeed() (any, error) {
	limit, err := v.limit()
	if err != nil {
		return nil, err
	}
	p, err := v.actor("actor", notFoundProfile)
	if err != nil {
		return nil, err
	}
	out := &struct {
		Feed []*feedItem `json:"feed"`
		paging
	}{Feed: []*feedItem{}, paging: paging{end: time.UnixMicro(0).UTC().Format(feedCursor)}}
	at := len(p.feed)
	if held := v.net.feedsHeld.Load(); held != 0 {
		at, _ = searchTime(p.feed, held)
	}
	cursor := v.query.Get("cursor")
	if cursor != "" {
		moved, err := time.Parse(time.RFC3339Nano, cursor)
		if err != nil {
			return nil, invalid("Malformed cursor")
		}
		at, _ = searchTime(p.feed, moved.UnixMicro())
	}
	pinned := ""
	if cursor == "" && v.flag("includePins") {
		pinned = p.profile().PinnedPost.URI
		if item := v.pin(pinned); item != nil {
			out.Feed = append(out.Feed, item)
		} else {
			pinned = ""
		}
	}
	page := p.feed[max(0, at-limit):at]
	for _, r := range slices.Backward(page) {
		if item := v.feedItem(r); item != nil && r.uri() != pinned && v.passes(r) { // otherwise the page is shorter than the limit
			out.Feed = append(out.Feed, item)
		}
	}
	if len(page) > 0 { // on the last page too
		out.Cursor = time.UnixMicro(page[0].at).UTC().Format(feedCursor)
	}
	return out, nil
}

// pin returns the pinned post; nil when it is gone.
func (v *visit) pin(uri string) *feedItem {
	r := v.index.find(uri)
	if r == nil {
		return nil
	}
	item := v.feedItem(r)
	item.Reason = &reason{Type: "app.bsky.feed.defs#reasonPin"}
	return item
}

// feedItem returns an item of the feed; nil for the repost of a post that is
// gone.
func (v *visit) feedItem(r *record) *feedItem {
	item := &feedItem{}
	if r.collection == repost {
		item.Reason = &reason{
			Type: "app.bsky.feed.defs#reasonRepost", By: v.profileBasic(r.owner), URI: r.uri(), CID: r.contentID(), IndexedAt: stamped(r.at),
		}
		if r = v.index.find(r.subject); r == nil || r.collection != post {
			return nil
		}
	}
	item.Post = v.post(r)
	if r.replyTo != "" {
		item.Reply = &replyRef{Root: v.related(r.root), Parent: v.related(r.replyTo)}
	}
	return item
}

// passes applies the filter parameter; an unknown filter passes everything.
func (v *visit) passes(r *record) bool {
	switch v.query.Get("filter") {
	case "posts_no_replies":
		return r.replyTo == ""
	case "posts_with_media":
		return r.pictures
	case "posts_with_video":
		return false // the simulated network has no videos
	case "posts_and_author_threads":
		return r.replyTo == "" || strings.HasPrefix(r.replyTo, "at://"+r.owner.did+"/") && strings.HasPrefix(r.root, "at://"+r.owner.did+"/")
	}
	return true
}
