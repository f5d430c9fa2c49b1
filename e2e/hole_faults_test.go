package e2e

import (
	"fmt"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// retentionFaults have a server with a short retention forget events while the
// consumers are away for a few seconds, far less than WEIR_GAP_THRESHOLD.
func (r round) retentionFaults() []fault {
	consumers := fleet()[:2]
	return []fault{
		{"short retention, after SIGKILL of the consumers", func(c *chaos) { c.away(c.killConsumers, c.relaunchConsumers) }},
		{"short retention, after SIGTERM of the consumers", func(c *chaos) {
			c.away(func() {
				for _, name := range consumers {
					c.member(name).signal(syscall.SIGTERM)
				}
				for _, name := range consumers {
					require.Zero(c.t, c.member(name).wait(c.t, patience), name)
				}
			}, c.relaunchConsumers)
		}},
		{"short retention, after no connection to " + r.source(), func(c *chaos) { c.away(c.stream.down, c.stream.up) }},
	}
}

func (c *chaos) relaunchAll(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.relaunch(name)
	}
}

// forgetUnread has the server forget events from while it refused connections.
func (c *chaos) forgetUnread() {
	c.t.Helper()
	c.away(c.refuse, c.accept)
}

func (c *chaos) accept() { require.NoError(c.t, c.net.Do(simnet.Accept)) }

// away leaves the stream unread for a while, most of which the server then
// forgets. One account hides before that and returns during it.
func (c *chaos) away(leave, back func()) {
	c.t.Helper()
	c.stop()
	c.show(c.scripted[1])
	require.NoError(c.t, c.net.Deactivate(c.scripted[1]))
	c.hole(c.waitCommitted(), leave, back)
}

// show reactivates an account that is not active.
func (c *chaos) show(did string) {
	c.t.Helper()
	if a, _ := c.net.Account(did); a.Status != "" {
		require.NoError(c.t, c.net.Reactivate(did))
	}
}

// hole stops reading the stream after the last committed event. Events of every
// kind then happen, random and scripted, and the server forgets them. The
// oracle checks that a gap is recorded.
func (c *chaos) hole(after *simnet.Entry, leave, back func()) {
	c.t.Helper()
	away, between := c.scripted[1], c.scripted[2]
	leave()
	c.stop = c.events()
	ahead := func() bool { return time.Now().UnixMicro() > after.TimeUS } // the server's clock may have been ahead
	eventually.True(c.t, ahead, 10*time.Millisecond)
	c.post("nobody will read this")
	c.show(away)
	require.NoError(c.t, c.net.Deactivate(between))
	require.NoError(c.t, c.net.Reactivate(between))
	for _, did := range []string{away, between} {
		_, err := c.net.PostNow(did, "back again", "https://forgotten.example/back")
		require.NoError(c.t, err)
	}
	c.change()
	for range 15 + c.random.IntN(15) {
		c.post("nor this")
		lasts(100 * time.Millisecond)
	}
	clamped := c.net.Fired()[simnet.TooOld]
	// in a silence, the forgotten span still exceeds the threshold set there
	first := c.net.Forget(time.Duration(c.random.IntN(300)) * time.Millisecond)
	var h hole
	c.mu.Lock()
	for _, e := range c.net.Log().Entries() {
		if e.Seq <= after.Seq || e.Seq >= first {
			continue
		}
		c.lost[e] = true
		if e.DID == c.scripted[0] {
			h.to = time.UnixMicro(e.TimeUS)
			if h.from.IsZero() {
				h.from = h.to
			}
		}
	}
	c.mu.Unlock()
	require.False(c.t, h.from.IsZero(), "the server has forgotten nothing")
	c.holes = append(c.holes, h)
	back()
	eventually.True(c.t, func() bool { return c.net.Fired()[simnet.TooOld] > clamped }, 20*time.Millisecond,
		"no client requests the forgotten events")
}

// post adds a post with a link, by the first scripted account.
func (c *chaos) post(text string) *simnet.Entry {
	c.t.Helper()
	e, err := c.net.PostNow(c.scripted[0], text, fmt.Sprintf("https://forgotten.example/%d", len(c.posted)))
	require.NoError(c.t, err)
	c.posted = append(c.posted, e)
	return e
}

// change edits and deletes posts: some from before the hole, if there are any,
// and some from inside it.
func (c *chaos) change() {
	c.t.Helper()
	for range 2 {
		gone, edited := c.post("soon gone"), c.post("soon another")
		if before := len(c.posted) - 2; before >= 2 {
			gone, edited = c.posted[0], c.posted[1]
			c.posted = c.posted[2:]
		} else {
			c.posted = c.posted[:before]
		}
		require.NoError(c.t, c.net.DeleteRecord(uriOf(gone)))
		_, err := c.net.EditPost(uriOf(edited), "another", "https://forgotten.example/edited")
		require.NoError(c.t, err)
	}
}

func uriOf(e *simnet.Entry) string { return "at://" + e.DID + "/" + e.Collection + "/" + e.Rkey }
