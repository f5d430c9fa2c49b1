package web

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

const (
	// KeepPages is how long a rendered page is sent again. Its numbers are from the
	// time that it shows.
	KeepPages = time.Second

	maxKept    = 16 << 20 // bytes of kept responses
	maxKeptKey = 4 << 10  // bytes of an address
)

// cache keeps responses for a short time, in bounded memory.
type cache struct {
	keep time.Duration // 0: no responses are kept

	mu    sync.Mutex
	kept  map[string]*list.Element
	order *list.List // of keptResponse, the oldest first
	bytes int
}

type keptResponse struct {
	key   string
	until time.Time
	*bufferedResponse
}

func newCache(keep time.Duration) *cache {
	return &cache{keep: keep, kept: make(map[string]*list.Element), order: list.New()}
}

// size returns about how much memory a response takes.
func (k keptResponse) size() int { return len(k.key) + k.body.Len() + 1024 }

// key identifies the content that a request asks for.
func (c *cache) key(r *http.Request) string {
	key := r.URL.Path + "?" + r.URL.RawQuery
	if acceptsGzip(r) {
		key += " gzip"
	}
	return key
}

// find returns a kept response.
func (c *cache) find(key string) *bufferedResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropUntil(time.Now(), maxKept)
	if at := c.kept[key]; at != nil {
		return at.Value.(keptResponse).bufferedResponse
	}
	return nil
}

// add keeps a response. The response must not change any more.
func (c *cache) add(key string, response *bufferedResponse) {
	k := keptResponse{key, time.Now().Add(c.keep), response}
	if c.keep == 0 || response.code != http.StatusOK || len(key) > maxKeptKey || k.size() > maxKept/4 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.kept[key]; at != nil {
		c.drop(at)
	}
	c.kept[key] = c.order.PushBack(k)
	c.bytes += k.size()
	c.dropUntil(time.Now(), maxKept)
}

// dropUntil drops responses that are too old. Then it drops the oldest until the others
// take no more than most bytes. It is called with mu held.
func (c *cache) dropUntil(now time.Time, most int) {
	for at := c.order.Front(); at != nil && (c.bytes > most || !at.Value.(keptResponse).until.After(now)); at = c.order.Front() {
		c.drop(at)
	}
}

// drop is called with mu held.
func (c *cache) drop(at *list.Element) {
	k := c.order.Remove(at).(keptResponse)
	delete(c.kept, k.key)
	c.bytes -= k.size()
}
