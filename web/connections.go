package web

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// connections bounds how many connections a server keeps open. Where one too
// many comes, the one that has waited longest for a whole request is closed:
// whoever sends a request at once is answered, however many others dawdle. Only
// where every other connection is being answered, the oldest of these ends.
type connections struct {
	most int
	log  *slog.Logger

	mu      sync.Mutex
	open    map[net.Conn]*list.Element
	waiting *list.List // for the header of a request; the longest first
	busy    *list.List // being answered; the longest first
	told    time.Time  // when the log last said that the limit was reached
}

func newConnections(most int, log *slog.Logger) *connections {
	return &connections{most: most, log: log, open: make(map[net.Conn]*list.Element), waiting: list.New(), busy: list.New()}
}

// changed is the server's ConnState. The server tells of a new connection
// before it accepts the next one, so the limit holds at every moment.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(conn)
	switch state {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(conn)
	case http.StateActive:
		c.open[conn] = c.busy.PushBack(conn)
	}
	if len(c.open) > c.most {
		c.closeOne()
	}
}

// forget and closeOne are called with mu held.
func (c *connections) forget(conn net.Conn) {
	if at, ok := c.open[conn]; ok {
		c.waiting.Remove(at) // of the two lists, that which it is in
		c.busy.Remove(at)
		delete(c.open, conn)
	}
}

func (c *connections) closeOne() {
	oldest := c.waiting.Front()
	if c.waiting.Len() < 2 && c.busy.Len() > 0 { // the only one that waits has just come
		oldest = c.busy.Front()
	}
	conn := oldest.Value.(net.Conn)
	c.forget(conn)
	conn.Close() //nolint:errcheck // nothing was promised to it
	if now := time.Now(); now.Sub(c.told) > time.Minute {
		c.told = now
		c.log.Warn("connection_limit_reached", "limit", c.most)
	}
}
