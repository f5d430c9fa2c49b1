package simnet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Article is a page that people share.
type Article struct{ URL, Title string }

// Articles returns the articles that the accounts share now, the latest last.
func (n *Net) Articles() (all []Article) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.model.stories {
		all = append(all, Article{s.url, s.title})
	}
	return all
}

// Populate makes the authors write as people do: first their names, then some events over
// a period that ends at the network's current time. The events are notes with and without
// articles, reposts and deletions. The same seed, clock and articles give the same
// events. Every relay gets all of them.
func (n *Nostr) Populate(events int, over time.Duration, articles []Article) {
	n.mu.Lock()
	defer n.mu.Unlock()
	until := n.now
	began := until - int64(over.Seconds())
	for i, a := range n.authors {
		n.everywhere(n.sign(a, began, 0, [][]string{}, nostrProfile(n.cfg.Seed, i)))
	}
	for i := range events {
		n.everywhere(n.speak(began+int64(i+1)*(until-began)/int64(events), articles))
	}
}

// Speak makes the authors write events now, at a rate per second, until the context ends.
// articles returns the articles that they may share.
func (n *Nostr) Speak(ctx context.Context, rate float64, articles func() []Article) {
	ticker := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			shared := articles()
			n.mu.Lock()
			n.everywhere(n.speak(now.Unix(), shared))
			n.mu.Unlock()
		}
	}
}

// everywhere stores an event on every relay.
func (n *Nostr) everywhere(e *NostrEvent) {
	n.written = append(n.written, e)
	for _, r := range n.relays {
		r.store(e)
	}
}

// speak makes one event of a person.
func (n *Nostr) speak(at int64, articles []Article) *NostrEvent {
	a := n.authors[min(n.random.IntN(len(n.authors)), n.random.IntN(len(n.authors)))] // some write more than others
	switch k := n.random.IntN(100); {
	case k < 5 && len(a.notes) > 1:
		gone := a.notes[0]
		a.notes = slices.Delete(a.notes, 0, 1)
		return n.sign(a, at, 5, [][]string{{"e", gone.ID}, {"k", "1"}}, "")
	case k < 20:
		if other := n.authors[n.random.IntN(len(n.authors))]; len(other.notes) > 0 {
			of := other.notes[len(other.notes)-1]
			return n.sign(a, at, 6, [][]string{{"e", of.ID, ""}, {"p", of.Author}}, of.text)
		}
	case k < 40:
		return n.note(a, at, pick(n.random, chatter()))
	}
	shared := n.article(at, articles)
	return n.note(a, at, pick(n.random, remarks())+" "+shared.URL)
}

// note makes a note, and keeps it for later reposts and deletions by its author.
func (n *Nostr) note(a *nostrAuthor, at int64, text string) *NostrEvent {
	const remembered = 20
	e := n.sign(a, at, 1, [][]string{}, strings.TrimSpace(text))
	if a.notes = append(a.notes, e); len(a.notes) > remembered {
		a.notes = slices.Delete(a.notes, 0, 1)
	}
	return e
}

// article chooses an article that others share, usually a recent one, or one of the
// network's own.
func (n *Nostr) article(at int64, others []Article) Article {
	if len(others) > 0 && n.random.IntN(3) > 0 {
		return others[len(others)-1-min(n.random.IntN(len(others)), n.random.IntN(len(others)), n.random.IntN(len(others)))]
	}
	const lifetime = 3 * 3600 // a few articles of each period, so that several people share the same one
	s := sites()[at/lifetime%int64(len(sites()))]
	t := topics()[s.topics[0]]
	i := min(n.random.IntN(4), n.random.IntN(4))
	title := t.subjects[i%len(t.subjects)] + " " + t.tails[i%len(t.tails)]
	return Article{fmt.Sprintf("https://%s/notes/%s-%d", s.host, slug(title), at/lifetime), title}
}

// nostrProfile returns the content of an author's kind 0. A few have no name.
func nostrProfile(seed uint64, i int) string {
	first, last := firstNames(), lastNames()
	profile := map[string]string{"about": "simulated"}
	if i%5 > 0 {
		n := int(seed%97) + i // below 97
		profile["name"] = strings.ToLower(first[n%len(first)])
		profile["display_name"] = first[n%len(first)] + " " + last[n/2%len(last)]
	}
	text, err := json.Marshal(profile)
	if err != nil {
		panic(fmt.Sprintf("simnet made an invalid profile: %v", err)) // a bug in this file
	}
	return string(text)
}
