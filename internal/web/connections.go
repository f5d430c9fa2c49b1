package web

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// minWait is how long every connection may wait for its first request, even if there
// are too many connections. Meanwhile, further connections wait in the kernel's
// queue.
const minWait = 150 * time.Millisecond

// connections limits the open connections of a server. For a new connection beyond
// the limit, it closes the one that has waited longest for a complete request. So a
// client that sends its request at once gets a response, even if many others are
// slow. If all connections are being served, it closes the one served longest.
type connections struct {
	limit int
	log   *slog.Logger

	mu         sync.Mutex
	open       map[net.Conn]*list.Element
	waiting    *list.List // of connection: waiting for a request, the longest first
	busy       *list.List // of connection: being served, the longest first
	lastLogged time.Time  // when the reached limit was last logged
}

type connection struct {
	net.Conn
	since time.Time // when it began to wait or to be served
}

func newConnections(limit int, log *slog.Logger) *connections {
	return &connections{limit: limit, log: log, open: make(map[net.Conn]*list.Element), waiting: list.New(), busy: list.New()}
}

// stateChanged is the server's ConnState. The server calls it for a new connection
// before it accepts the next one, so the limit always holds.
func (c *connections) stateChanged(conn net.Conn, state http.ConnState) {
	if state == http.StateNew {
		for wait := c.evict(); wait > 0; wait = c.evict() {
			time.Sleep(min(wait, minWait/10)) // a connection may end meanwhile
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(conn)
	switch state {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(connection{conn, time.Now()})
	case http.StateActive:
		c.open[conn] = c.busy.PushBack(connection{conn, time.Now()})
	}
}

// evict closes a connection if the limit is reached. If it is too early to close one,
// evict returns how long to wait.
func (c *connections) evict() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) < c.limit {
		return 0
	}
	at := c.waiting.Front()
	if at == nil {
		at = c.busy.Front()
	}
	oldest, now := at.Value.(connection), time.Now()
	if early := minWait - now.Sub(oldest.since); early > 0 {
		return early
	}
	c.remove(oldest.Conn)
	oldest.Close() // its response is abandoned anyway
	if now.Sub(c.lastLogged) > time.Minute {
		c.lastLogged = now
		c.log.Warn("connection_limit_reached", "limit", c.limit)
	}
	return 0
}

// remove is called with mu held.
func (c *connections) remove(conn net.Conn) {
	if at, ok := c.open[conn]; ok {
		c.waiting.Remove(at) // it is in one of the lists; the other ignores it
		c.busy.Remove(at)
		delete(c.open, conn)
	}
}
