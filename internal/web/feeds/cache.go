package feeds

import (
	"time"

	"github.com/weir-social/weir/internal/ranking/feeds"
	"github.com/weir-social/weir/internal/web"
)

const (
	feedInterval = 5 * time.Minute // between two computations of a feed
	maxFeedBytes = 32 << 20        // approximate size of kept feeds
	feedTimeout  = time.Minute     // for one computation: with very many shares it takes longer than a request may
	feedsAtOnce  = 2               // concurrent computations: anybody can request any feed
)

// keptFeed is a computed feed. It never changes.
type keptFeed struct {
	feeds.Feed
	version string
	changed time.Time // when it was first computed with this version
}

// fresh returns a kept feed if it need not be computed again. Old ones are kept too: if a feed has not changed since, it
// keeps its date of change.
func (s *server) fresh(key string, now time.Time) *keptFeed {
	if k := s.cache.Find(key); k != nil && now.Sub(k.At) < feedInterval && !now.Before(k.At) {
		return k
	}
	return nil
}

// keep keeps a feed.
func (s *server) keep(key string, f feeds.Feed) (*keptFeed, error) {
	version, err := web.Version(f.Entries)
	if err != nil {
		return nil, err
	}
	k := &keptFeed{Feed: f, version: version, changed: f.At}
	if before := s.cache.Find(key); before != nil && before.version == version {
		k.changed = before.changed
	}
	size := 1024 + len(key)
	for i := range f.Entries {
		e := &f.Entries[i]
		size += 256 + len(e.URL) + len(e.Site) + len(e.Title) + len(e.Description) + len(e.Image) + len(e.CardFrom)
	}
	s.cache.Add(key, size, k)
	return k, nil
}
