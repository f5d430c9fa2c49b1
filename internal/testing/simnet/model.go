package simnet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/lex/util"
)

// Mix is the mix of the network's events.
type Mix int

const (
	// MixPosts is mostly posts: for a lively demo, and for benchmarks that store
	// every event.
	MixPosts Mix = iota
	// MixNetwork is the mix of the real network: two thirds likes, a tenth posts.
	MixNetwork
)

// share is the frequency of a kind of event, per thousand.
type share struct {
	what string
	of   int
}

// Events other than new records.
const (
	edit       = "edit"
	deletion   = "deletion"
	identity   = "identity"
	account    = "account"
	unlike     = "unlike"
	unrepost   = "unrepost"
	everything = 1000
)

func (m Mix) shares() []share {
	if m == MixNetwork {
		return []share{{post, 108}, {like, 680}, {repost, 95}, {follow, 50}, {block, 8}, {profile, 4}, {foreign, 4},
			{edit, 1}, {deletion, 8}, {unlike, 34}, {unrepost, 2}, {identity, 4}, {account, 2}}
	}
	return []share{{post, 870}, {like, 10}, {repost, 45}, {edit, 20}, {deletion, 40}, {unrepost, 5}, {identity, 6}, {account, 4}}
}

// person is an account of the network.
type person struct {
	did       string
	handle    string
	status    string    // "" while active
	name      int       // number of handle changes
	rotation  int       // number of key changes
	withheld  bool      // see Net.Withhold
	curtailed Curtailed // see Net.Curtail
	manual    bool      // its status was set by hand: random events do not change it
}

// reference names a record that can be edited, deleted or referred to.
type reference struct {
	account    *person
	collection string
	rkey       string
}

// story is a page that accounts share for a while.
type story struct {
	url, title, summary string
	picture             *util.LexBlob
	born                time.Time
	weight              float64
	life                time.Duration // half-life of the interest
}

// firstSeq is above 1 because renumbered servers count lower, and no server
// counts below 1.
const firstSeq = 100_001

// model generates events: the same seed gives the same events.
type model struct {
	rng      *rand.Rand
	mix      []share
	accounts []*person
	zipf     *rand.Zipf
	recent   []reference // posts, the latest few thousand
	likes    []reference
	reposts  []reference
	stories  []*story

	phrases
	clocks
	same   *Entry  // the event whose commit may get one more operation
	author *person // of that event

	people  map[string]*person // all accounts ever created, by DID
	births  *births
	pending []*Entry // events by hand, not in the log yet
}

// phrases are what accounts write about.
type phrases struct {
	sites            []site
	told             map[string]int // how many stories have a host and title
	topics           map[string]topic
	chatter, remarks []string
	first, last      []string // names
}

// clocks are the times and numbers of the events.
type clocks struct {
	now     time.Time     // of the last event
	later   time.Duration // how far all accounts' clocks are ahead of now
	ahead   time.Duration // of the server's clock
	latest  int64         // latest time that the server has sent, µs
	unique  int64         // the last unique time, µs
	lastTID int64
	seq     int64
}

func newModel(seed uint64, accounts int, mix Mix, start time.Time) *model {
	rng := rand.New(rand.NewPCG(seed, 0x77656972))
	m := &model{rng: rng, mix: mix.shares(), zipf: rand.NewZipf(rng, 1.15, 12, uint64(accounts-1)),
		phrases: phrases{told: map[string]int{}, sites: sites(), topics: topics(), chatter: chatter(), remarks: remarks(),
			first: firstNames(), last: lastNames()}, clocks: clocks{now: start, seq: firstSeq - 1},
		people: map[string]*person{}, births: &births{}}
	for range accounts {
		m.accounts = append(m.accounts, m.join())
	}
	for range 25 {
		m.publish(start.Add(-time.Duration(rng.IntN(6*3600)) * time.Second))
	}
	return m
}

// join creates a new writer.
func (m *model) join() *person {
	did := newDID(m.rng)
	handle := fmt.Sprintf("%s-%s-%d.example", pick(m.rng, m.first), pick(m.rng, m.last), len(m.people))
	return m.register(did, handle, writer)
}

// register adds an account.
func (m *model) register(did, handle string, r role) *person {
	a := &person{did: did, handle: handle}
	m.people[did] = a
	m.births.add(birth{did: did, handle: handle, role: r})
	return a
}

