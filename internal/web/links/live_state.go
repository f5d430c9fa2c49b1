package links

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

// liveState is the state of a view at a time, as its readers know it.
type liveState struct {
	at    time.Time
	every float64 // seconds since the previous computation
	links []liveCount
	byID  map[int64]liveCount
}

// liveCount holds the counts of a link that the reader knows.
type liveCount struct {
	ID         int64     `json:"id"`
	Sharers    int       `json:"sharers"`
	Speed      float64   `json:"speed,omitempty"`
	LastShared time.Time `json:"last_shared"`
}

// liveSnapshot is the first event of a stream: the links, in order.
type liveSnapshot struct {
	At    time.Time   `json:"at"`
	Every float64     `json:"every"`
	Links []liveCount `json:"links"`
}

// liveChange is an event with the changes since the previous one.
type liveChange struct {
	At      time.Time              `json:"at"`
	Every   float64                `json:"every"`
	Counts  []liveCount            `json:"counts,omitempty"`
	Entered []ranking.TrendingLink `json:"entered,omitempty"`
	Left    []int64                `json:"left,omitempty"`
}

// newLiveState returns the state of a page. before is the previous state; nil: there is
// none.
func newLiveState(page ranking.Page, before *liveState) *liveState {
	s := &liveState{
		at: page.At.UTC().Truncate(time.Millisecond), every: liveInterval.Seconds(), links: make([]liveCount, len(page.Links)),
		byID: make(map[int64]liveCount, len(page.Links)),
	}
	if before != nil {
		s.every = math.Round(s.at.Sub(before.at).Seconds()*10) / 10
	}
	for i, l := range page.Links {
		s.links[i] = liveCount{l.ID, l.Sharers, l.Speed, l.LastShared.UTC()}
		s.byID[l.ID] = s.links[i]
	}
	return s
}

// misses reports whether the state lacks one of the links.
func (s *liveState) misses(links []ranking.TrendingLink) bool {
	for _, l := range links {
		if _, ok := s.byID[l.ID]; !ok {
			return true
		}
	}
	return false
}

func (s *liveState) snapshot() []byte {
	return event("snapshot", liveSnapshot{s.at, s.every, s.links})
}

// changes returns the event with the changes. changed is false if nothing changed.
func (s *liveState) changes(
	before *liveState, links []ranking.TrendingLink, shown func([]ranking.TrendingLink) []ranking.TrendingLink,
) (_ []byte, changed bool) {
	c := liveChange{At: s.at, Every: s.every}
	var entered []ranking.TrendingLink
	for i, l := range links {
		old, ok := before.byID[l.ID]
		switch now := s.links[i]; {
		case !ok:
			entered = append(entered, l)
		case old != now:
			c.Counts = append(c.Counts, now)
		}
	}
	c.Entered = shown(entered)
	for _, l := range before.links {
		if _, ok := s.byID[l.ID]; !ok {
			c.Left = append(c.Left, l.ID)
		}
	}
	return event("change", c), len(c.Counts)+len(c.Entered)+len(c.Left) > 0
}

// event encodes a server-sent event. JSON has no line breaks.
func event(name string, data any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: ", name)
	json.NewEncoder(&b).Encode(data) // a buffer never fails, and the types can be written
	b.WriteByte('\n')
	return b.Bytes()
}
