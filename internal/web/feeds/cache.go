package feeds

import (
	"container/list"
	"sync"
	"time"

	"github.com/weir-social/weir/internal/ranking/feeds"
)

const (
	feedInterval = 5 * time.Minute // between two computations of a feed
	maxFeedBytes = 32 << 20        // approximate size of kept feeds
	feedTimeout  = time.Minute     // for one computation: with very many shares it takes longer than a request may
	feedsAtOnce  = 2               // concurrent computations: anybody can request any feed
)

// feedCache keeps feeds in bounded memory. It also keeps old ones: if a feed has
// not changed since, it keeps its date of change.
type feedCache struct {
	mu    sync.Mutex
	kept  map[string]*list.Element
	order *list.List // of *keptFeed, the earliest computed in front
	bytes int
}

// keptFeed is a computed feed. It never changes.
type keptFeed struct {
	feeds.Feed
	key     string
	version string
	changed time.Time // when it was first computed with this version
	size    int
}

func newFeedCache() *feedCache {
	return &feedCache{kept: make(map[string]*list.Element), order: list.New()}
}

// find returns a feed if it need not be computed again.
func (c *feedCache) find(key string, now time.Time) *keptFeed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.kept[key]; at != nil {
		if k := at.Value.(*keptFeed); now.Sub(k.At) < feedInterval && !now.Before(k.At) {
			return k
		}
	}
	return nil
}

// add keeps a feed.
func (c *feedCache) add(key string, f feeds.Feed) (*keptFeed, error) {
	version, err := feedVersion(f)
	if err != nil {
		return nil, err
	}
	k := &keptFeed{Feed: f, key: key, version: version, changed: f.At, size: 1024 + len(key)}
	for i := range f.Entries {
		e := &f.Entries[i]
		k.size += 256 + len(e.URL) + len(e.Site) + len(e.Title) + len(e.Description) + len(e.Image) + len(e.CardFrom)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.kept[key]; at != nil {
		if before := at.Value.(*keptFeed); before.version == version {
			k.changed = before.changed
		}
		c.drop(at)
	}
	c.kept[key] = c.order.PushBack(k)
	c.bytes += k.size
	for c.bytes > maxFeedBytes && c.order.Len() > 1 {
		c.drop(c.order.Front())
	}
	return k, nil
}

// drop is called with mu held.
func (c *feedCache) drop(at *list.Element) {
	k := c.order.Remove(at).(*keptFeed)
	delete(c.kept, k.key)
	c.bytes -= k.size
}
