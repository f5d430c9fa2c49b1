package links

import (
	"context"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

const (
	announceInterval = 2 * time.Second // over all processes
	announceAnyway   = time.Minute     // a share that leaves a window may change no count; a process may end between count and announcement
)

// announcer announces the links that enter the top of a window, after the counter has
// committed. The process that counted announces them; if there are several, one does
// at a time.
type announcer struct {
	every   time.Duration
	changed bool // counts changed since the last announcement
	last    time.Time
}

// announce announces links if an announcement is due.
func (c *counter) announce(ctx context.Context) {
	if !c.changed && time.Since(c.last) < announceAnyway {
		return
	}
	n, done, err := ranking.Announce(ctx, c.pool, c.every)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			c.log.Error("announcing_failed", "error", err)
		}
	case done:
		c.changed, c.last = false, time.Now()
		c.log.Debug("links_announced", "links", n)
	}
}
