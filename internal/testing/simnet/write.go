package simnet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/api/bsky"
)

func (e *Entry) uri() string { return "at://" + e.DID + "/" + e.Collection + "/" + e.Rkey }

// commit writes a record by hand.
func (m *model) commit(a *person, collection string, value any, at time.Time) (*Entry, error) {
	if a.status != "" {
		return nil, fmt.Errorf("account %s is %s: it cannot write", a.did, a.status)
	}
	e := m.beginEvent(at)
	e.Kind, e.DID, e.Operation, e.Collection = "commit", a.did, "create", collection
	e.Rkey, e.Rev = m.tid(m.now), m.tid(m.now)
	e.Record, e.CreatedAt = m.marshal(value), at.Truncate(time.Millisecond)
	e.CID = cidOfBlock(recordBlock(e.Record)).String()
	return e, nil
}

// erase deletes a record by hand.
func (m *model) erase(did, collection, rkey string) {
	e := m.beginEvent(m.clock())
	e.Kind, e.DID, e.Operation, e.Collection, e.Rkey, e.Rev = "commit", did, "delete", collection, rkey, m.tid(m.now)
}

// postOf drafts a post with link facets.
func (m *model) postOf(text string, links []string, at time.Time) *bsky.FeedPost {
	p := m.text(at, text)
	for _, uri := range links {
		m.link(p, uri)
	}
	return p
}

// spelled returns the claims of a post that contains links without a card.
func spelled(links []string) []Claim {
	claims := make([]Claim, len(links))
	for i, uri := range links {
		claims[i].URL = uri
	}
	return claims
}

// PostNow makes an account post now, and returns the entry. The links are
// canonical URLs. Random events neither edit nor delete the post.
func (n *Net) PostNow(did, text string, links ...string) (*Entry, error) {
	var e *Entry
	err := n.act(did, func(m *model, a *person) (err error) {
		now := m.clock()
		if e, err = m.commit(a, post, m.postOf(text, links, now), now); err == nil {
			e.Links, e.Claims = slices.Clone(links), spelled(links)
		}
		return err
	})
	return e, err
}

// PutRecord writes a new or replaced record of any collection, and returns the
// entry. Without an rkey the record gets a TID.
func (n *Net) PutRecord(did, collection, rkey string, record json.RawMessage) (*Entry, error) {
	if !collectionName.MatchString(collection) {
		return nil, fmt.Errorf("%q is not a collection", collection)
	}
	var e *Entry
	err := n.act(did, func(m *model, a *person) (err error) {
		ix := n.indexNow()
		_, known := searchRkey(ix.collection(ix.byDID[did], collection), rkey)
		ix.mu.Unlock()
		if e, err = m.commit(a, collection, record, m.clock()); err != nil || rkey == "" {
			return err
		}
		if e.Rkey = rkey; known {
			e.Operation = "update"
		}
		return nil
	})
	return e, err
}

// EditPost replaces the text and the links of a post.
func (n *Net) EditPost(uri, text string, links ...string) (*Entry, error) {
	var e *Entry
	err := n.alter(uri, func(m *model, a *person, r *record) (err error) {
		if r.collection != post {
			return fmt.Errorf("edit %s: it is not a post", uri)
		}
		now := m.clock()
		if e, err = m.commit(a, r.collection, m.postOf(text, links, now), now); err == nil {
			e.Operation, e.Rkey = "update", r.rkey
			e.Links, e.Claims = slices.Clone(links), spelled(links)
		}
		return err
	})
	return e, err
}

// DeleteRecord deletes the record of a URI.
func (n *Net) DeleteRecord(uri string) error {
	return n.alter(uri, func(m *model, _ *person, r *record) error {
		m.erase(r.owner.did, r.collection, r.rkey)
		return nil
	})
}

// RepostNow makes an account repost a post, and returns the entry.
func (n *Net) RepostNow(did, uri string) (*Entry, error) {
	subject, err := n.reference(uri)
	if err != nil {
		return nil, err
	}
	var e *Entry
	err = n.act(did, func(m *model, a *person) (err error) {
		now := m.clock()
		e, err = m.commit(a, repost, &bsky.FeedRepost{LexiconTypeID: repost, CreatedAt: stamped(now.UnixMicro()), Subject: subject}, now)
		return err
	})
	return e, err
}

// QuoteNow makes an account quote a post, and returns the entry. links are the links
// that the new post itself contains.
func (n *Net) QuoteNow(did, uri, text string, links ...string) (*Entry, error) {
	subject, err := n.reference(uri)
	if err != nil {
		return nil, err
	}
	var e *Entry
	err = n.act(did, func(m *model, a *person) (err error) {
		now := m.clock()
		quote := m.postOf(text, links, now)
		quote.Embed = &bsky.FeedPost_Embed{EmbedRecord: &bsky.EmbedRecord{LexiconTypeID: "app.bsky.embed.record", Record: subject}}
		if e, err = m.commit(a, post, quote, now); err == nil {
			e.Links, e.Claims = slices.Clone(links), spelled(links)
		}
		return err
	})
	return e, err
}

// Pin makes the author of a post pin it, replacing the pinned post.
func (n *Net) Pin(uri string) error {
	pinned, err := n.reference(uri)
	if err != nil {
		return err
	}
	return n.alter(uri, func(m *model, a *person, r *record) error {
		if r.collection != post {
			return fmt.Errorf("pin %s: it is not a post", uri)
		}
		now := m.clock()
		created := stamped(now.UnixMicro())
		e, err := m.commit(a, profile,
			&bsky.ActorProfile{LexiconTypeID: profile, CreatedAt: &created, DisplayName: displayName(r.owner), PinnedPost: pinned}, now)
		if err == nil {
			e.Operation, e.Rkey = "update", "self"
		}
		return err
	})
}

func displayName(p *member) *string {
	name := p.profile().DisplayName
	return &name
}

// profileRecord holds the fields of a profile that the index needs.
type profileRecord struct {
	DisplayName string `json:"displayName"`
	Description string `json:"description"`
	PinnedPost  struct {
		URI string `json:"uri"`
		CID string `json:"cid"`
	} `json:"pinnedPost"`
	Labels struct {
		Values []struct {
			Val string `json:"val"`
		} `json:"values"`
	} `json:"labels"`
}

// profile returns the account's profile record. If there is none, it returns a name
// derived from the handle.
func (p *member) profile() (v profileRecord) {
	all := p.repo[profile]
	if i, known := searchRkey(all, "self"); known {
		json.Unmarshal(all[i].raw, &v) // a profile without a name has none
		return v
	}
	name, _, _ := strings.Cut(p.handle, ".")
	v.DisplayName = strings.ReplaceAll(name, "-", " ")
	return v
}

func (n *Net) reference(uri string) (*comatproto.RepoStrongRef, error) {
	ix := n.indexNow()
	defer ix.mu.Unlock()
	r := ix.find(uri)
	if r == nil {
		return nil, fmt.Errorf("there is no record %s", uri)
	}
	return &comatproto.RepoStrongRef{Uri: r.uri(), Cid: r.contentID()}, nil
}

// alter performs an action on an existing record.
func (n *Net) alter(uri string, do func(m *model, a *person, r *record) error) error {
	owner, _, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	return n.act(owner, func(m *model, a *person) error {
		ix := n.indexNow()
		defer ix.mu.Unlock()
		r := ix.find(uri)
		if r == nil {
			return fmt.Errorf("there is no record %s", uri)
		}
		return do(m, a, r)
	})
}
