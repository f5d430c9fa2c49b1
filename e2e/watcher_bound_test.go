package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// committed are the events that the database had certainly committed before a request was sent. The
// zero value contains none: then every account that ever shared a link may count.
type committed struct {
	round
	members map[string]bool        // the only accounts that may count; nil: all may
	steady  map[string]bool        // if only some accounts' deletions are on the stream: these accounts
	since   int64                  // the stream has their deletions after the event with this number
	until   int64                  // the number of the last event
	lost    map[*simnet.Entry]bool // events that the server forgot unread
	doubted []string               // accounts with events that were ever refused
}

func (m committed) has(e *simnet.Entry) bool {
	if m.follows && (!m.steady[e.DID] || m.number(e) <= m.since) {
		return false
	}
	return m.number(e) <= m.until && !m.lost[e] && !slices.Contains(m.doubted, e.DID)
}

// hides reports whether an event that hides an account had certainly taken effect. For followed
// accounts that is never certain: with a clock an hour ahead, a listing that is older than the
// event shows them until the next listing.
func (m committed) hides(e *simnet.Entry) bool { return !m.follows && m.has(e) }

// never reports whether an event takes no effect: the server forgot it unread, and nothing restores
// it. A relay's accounts may be compared with their repositories, and the feeds of followed
// accounts are read.
func (m committed) never(e *simnet.Entry) bool { return m.lost[e] && !m.relay && !m.follows }

// following selects the followed accounts: the account, the watch and the date of each. An account
// that leaves and returns has another date.
const following = `SELECT w.did || ' ' || w.watch_id || ' ' || extract(epoch FROM w.added_at) AS following FROM watch_members AS w`

// committed reads how far the stream is committed, without the proxy. It returns the zero value
// while Postgres is down. In rounds of followed accounts it also reads which accounts are followed:
// the stream has only their deletions.
func (c *chaos) committed(ctx context.Context) committed {
	m := committed{round: c.round}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	const sql = `
WITH following AS (` + following + `)
SELECT coalesce((SELECT min(coalesce((anchor ->> 'seq')::bigint, 0)) FROM streams), 0),
       ARRAY(SELECT did FROM dead_letters WHERE did IS NOT NULL UNION SELECT did FROM resyncs),
       ARRAY(SELECT following FROM following)`
	var followed []string
	if err := c.pool.QueryRow(ctx, sql).Scan(&m.until, &m.doubted, &followed); err != nil {
		return committed{}
	}
	m.until = c.unshifted(m.until) - renumbering // the position may be older than the last renumbering
	c.mu.Lock()
	defer c.mu.Unlock()
	m.lost = maps.Clone(c.lost)
	if c.follows {
		m.since, m.members, m.steady = c.since, map[string]bool{}, map[string]bool{}
		for _, f := range followed {
			did, _, _ := strings.Cut(f, " ")
			m.members[did] = true
			if c.steady[f] {
				m.steady[did] = true
			}
		}
		maps.DeleteFunc(c.steady, func(f string, _ bool) bool { return !slices.Contains(followed, f) })
	}
	return m
}

// rememberFollowed records which accounts are followed now, and that their feeds have been read.
// Some of them share one link, and one deletes its post: the watcher must not see that post
// counted.
func (c *chaos) rememberFollowed() {
	c.t.Helper()
	const sql = following + ` JOIN accounts AS a USING (did) WHERE a.feed_read_at IS NOT NULL`
	all, err := schema.All(context.Background(), c.pool, "read who is followed", pgx.RowTo[string], sql)
	require.NoError(c.t, err)
	steady := map[string]bool{}
	for _, f := range all {
		steady[f] = true
	}
	c.mu.Lock()
	c.steady, c.since = steady, c.number(c.net.Log().Last())
	c.mu.Unlock()
	var last *simnet.Entry
	for _, did := range c.scripted {
		last, err = c.net.PostNow(did, "soon one fewer", "https://forgotten.example/one-fewer")
		require.NoError(c.t, err)
	}
	require.NoError(c.t, c.net.DeleteRecord(uriOf(last)))
}

// members returns the accounts that are followed now; nil while Postgres is down.
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

// joined adds the accounts that are followed after the response: one may have been followed
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

// history is a log, indexed to find who shares a link.
type history struct {
	seen     int                              // number of entries
	records  map[recordKey][]revision         // of each post and repost, deletions included
	statuses map[string][]*simnet.Entry       // of each account
	posts    map[string]map[recordKey]bool    // posts that ever contained each URL
	through  map[recordKey]map[recordKey]bool // records that ever reposted or quoted each post
}

func newHistory() *history {
	return &history{records: map[recordKey][]revision{}, statuses: map[string][]*simnet.Entry{},
		posts: map[string]map[recordKey]bool{}, through: map[recordKey]map[recordKey]bool{}}
}

// learn adds the entries since the last call.
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

// shown reports whether an account may be visible: it was visible, or became so later.
func (h *history) shown(did string, after committed) bool {
	for _, e := range slices.Backward(h.statuses[did]) {
		switch {
		case after.never(e):
		case e.Active:
			return true
		case after.hides(e):
			return false
		}
	}
	return true
}

// stored reports whether a record may be stored with a revision for which such returns true. A
// deletion takes effect in the commit that contains it. An edit takes effect later, in a job, so
// every revision since the deletion may count.
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

// sharers returns the accounts that may count for any of the URLs in a response. They share one in
// the state that was committed before the request, or in a later state. If before has members, they
// must be among them. The log must be learned after the response.
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
