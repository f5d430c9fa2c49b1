package simnet

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"
)

// index is the current state of every repository, derived from the log. It is
// updated on read, so that it costs nothing without XRPC calls.
type index struct {
	mu      sync.Mutex
	at      int // position in the log of the next item
	order   []*member
	byDID   map[string]*member
	handles map[string]*member
	lists   map[string][]*record // the items of a list, by its URI, oldest first
	seeds   seeds
}

// member is an account and its repository.
type member struct {
	did, handle string
	number      int // in the order of creation
	role        role
	status      string
	rev         string
	rotation    int                  // of its key
	repo        map[string][]*record // by collection; ascending by rkey
	feed        []*record            // posts and reposts, oldest first
	seeded      bool                 // the follows from before the log are in the repo
	following   map[string]int       // number of follow records per account
}

// record is the current revision of a record.
type record struct {
	owner           *member
	collection      string
	rkey, cid       string
	at              int64 // time of creation, µs, unique; edits keep it
	raw             json.RawMessage
	subject         string // of a follow or list item: a DID; of a repost: a post
	list            string // of a list item
	replyTo, root   string // of a reply
	pictures, again bool   // a post with pictures; a second follow of the same account
}

func (r *record) uri() string { return "at://" + r.owner.did + "/" + r.collection + "/" + r.rkey }

// value returns the record as JSON. Follows from before the log get theirs here.
func (r *record) value() json.RawMessage {
	if r.raw == nil {
		raw, _ := json.Marshal(map[string]string{"$type": follow, "subject": r.subject, "createdAt": stamped(r.at)}) // strings marshal
		return raw
	}
	return r.raw
}

func (r *record) contentID() string {
	if r.cid == "" {
		return cidFor(r.uri())
	}
	return r.cid
}

// stamped formats a time as the lexicons do.
func stamped(us int64) string { return time.UnixMicro(us).UTC().Format("2006-01-02T15:04:05.000Z") }

func (p *member) account() Account { return Account{DID: p.did, Handle: p.handle, Status: p.status} }

func newIndex(s seeds) *index {
	return &index{byDID: map[string]*member{}, handles: map[string]*member{}, lists: map[string][]*record{}, seeds: s}
}

// indexNow returns the current index, locked. The caller unlocks it.
func (n *Net) indexNow() *index {
	n.advance(n.index)
	return n.index
}

// advance applies the rest of the log to an index, and leaves it locked.
func (n *Net) advance(ix *index) {
	ix.mu.Lock()
	items, _ := n.log.from(ix.at)
	for _, b := range n.model.births.from(len(ix.order)) { // read after the log, so that every account in the log exists
		p := &member{did: b.did, handle: b.handle, number: len(ix.order), role: b.role, repo: map[string][]*record{}, following: map[string]int{}}
		ix.order = append(ix.order, p)
		ix.byDID[p.did], ix.handles[p.handle] = p, p
	}
	for _, it := range items {
		if it.entry != nil {
			ix.apply(it.entry)
		}
	}
	ix.at += len(items)
}

// actor returns the account of a DID or handle, including deleted ones; nil if
// there is none.
func (ix *index) actor(name string) *member {
	if strings.HasPrefix(name, "did:") {
		return ix.byDID[name]
	}
	return ix.handles[strings.ToLower(strings.TrimPrefix(name, "@"))]
}

func (ix *index) apply(e *Entry) {
	p := ix.byDID[e.DID]
	if p == nil || e.Resynced {
		return
	}
	switch e.Kind {
	case "identity":
		delete(ix.handles, p.handle)
		p.handle = e.Handle
		p.rotation = max(p.rotation, e.Rotation)
		ix.handles[p.handle] = p
	case "account":
		p.status = e.Status
		if p.status == "deleted" {
			delete(ix.handles, p.handle)
			for _, r := range p.repo[listItem] {
				ix.unlist(r)
			}
			p.repo, p.feed, p.seeded, p.following = map[string][]*record{}, nil, true, map[string]int{}
		}
	case syncKind:
		p.rev = e.Rev
	case "commit":
		p.rev = e.Rev
		if e.Operation == "delete" {
			ix.remove(p, e.Collection, e.Rkey)
		} else {
			ix.put(p, e)
		}
	}
}