func newDID(rng *rand.Rand) string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	id := make([]byte, 24)
	for i := range id {
		id[i] = letters[rng.IntN(len(letters))]
	}
	return "did:plc:" + string(id)
}

// anyAccount draws an account from a long tail: few write much, most write
// little.
func (m *model) anyAccount() *person { return m.accounts[m.zipf.Uint64()] }

// active draws an account that may write.
func (m *model) active() *person {
	for {
		if a := m.anyAccount(); a.status == "" {
			return a
		}
	}
}

// publish adds a new story.
func (m *model) publish(at time.Time) {
	s := pick(m.rng, m.sites)
	t := m.topics[pick(m.rng, s.topics)]
	title := pick(m.rng, t.subjects) + " " + pick(m.rng, t.tails)
	for m.told[s.host+title] == 2 { // a title of three pages tells none of them apart
		title += ", again"
	}
	m.told[s.host+title]++
	st := &story{
		url:     fmt.Sprintf("https://%s/%s/%s-%d", s.host, at.UTC().Format("2006/01"), slug(title), m.rng.IntN(9000)+1000),
		title:   title,
		summary: pick(m.rng, t.summaries),
		picture: m.blob("image/jpeg"),
		born:    at,
		weight:  math.Pow(m.rng.Float64(), -0.7), // a long tail: a few stories are shared by many
		life:    time.Duration(1+m.rng.IntN(8)) * time.Hour,
	}
	m.stories = append(m.stories, st)
	if len(m.stories) > 60 {
		m.stories = slices.Delete(m.stories, 0, 1)
	}
}

// story draws a story that accounts share now.
func (m *model) story() *story {
	if m.rng.IntN(40) == 0 {
		m.publish(m.now)
	}
	total := 0.0
	weights := make([]float64, len(m.stories))
	for i, s := range m.stories {
		age := m.now.Sub(s.born)
		weights[i] = s.weight * math.Exp2(-float64(age)/float64(s.life))
		total += weights[i]
	}
	x := m.rng.Float64() * total
	for i, w := range weights {
		if x -= w; x <= 0 {
			return m.stories[i]
		}
	}
	return m.stories[len(m.stories)-1]
}

// variant returns the story's URL as copied from some source, and the same without
// the parts that do not identify the page.
func (m *model) variant(s *story) (uri, spelling string) {
	_, rest, _ := strings.Cut(s.url, "://")
	switch m.rng.IntN(12) {
	case 0:
		return s.url + "?utm_source=bluesky&utm_medium=social", s.url
	case 1:
		return s.url + "?fbclid=IwAR" + m.cidOf(rawData)[10:30], s.url
	case 2:
		return s.url + "#comments", s.url + "#comments"
	case 3, 4:
		uri = "https://www." + rest
	case 5:
		uri = "http://" + rest
	case 6:
		uri = s.url + "/"
	default:
		uri = s.url
	}
	return uri, uri
}

// tid returns a timestamp identifier: unique and ascending.
func (m *model) tid(at time.Time) string {
	us := max(at.UnixMicro(), m.lastTID+1)
	m.lastTID = us
	return tidOf(us)
}

// tidOf returns the timestamp identifier of a time in µs.
func tidOf(us int64) string {
	const alphabet = "234567abcdefghijklmnopqrstuvwxyz"
	v := uint64(us)<<10 | 7
	out := make([]byte, 13)
	for i := 12; i >= 0; i-- {
		out[i] = alphabet[v&31]
		v >>= 5
	}
	return string(out)
}

// next generates the event of a time, which must not lie before the last
// event's.
func (m *model) next(at time.Time) *Entry {
	e := m.stamp(at)
	at = m.now
	if m.same != nil && m.rng.IntN(10) == 0 {
		m.another(e)
		return e
	}
	m.same = nil
	n := m.rng.IntN(everything)
	what := post
	for _, s := range m.mix {
		if n -= s.of; n < 0 {
			what = s.what
			break
		}
	}
	m.fill(e, what, at)
	return e
}

// clock returns the time of the network's accounts, which is m.later ahead of the
// real time.
func (m *model) clock() time.Time { return time.Now().Add(m.later) }

// stamp begins the event of a time and sets m.now to that time.
func (m *model) stamp(at time.Time) *Entry {
	if at.Before(m.now) {
		at = m.now
	}
	m.now = at
	m.seq++
	m.latest = max(m.latest, at.Add(m.ahead).UnixMicro())
	m.unique = max(m.unique+1, m.latest)
	return &Entry{Seq: m.seq, TimeUS: m.latest, UniqueUS: m.unique, RelaySeq: 9_000_000 + m.seq}
}

