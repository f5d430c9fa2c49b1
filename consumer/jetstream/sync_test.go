package jetstream

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// TestSyncOfAnArchive decodes the event that archives have and no server sends on this wire.
func TestSyncOfAnArchive(t *testing.T) {
	t.Parallel()
	wire := Wire(nil)
	var m consumer.Message
	wire.Decode([]byte(`{"did":"did:plc:a","time_us":1789000000000000,"cursor":7,"kind":"sync","sync":{"did":"did:plc:a",`+
		`"rev":"3lu2x2x2x2x2x","blocks":{"$bytes":""}}}`),
		time.Now(), &m)
	require.Empty(t, m.Malformed)
	require.Equal(t, consumer.KindSync, m.Events[0].Kind)
	require.Equal(t, "3lu2x2x2x2x2x", m.Events[0].Revision)
	require.Equal(t, consumer.Identity{Kind: "sync", Author: "did:plc:a", Revision: "3lu2x2x2x2x2x"}, m.Identity)
	for bad, cause := range map[string]string{
		`{"did":"did:plc:a","time_us":1789000000000000,"kind":"sync","sync":{"did":"did:plc:a"}}`:                       "not a revision",
		`{"did":"did:plc:a","time_us":1789000000000000,"kind":"sync","sync":{"did":"did:plc:b","rev":"3lu2x2x2x2x2x"}}`: "did",
		`{"did":"did:plc:a","time_us":1789000000000000,"kind":"sync"}`:                                                  "no body",
	} {
		wire.Decode([]byte(bad), time.Now(), &m)
		require.Len(t, m.Malformed, 1, bad)
		require.Contains(t, m.Malformed[0].Error(), cause)
	}
}
