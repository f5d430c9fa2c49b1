package app

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// TestEverySourceIsWhole shows that the archived events and the failed events of every source can
// be decoded, and forgotten.
func TestEverySourceIsWhole(t *testing.T) {
	t.Parallel()
	p := App{cfg: Config{Verify: VerifyWhole}, signatures: &signatures{}, metrics: prometheus.NewRegistry()}
	names, wires := map[string]bool{}, map[string]bool{}
	for _, s := range sources() {
		names[s.name], wires[s.wire] = true, true
		for _, archived := range []bool{false, true} {
			wire, err := s.newWire(p, archived, nil)
			require.NoError(t, err)
			require.Equal(t, s.wire, wire.Name)
		}
		_, err := p.strip(archive.Manifest{Wire: s.wire})
		require.NoError(t, err)
		require.Equal(t, s.streams == nil, s.endpoints != nil && s.words != "", s.name)
	}
	require.Len(t, names, len(sources()))
	require.Len(t, wires, len(sources()))
	require.True(t, wires[fetchedWire])
}

// TestEachStreamFollowsItsNetwork shows that no server is asked for accounts of another network.
func TestEachStreamFollowsItsNetwork(t *testing.T) {
	t.Parallel()
	const key = "did:nostr:7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
	c := Config{Source: "firehose", Stream: "main", Relays: []string{"wss://a.example", "wss://b.example"}, Collections: []string{"nostr.1"}, Nostr: []string{"wss://c.example", "wss://d.example"}}
	configured, err := c.streams()
	require.NoError(t, err)
	followed := map[string][]string{}
	servers := 0
	for _, one := range configured {
		s := stream{configuredStream: one}
		followed[one.name] = s.accounts(schema.Followed{DIDs: []string{"did:plc:a", key, "did:web:b"}}).DIDs
		servers += len(one.endpoints)
	}
	repositories := []string{"did:plc:a", "did:web:b"}
	require.Equal(t, map[string][]string{"main": repositories, "nostr:c.example": {key}, "nostr:d.example": {key}}, followed)
	require.Equal(t, 4, servers)
	c.Source = "nostr"
	_, err = c.streams()
	require.ErrorContains(t, err, `"nostr" is no source: expected jetstream or firehose`)
}
