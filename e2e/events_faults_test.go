package e2e

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// eventsFaults are the faults that only subscribeEvents can have.
func eventsFaults() []fault {
	return []fault{
		{"subscribeEvents: " + string(simnet.ConsumerTooSlow), func(c *chaos) { c.endsWith(simnet.ConsumerTooSlow) }},
		{"subscribeEvents: " + string(simnet.FailStream), func(c *chaos) { c.endsWith(simnet.FailStream) }},
		{"subscribeEvents: " + string(simnet.RotateDictionary), func(c *chaos) {
			require.NoError(c.t, c.net.Do(simnet.RotateDictionary))
			c.until(simnet.UnknownDictionary)
		}},
		{"subscribeEvents: missing, then back after SIGKILL of the consumers", func(c *chaos) {
			require.NoError(c.t, c.net.Do(simnet.Downgrade))
			c.until(simnet.Downgrade)
			c.progress(3)
			require.NoError(c.t, c.net.Do(simnet.Upgrade))
			c.killConsumers() // they remember what the host lacks
			c.relaunchConsumers()
		}},
	}
}

// endsWith ends the connections with an error, which no other service sends.
func (c *chaos) endsWith(f simnet.Fault) {
	c.inject(f)
	c.advance("%s", f)
}

// until cuts the connections until a fault meets the next one.
func (c *chaos) until(f simnet.Fault) {
	c.t.Helper()
	before := c.net.Fired()[f]
	eventually.True(c.t, func() bool {
		c.inject(simnet.Cut)
		return c.net.Fired()[f] > before
	}, 200*time.Millisecond, "%s meets no client", f)
}
