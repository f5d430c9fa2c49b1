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

// Cache keeps values in bounded memory: the oldest make room for new ones. It is safe for concurrent use.
type Cache[V any] struct {
	most int // bytes

	mu    sync.Mutex
	kept  map[string]*list.Element
	order *list.List // of entry, the oldest first
	bytes int
}

type entry[V any] struct {
	key   string
	size  int
	value V
}

// NewCache returns a cache that uses at most so many bytes.
func NewCache[V any](most int) *Cache[V] {
	return &Cache[V]{most: most, kept: make(map[string]*list.Element), order: list.New()}
}

// Find returns a value, or the zero value.
func (c *Cache[V]) Find(key string) (value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.kept[key]; at != nil {
		value = at.Value.(entry[V]).value
	}
	return value
}

// Add keeps a value of size bytes in place of that of the same key. The value must not change any more.
func (c *Cache[V]) Add(key string, size int, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.kept[key]; at != nil {
		c.drop(at)
	}
	c.kept[key] = c.order.PushBack(entry[V]{key, size, value})
	for c.bytes += size; c.bytes > c.most && c.order.Len() > 1; {
		c.drop(c.order.Front())
	}
}

// DropWhile drops the oldest values, as long as they are old.
func (c *Cache[V]) DropWhile(old func(V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.order.Front(); at != nil && old(at.Value.(entry[V]).value); at = c.order.Front() {
		c.drop(at)
	}
}

// drop is called with mu held.
func (c *Cache[V]) drop(at *list.Element) {
	e := c.order.Remove(at).(entry[V])
	delete(c.kept, e.key)
	c.bytes -= e.size
}

// keptResponse is a response that is sent again for a short time.
type keptResponse struct {
	until time.Time
	*bufferedResponse
}

// cacheKey identifies the content that a request asks for.
func cacheKey(r *http.Request) string {
	key := r.URL.Path + "?" + r.URL.RawQuery
	if acceptsGzip(r) {
		key += " gzip"
	}
	return key
}
