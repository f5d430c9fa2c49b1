package e2e

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-social/weir/simnet"
)

// committed are the events that the database had certainly committed before a request was
// sent. The zero value is none: then everyone may count who ever shared a link.
type committed struct {
	round
	members map[string]bool        // accounts of which some may count; nil: of all
	until   int64                  // the number of the last event
	lost    map[*simnet.Entry]bool // events that the server forgot unread
	doubted []string               // accounts of which something up to it was ever refused
}

func (m committed) has(e *simnet.Entry) bool {
	return m.number(e) <= m.until && !m.lost[e] && !slices.Contains(m.doubted, e.DID)
}

// never reports whether an event takes no effect: the server forgot it unread, and nobody
// compares its account with the repository, as may happen with what a relay sends.
func (m committed) never(e *simnet.Entry) bool { return m.lost[e] && !m.relay }

// committed reads how far the stream is committed, without the proxy. It returns none while
// Postgres is away. In rounds of followed accounts it returns no events, for their stream does
// not bring what others delete, but who is followed.
func (c *chaos) committed(ctx context.Context) committed {
	m := committed{round: c.round}
	if c.follows {
		m.members = c.members(ctx)
		return m
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const sql = `
SELECT coalesce((anchor ->> 'seq')::bigint, 0), ARRAY(SELECT did FROM dead_letters WHERE did IS NOT NULL UNION SELECT did FROM resyncs)
FROM streams`
	if err := c.pool.QueryRow(ctx, sql).Scan(&m.until, &m.doubted); err != nil {
		return committed{}
	}
	m.until = c.unshifted(m.until) - renumbering // the position may be older than the last renumbering
	c.mu.Lock()
	defer c.mu.Unlock()
	m.lost = maps.Clone(c.lost)
	return m
}

// members are the accounts that are followed now; nil while Postgres is away.
func (c *chaos) members(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var dids []string
	if c.pool.QueryRow(ctx, `SELECT ARRAY(SELECT did FROM watch_members)`).Scan(&dids) != nil {
		return nil
	}
	all := make(map[string]bool, len(dids))
	for _, did := range dids {
		all[did] = true
	}
	return all
}

// joined adds who is followed after the response: an account may have been followed
// meanwhile.
func (m committed) joined(after map[string]bool) committed {
	if m.members == nil || after == nil {
		m.members = nil
		return m
	}
	maps.Copy(m.members, after)
	return m
}

// revision is an event of a post or a repost, with the post that it refers to.
type revision struct {
	*simnet.Entry
	subject recordKey
}

// history is a log by what decides who shares a link.
type history struct {
	seen     int                              // number of entries
	records  map[recordKey][]revision         // of each post and repost, deletions included
	statuses map[string][]*simnet.Entry       // of each account
	posts    map[string]map[recordKey]bool    // those that ever contained each URL
	through  map[recordKey]map[recordKey]bool // those that ever reposted or quoted each post
}

func newHistory() *history {
	return &history{records: map[recordKey][]revision{}, statuses: map[string][]*simnet.Entry{},
		posts: map[string]map[recordKey]bool{}, through: map[recordKey]map[recordKey]bool{}}
}

// learn adds the entries that have come since.
func (h *history) learn(all []*simnet.Entry) {
	for _, e := range all[h.seen:] {
		switch {
		case e.Kind == "account":
			h.statuses[e.DID] = append(h.statuses[e.DID], e)
		case e.Kind == "commit" && (e.Collection == "app.bsky.feed.post" || e.Collection == "app.bsky.feed.repost"):
			h.learnRecord(e)
		}
	}
	h.seen = len(all)
}

func (h *history) learnRecord(e *simnet.Entry) {
	key, r := recordKey{e.Collection, e.DID, e.Rkey}, revision{Entry: e}
	if e.Record != nil {
		if r.subject, _ = subjectOf(key, e.Record); r.subject != (recordKey{}) {
			add(h.through, r.subject, key)
		}
	}
	for _, url := range e.Links {
		add(h.posts, url, key)
	}
	h.records[key] = append(h.records[key], r)
}

func add[K comparable](all map[K]map[recordKey]bool, to K, key recordKey) {
	if all[to] == nil {
		all[to] = map[recordKey]bool{}
	}
	all[to][key] = true
}

// shown reports whether an account may be visible: it was, or became so later.
func (h *history) shown(did string, after committed) bool {
	for _, e := range slices.Backward(h.statuses[did]) {
		switch {
		case after.never(e):
		case e.Active:
			return true
		case after.has(e):
			return false
		}
	}
	return true
}

// stored reports whether a record may be stored with such a revision. A deletion takes
// effect in the commit that brings it. An edit takes effect later, by a job: so every
// revision since the deletion may count.
func (h *history) stored(key recordKey, after committed, such func(revision) bool) bool {
	for _, r := range slices.Backward(h.records[key]) {
		switch {
		case after.never(r.Entry):
		case r.Operation == "delete" && after.has(r.Entry):
			return false
		case such(r):
			return true
		}
	}
	return false
}

// sharers returns the accounts that may count for any of the URLs in a response to a
// request: those that share it in the state after what was committed before the request,
// or in a later one, and are followed if it says who is. The log must be learned after the response.
func (h *history) sharers(urls []string, before committed) map[string]bool {
	all := map[string]bool{}
	for _, url := range urls {
		for post := range h.posts[url] {
			if !h.shown(post.did, before) || !h.stored(post, before, func(r revision) bool { return slices.Contains(r.Links, url) }) {
				continue
			}
			all[post.did] = true
			for other := range h.through[post] {
				if h.shown(other.did, before) && h.stored(other, before, func(r revision) bool { return r.subject == post }) {
					all[other.did] = true
				}
			}
		}
	}
	if before.members != nil {
		maps.DeleteFunc(all, func(did string, _ bool) bool { return !before.members[did] })
	}
	return all
}