// another adds an operation to the previous commit: a second record of the same
// kind, as in a thread or in many follows at once.
func (m *model) another(e *Entry) {
	at := time.UnixMicro(min(m.same.TimeUS, m.now.UnixMicro())) // the author's clock is right even if the server's is ahead
	e.TimeUS, e.Rev = m.same.TimeUS, m.same.Rev
	e.Kind, e.DID, e.Operation, e.Collection = "commit", m.same.DID, "create", m.same.Collection
	m.compose(e, at)
	e.Rkey = m.tid(at)
	m.remember(reference{m.author, e.Collection, e.Rkey})
	m.same = nil
}

func (m *model) fill(e *Entry, what string, at time.Time) {
	switch what {
	case identity:
		m.rename(e)
	case account:
		m.changeStatus(e)
	case edit:
		m.rewrite(e, at)
	case deletion:
		m.remove(e, &m.recent, post, at)
	case unlike:
		m.remove(e, &m.likes, like, at)
	case unrepost:
		m.remove(e, &m.reposts, repost, at)
	default:
		m.write(e, what, at)
	}
}

func (m *model) write(e *Entry, collection string, at time.Time) {
	a := m.active()
	e.Kind, e.DID, e.Operation, e.Collection = "commit", a.did, "create", collection
	m.compose(e, at)
	e.Rkey = m.tid(at)
	if collection == profile {
		e.Rkey, e.Operation = "self", "update"
	}
	e.Rev = m.tid(at)
	m.remember(reference{a, collection, e.Rkey})
	if collection != profile {
		m.same, m.author = e, a
	}
}

// remember keeps a record that may be edited, deleted or referred to later.
func (m *model) remember(r reference) {
	switch r.collection {
	case post:
		m.recent = keep(m.recent, r)
	case like:
		m.likes = keep(m.likes, r)
	case repost:
		m.reposts = keep(m.reposts, r)
	}
}

// compose writes the record of an event.
func (m *model) compose(e *Entry, at time.Time) {
	e.CreatedAt = at.Add(-time.Duration(m.rng.IntN(2000)) * time.Millisecond).Truncate(time.Millisecond)
	if e.Collection == post {
		d := m.writePost(e.CreatedAt)
		e.Record, e.Links, e.Claims = m.marshal(d.record), d.links, d.claims
	} else {
		e.Record = m.marshal(m.writeOther(e.Collection, e.CreatedAt))
	}
	e.CID = cidOfBlock(recordBlock(e.Record)).String()
}

func keep(all []reference, r reference) []reference {
	if len(all) >= 4000 {
		all = slices.Delete(all, 0, 1000)
	}
	return append(all, r)
}

// take returns a reference whose account may write, and removes it on demand; ok
// is false if there is none.
func (m *model) take(all *[]reference, remove bool) (r reference, ok bool) {
	for range 20 {
		if len(*all) == 0 {
			break
		}
		i := m.rng.IntN(len(*all))
		if r = (*all)[i]; r.account.status != "" {
			continue
		}
		if remove {
			*all = slices.Delete(*all, i, i+1)
		}
		return r, true
	}
	return reference{}, false
}

func (m *model) rewrite(e *Entry, at time.Time) {
	r, ok := m.take(&m.recent, false)
	if !ok {
		m.write(e, post, at)
		return
	}
	e.Kind, e.DID, e.Operation, e.Collection, e.Rkey = "commit", r.account.did, "update", post, r.rkey
	m.compose(e, at)
	e.Rev = m.tid(at)
}

func (m *model) remove(e *Entry, all *[]reference, collection string, at time.Time) {
	r, ok := m.take(all, true)
	if !ok {
		m.write(e, collection, at)
		return
	}
	e.Kind, e.DID, e.Operation, e.Collection, e.Rkey, e.Rev = "commit", r.account.did, "delete", r.collection, r.rkey, m.tid(at)
}

func (m *model) rename(e *Entry) {
	a := m.active()
	a.name++
	name, domain, _ := strings.Cut(a.handle, ".")
	a.handle = fmt.Sprintf("%s-v%d.%s", strings.TrimSuffix(name, fmt.Sprintf("-v%d", a.name)), a.name+1, domain)
	e.Kind, e.DID, e.Handle = "identity", a.did, a.handle
}
