package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRelaysOfOneHostAreStreams shows that each relay has a stream named with its path. A relay
// without a path has the name of its host.
func TestRelaysOfOneHostAreStreams(t *testing.T) {
	t.Parallel()
	c := Config{Collections: []string{"nostr.1"}, Nostr: []string{"wss://relay.example", "wss://relay.example/one", "wss://relay.example/two/", "ws://other.example:8080/"}}
	all, err := c.nostrRelays()
	require.NoError(t, err)
	var names []string
	for _, relay := range all {
		names = append(names, relay.stream)
	}
	require.Equal(t, []string{"nostr:relay.example", "nostr:relay.example/one", "nostr:relay.example/two", "nostr:other.example:8080"}, names)
	for _, again := range []string{"ws://relay.example/", "wss://relay.example/one/"} {
		twice := c
		twice.Nostr = append([]string{again}, c.Nostr...)
		_, err := twice.nostrRelays()
		require.ErrorContains(t, err, "occurs twice", again)
	}
}