func searchRkey(all []*record, rkey string) (int, bool) {
	return slices.BinarySearchFunc(all, rkey, func(r *record, rkey string) int { return strings.Compare(r.rkey, rkey) })
}

func searchTime(all []*record, at int64) (int, bool) {
	return slices.BinarySearchFunc(all, at, func(r *record, at int64) int {
		switch {
		case r.at < at:
			return -1
		case r.at > at:
			return 1
		}
		return 0
	})
}

// put stores a created or edited record.
func (ix *index) put(p *member, e *Entry) {
	all := ix.collection(p, e.Collection)
	i, known := searchRkey(all, e.Rkey)
	if known {
		all[i].raw, all[i].cid = e.Record, e.CID
		all[i].read()
		return
	}
	r := &record{owner: p, collection: e.Collection, rkey: e.Rkey, cid: e.CID, at: e.UniqueUS, raw: e.Record}
	r.read()
	switch r.collection {
	case post, repost:
		p.feed = append(p.feed, r)
	case follow:
		r.again = p.following[r.subject] > 0
		p.following[r.subject]++
	case listItem:
		ix.lists[r.list] = append(ix.lists[r.list], r)
	}
	p.repo[e.Collection] = slices.Insert(all, i, r)
}

// read sets the fields that the index needs from the JSON.
func (r *record) read() {
	switch r.collection {
	case follow, listItem:
		var v struct{ Subject, List string }
		json.Unmarshal(r.raw, &v) // a record without a subject has none
		r.subject, r.list = v.Subject, v.List
	case repost:
		var v struct{ Subject struct{ URI string } }
		json.Unmarshal(r.raw, &v) // as above
		r.subject = v.Subject.URI
	case post:
		var v struct {
			Reply struct{ Parent, Root struct{ URI string } }
			Embed struct {
				Images []json.RawMessage
			}
		}
		json.Unmarshal(r.raw, &v) // as above
		r.replyTo, r.root, r.pictures = v.Reply.Parent.URI, v.Reply.Root.URI, len(v.Embed.Images) > 0
	}
}

func (ix *index) remove(p *member, collection, rkey string) {
	all := ix.collection(p, collection)
	i, known := searchRkey(all, rkey)
	if !known {
		return
	}
	r := all[i]
	p.repo[collection] = slices.Delete(all, i, i+1)
	switch collection {
	case post, repost:
		if i, ok := searchTime(p.feed, r.at); ok {
			p.feed = slices.Delete(p.feed, i, i+1)
		}
	case follow:
		p.following[r.subject]--
		if p.following[r.subject] > 0 && !r.again { // the next record of the same follow replaces it
			next := slices.IndexFunc(p.repo[follow], func(other *record) bool { return other.subject == r.subject })
			p.repo[follow][next].again = false
		}
	case listItem:
		ix.unlist(r)
	}
}

func (ix *index) unlist(r *record) {
	ix.lists[r.list] = slices.DeleteFunc(ix.lists[r.list], func(other *record) bool { return other == r })
}

// collection returns the records of a collection, by rkey.
func (ix *index) collection(p *member, name string) []*record {
	if name == follow && !p.seeded {
		p.seeded = true
		p.repo[follow] = ix.seeds.follows(ix, p)
		for _, r := range p.repo[follow] {
			p.following[r.subject]++
		}
	}
	return p.repo[name]
}

// find returns the record of a URI if its account is active; nil if there is
// none.
func (ix *index) find(uri string) *record {
	authority, rest, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	collection, rkey, _ := strings.Cut(rest, "/")
	p := ix.actor(authority)
	if p == nil || p.status != "" {
		return nil
	}
	all := ix.collection(p, collection)
	i, known := searchRkey(all, rkey)
	if !known {
		return nil
	}
	return all[i]
}
