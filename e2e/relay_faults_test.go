package e2e

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/simnet"
)

// relayFaults are what only a relay does.
func relayFaults() []fault {
	consumers := fleet()[:2]
	return []fault{
		{"relay: #sync", func(c *chaos) { require.NoError(c.t, c.net.SyncRepo(c.scripted[0])) }},
		{"relay: hides the account of the last event, after SIGKILL of the consumers", func(c *chaos) {
			c.hide(func() {
				for _, name := range consumers {
					c.kill(name)
				}
			}, func() { c.relaunchAll(consumers...) })
		}},
		{"relay: hides the account of the last event, while it restarts", func(c *chaos) {
			c.hide(c.refuse, c.accept)
		}},
	}
}

// hide leaves the stream after an event of an account that the relay takes down
// meanwhile: it omits the event from then on. The next connection must resume by
// another one, without reading anything a second time.
func (c *chaos) hide(leave, back func()) {
	c.t.Helper()
	c.stop()
	c.waitCommitted() // by the first scripted account, which is silent until it is shown again
	leave()
	before, repeated := c.net.Fired()[simnet.Hidden], map[*process]int{}
	for _, name := range fleet() {
		repeated[c.member(name)] = c.member(name).mismatches()
	}
	c.net.HideFromRelay(c.scripted[0], true)
	c.stop = live(c.t, c.net, chaosRate)
	back()
	require.Eventually(c.t, func() bool { return c.net.Fired()[simnet.Hidden] > before }, time.Minute, 20*time.Millisecond, "no client requests the hidden event")
	c.progress(2)
	for _, name := range fleet() {
		require.Equal(c.t, repeated[c.member(name)], c.member(name).mismatches(), "the resume of %s needed the hidden event", name)
	}
	c.net.HideFromRelay(c.scripted[0], false)
}

// mismatches is how many resumes the process found not to be where they should.
func (p *process) mismatches() int { return strings.Count(p.stderr.String(), "resume_mismatch") }
