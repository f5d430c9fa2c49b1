package web

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// leastWait is how long every connection has for its first request, even when
// too many come: the next ones wait in the kernel's queue meanwhile.
const leastWait = 150 * time.Millisecond

// connections bounds how many connections a server keeps open. Where one too
// many comes, the one that has waited longest for a whole request is closed:
// whoever sends a request at once is answered, however many others dawdle. Only
// where every other connection is being answered, the oldest of these ends.
type connections struct {
	most int
	log  *slog.Logger

	mu      sync.Mutex
	open    map[net.Conn]*list.Element
	waiting *list.List // of connection: for the header of a request, the longest first
	busy    *list.List // of connection: being answered, the longest first
	told    time.Time  // when the log last said that the limit was reached
}

type connection struct {
	net.Conn
	since time.Time // it waits, or is answered
}

func newConnections(most int, log *slog.Logger) *connections {
	return &connections{most: most, log: log, open: make(map[net.Conn]*list.Element), waiting: list.New(), busy: list.New()}
}

// changed is the server's ConnState. The server tells of a new connection
// before it accepts the next one, so the limit holds at every moment.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if state == http.StateNew {
		for wait := c.makeRoom(); wait > 0; wait = c.makeRoom() {
			time.Sleep(min(wait, leastWait/10)) // one may end by itself
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(conn)
	switch state {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(connection{conn, time.Now()})
	case http.StateActive:
		c.open[conn] = c.busy.PushBack(connection{conn, time.Now()})
	}
}

// makeRoom closes a connection where there is no room for another one, and
// returns how long it is too early for that.
func (c *connections) makeRoom() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) < c.most {
		return 0
	}
	at := c.waiting.Front()
	if at == nil {
		at = c.busy.Front()
	}
	oldest, now := at.Value.(connection), time.Now()
	if early := leastWait - now.Sub(oldest.since); early > 0 {
		return early
	}
	c.forget(oldest.Conn)
	oldest.Close() //nolint:errcheck // nothing was promised to it
	if now.Sub(c.told) > time.Minute {
		c.told = now
		c.log.Warn("connection_limit_reached", "limit", c.most)
	}
	return 0
}

// forget is called with mu held.
func (c *connections) forget(conn net.Conn) {
	if at, ok := c.open[conn]; ok {
		c.waiting.Remove(at) // of the two lists, that which it is in
		c.busy.Remove(at)
		delete(c.open, conn)
	}
}
