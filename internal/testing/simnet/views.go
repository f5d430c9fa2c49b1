package simnet

import (
	"encoding/json"
	"hash/fnv"
)

// profileView is app.bsky.actor.defs#profileView, also used for
// #profileViewBasic and #profileViewDetailed.
type profileView struct {
	DID         string  `json:"did"`
	Handle      string  `json:"handle"`
	DisplayName string  `json:"displayName,omitempty"`
	Description string  `json:"description,omitempty"`
	Avatar      string  `json:"avatar,omitempty"`
	Labels      []label `json:"labels"`
	IndexedAt   string  `json:"indexedAt,omitempty"`
	CreatedAt   string  `json:"createdAt,omitempty"`
	*detail
}

// label is com.atproto.label.defs#label: one that the account has put on itself.
type label struct {
	Src string `json:"src"`
	URI string `json:"uri"`
	Val string `json:"val"`
}

// detail holds the further fields of #profileViewDetailed.
type detail struct {
	FollowsCount int        `json:"followsCount"`
	PostsCount   int        `json:"postsCount"`
	PinnedPost   *strongRef `json:"pinnedPost,omitempty"`
}

type strongRef struct {
	CID string `json:"cid"`
	URI string `json:"uri"`
}

func (v *visit) profileBasic(p *member) *profileView {
	own := p.profile()
	view := &profileView{DID: p.did, Handle: p.handle, DisplayName: own.DisplayName, Labels: []label{}}
	for _, v := range own.Labels.Values {
		view.Labels = append(view.Labels, label{p.did, "at://" + p.did + "/" + profile + "/self", v.Val})
	}
	h := fnv.New32a()
	h.Write([]byte(p.did)) // never fails
	if h.Sum32()%10 != 0 { // some have no picture
		view.Avatar = v.net.AppViewURL() + "/blob/" + p.did + "/" + cidFor(p.did)
	}
	view.CreatedAt = stamped(v.index.seeds.before.UnixMicro())
	return view
}

func (v *visit) profile(p *member) *profileView {
	view := v.profileBasic(p)
	view.Description, view.IndexedAt = p.profile().Description, view.CreatedAt
	return view
}

func (v *visit) profileDetailed(p *member) *profileView {
	view := v.profile(p)
	view.detail = &detail{FollowsCount: len(v.index.collection(p, follow)), PostsCount: len(p.repo[post])}
	if pinned := p.profile().PinnedPost; pinned.URI != "" {
		view.PinnedPost = &strongRef{CID: pinned.CID, URI: pinned.URI}
	}
	return view
}

// postView is app.bsky.feed.defs#postView, or #notFoundPost without an author.
type postView struct {
	Type      string          `json:"$type,omitempty"`
	URI       string          `json:"uri"`
	CID       string          `json:"cid,omitempty"`
	Author    *profileView    `json:"author,omitempty"`
	Record    json.RawMessage `json:"record,omitempty"`
	IndexedAt string          `json:"indexedAt,omitempty"`
	Labels    []struct{}      `json:"labels,omitzero"`
	NotFound  bool            `json:"notFound,omitempty"`
	counts
}

type counts struct {
	ReplyCount  *int `json:"replyCount,omitempty"`
	RepostCount *int `json:"repostCount,omitempty"`
	LikeCount   *int `json:"likeCount,omitempty"`
	QuoteCount  *int `json:"quoteCount,omitempty"`
}

func (v *visit) post(r *record) *postView {
	return &postView{URI: r.uri(), CID: r.contentID(), Author: v.profileBasic(r.owner), Record: r.value(), IndexedAt: stamped(r.at),
		Labels: []struct{}{}, counts: counts{new(int), new(int), new(int), new(int)}} // the simulated network does not count
}

// related returns a post that another refers to.
func (v *visit) related(uri string) *postView {
	r := v.index.find(uri)
	if r == nil || r.collection != post {
		return &postView{Type: "app.bsky.feed.defs#notFoundPost", URI: uri, NotFound: true}
	}
	view := v.post(r)
	view.Type = "app.bsky.feed.defs#postView"
	return view
}

// feedItem is app.bsky.feed.defs#feedViewPost.
type feedItem struct {
	Post   *postView `json:"post"`
	Reply  *replyRef `json:"reply,omitempty"`
	Reason *reason   `json:"reason,omitempty"`
}

type replyRef struct {
	Root   *postView `json:"root"`
	Parent *postView `json:"parent"`
}

// reason is why a post is in a feed: #reasonRepost or #reasonPin.
type reason struct {
	Type      string       `json:"$type"`
	By        *profileView `json:"by,omitempty"`
	URI       string       `json:"uri,omitempty"`
	CID       string       `json:"cid,omitempty"`
	IndexedAt string       `json:"indexedAt,omitempty"`
}

// listView is app.bsky.graph.defs#listView, or #listViewBasic without a creator.
type listView struct {
	URI           string       `json:"uri"`
	CID           string       `json:"cid"`
	Name          string       `json:"name"`
	Purpose       string       `json:"purpose"`
	ListItemCount int          `json:"listItemCount"`
	IndexedAt     string       `json:"indexedAt"`
	Labels        []struct{}   `json:"labels"`
	Creator       *profileView `json:"creator,omitempty"`
}

func (v *visit) listBasic(r *record) *listView {
	var own struct{ Name, Purpose string }
	json.Unmarshal(r.raw, &own) // a list without a name has none
	return &listView{URI: r.uri(), CID: r.contentID(), Name: own.Name, Purpose: own.Purpose, ListItemCount: len(v.index.lists[r.uri()]),
		IndexedAt: stamped(r.at), Labels: []struct{}{}}
}
