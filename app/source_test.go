package app

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
)

// TestEverySourceIsWhole shows that the archived events and the failed events of every source can
// be decoded.
func TestEverySourceIsWhole(t *testing.T) {
	t.Parallel()
	p := New(Config{Verify: VerifyWhole, features: Features()}, nil)
	names, wires := map[string]bool{}, map[string]bool{}
	for _, s := range p.sources() {
		names[s.Name], wires[s.Wire] = true, true
		for _, archived := range []bool{false, true} {
			wire, err := s.NewWire(feature.Decoding{Archived: archived})
			require.NoError(t, err)
			require.Equal(t, s.Wire, wire.Name)
		}
	}
	require.Len(t, names, len(p.sources()))
	require.Len(t, wires, len(p.sources()))
}
