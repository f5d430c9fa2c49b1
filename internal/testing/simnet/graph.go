package simnet

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/bluesky-social/indigo/api/bsky"
)

// Collections of the graph besides follows.
const (
	list        = "app.bsky.graph.list"
	listItem    = "app.bsky.graph.listitem"
	starterPack = "app.bsky.graph.starterpack"
)

// seeds is the follow graph from before the log. The follows of an account
// depend only on the seed and its DID, so they are generated on the first read.
type seeds struct {
	seed    uint64
	writers int       // the first accounts, which are followed
	hub     int       // number of writers that the hub follows
	before  time.Time // the graph is older than this
}

// cidFor derives a content identifier from a name.
func cidFor(name string) string {
	sum := sha256.Sum256([]byte(name))
	raw := append([]byte{1, dagCBOR, 0x12, 0x20}, sum[:]...)
	return "b" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(raw))
}

// populate creates the hub.
func (s seeds) populate(m *model) (hub string) {
	rng := rand.New(rand.NewPCG(s.seed, 0x68756273))
	return m.register(newDID(rng), "hub.example", reader).did
}

// follows returns an account's follow records from before the log, by rkey.
func (s seeds) follows(ix *index, p *member) []*record {
	h := fnv.New64a()
	h.Write([]byte(p.did)) // never fails
	rng := rand.New(rand.NewPCG(s.seed, h.Sum64()))
	var targets []int
	if p.role == reader {
		targets = s.popular(rng, p, s.hub)
	} else { // long tail: few follow hundreds, most a handful
		tail := 8 * math.Pow(1-rng.Float64(), -0.9)
		targets = s.popular(rng, p, min(int(tail), 800, s.writers/2))
	}
	const year = 365 * 24 * time.Hour
	records := make([]*record, len(targets))
	began := s.before.Add(-year).UnixMicro()
	for i, target := range targets {
		at := began + int64(i)*(year.Microseconds()/int64(len(targets)+1))
		records[i] = &record{owner: p, collection: follow, rkey: tidOf(at), at: at, subject: ix.order[target].did}
	}
	return records
}

// popular draws distinct accounts, early ones more often: they write the most.
func (s seeds) popular(rng *rand.Rand, p *member, count int) []int {
	if count > s.writers/2 {
		all := rng.Perm(s.writers)
		return all[:min(count, len(all))]
	}
	drawn := map[int]bool{p.number: true}
	targets := make([]int, 0, count)
	for len(targets) < count {
		u := rng.Float64()
		i := int(float64(s.writers) * u * u)
		if !drawn[i] {
			drawn[i] = true
			targets = append(targets, i)
		}
	}
	return targets
}

// Hub returns the account that follows Config.Follows accounts, including the most
// active ones. It writes only when a test makes it. Only tests hide it.
func (n *Net) Hub() Account {
	a, _ := n.Account(n.hub)
	return a
}

// Follows returns the DIDs that an account follows now, latest first, including
// hidden ones.
func (n *Net) Follows(did string) (dids []string) {
	ix := n.indexNow()
	defer ix.mu.Unlock()
	p := ix.byDID[did]
	if p == nil {
		return nil
	}
	all := ix.collection(p, follow)
	for i := len(all) - 1; i >= 0; i-- {
		if !all[i].again {
			dids = append(dids, all[i].subject)
		}
	}
	return dids
}

// Follow makes an account follow others, with one event each.
func (n *Net) Follow(did string, others ...string) error {
	return n.act(did, func(m *model, a *person) error {
		for _, other := range others {
			if m.people[other] == nil {
				return fmt.Errorf("no account has the DID %q", other)
			}
		}
		now := m.clock()
		for _, other := range others {
			if _, err := m.commit(a, follow, &bsky.GraphFollow{LexiconTypeID: follow, CreatedAt: stamped(now.UnixMicro()), Subject: other},
				now); err != nil {
				return err
			}
		}
		return nil
	})
}

// Unfollow deletes an account's follow records of others, with one event per
// record. It returns an error if there is none.
func (n *Net) Unfollow(did string, others ...string) error {
	return n.act(did, func(m *model, a *person) error {
		if a.status != "" {
			return fmt.Errorf("account %s is %s: it cannot write", did, a.status)
		}
		leaving := map[string]bool{}
		for _, other := range others {
			leaving[other] = true
		}
		found := map[string]bool{}
		ix := n.indexNow()
		defer ix.mu.Unlock()
		for _, r := range ix.collection(ix.byDID[did], follow) {
			if leaving[r.subject] {
				found[r.subject] = true
				m.erase(did, follow, r.rkey)
			}
		}
		if len(found) < len(leaving) {
			return fmt.Errorf("%s follows only %d of the %d accounts", did, len(found), len(leaving))
		}
		return nil
	})
}

// MakeList creates a list of accounts, with an event for it and one per member,
// and returns its at:// URI.
func (n *Net) MakeList(owner string, dids ...string) (uri string, err error) {
	err = n.act(owner, func(m *model, a *person) error {
		uri, err = m.makeList(a, "app.bsky.graph.defs#curatelist", "People worth reading", dids)
		return err
	})
	return uri, err
}

func (m *model) makeList(a *person, purpose, name string, dids []string) (string, error) {
	now := m.clock()
	e, err := m.commit(a, list, &bsky.GraphList{LexiconTypeID: list, CreatedAt: stamped(now.UnixMicro()), Name: name, Purpose: &purpose}, now)
	if err != nil {
		return "", err
	}
	uri := e.uri()
	return uri, m.addToList(a, uri, dids)
}

// AddToList adds accounts to a list.
func (n *Net) AddToList(uri string, dids ...string) error {
	owner, _, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	return n.act(owner, func(m *model, a *person) error { return m.addToList(a, uri, dids) })
}

func (m *model) addToList(a *person, uri string, dids []string) error {
	now := m.clock()
	for _, did := range dids {
		if _, err := m.commit(a, listItem,
			&bsky.GraphListitem{LexiconTypeID: listItem, CreatedAt: stamped(now.UnixMicro()), List: uri, Subject: did}, now); err != nil {
			return err
		}
	}
	return nil
}

// RemoveFromList removes accounts from a list.
func (n *Net) RemoveFromList(uri string, dids ...string) error {
	owner, _, _ := strings.Cut(strings.TrimPrefix(uri, "at://"), "/")
	return n.act(owner, func(m *model, _ *person) error {
		ix := n.indexNow()
		defer ix.mu.Unlock()
		leaving := map[string]bool{}
		for _, did := range dids {
			leaving[did] = true
		}
		removed := false
		for _, r := range ix.lists[uri] {
			if leaving[r.subject] {
				m.erase(owner, listItem, r.rkey)
				removed = true
			}
		}
		if !removed {
			return errors.New("none of the accounts is in the list " + uri)
		}
		return nil
	})
}

// MakeStarterPack creates a starter pack and its list, and returns the pack's
// at:// URI.
func (n *Net) MakeStarterPack(owner, name string, dids ...string) (uri string, err error) {
	err = n.act(owner, func(m *model, a *person) error {
		members, err := m.makeList(a, "app.bsky.graph.defs#referencelist", name, dids)
		if err != nil {
			return err
		}
		now := m.clock()
		e, err := m.commit(a, starterPack,
			&bsky.GraphStarterpack{LexiconTypeID: starterPack, CreatedAt: stamped(now.UnixMicro()), List: members, Name: name}, now)
		if err == nil {
			uri = e.uri()
		}
		return err
	})
	return uri, err
}
