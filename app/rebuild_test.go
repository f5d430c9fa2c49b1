package app

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// TestArchivedDemandsToVanishAreObeyed shows that archived requests to vanish are obeyed whatever
// relay they name. The archive contains only requests that were obeyed, also of relays that authors
// name and of relays that are no longer configured.
func TestArchivedDemandsToVanishAreObeyed(t *testing.T) {
	t.Parallel()
	e := &protocol.Event{Kind: protocol.KindVanish, CreatedAt: 1_700_000_000, Tags: [][]string{{"relay", "wss://author.example/inbox"}}}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	p := App{cfg: Config{Nostr: []string{"wss://relay.example"}}, signatures: &signatures{}, metrics: prometheus.NewRegistry()}
	for _, stream := range []string{"nostr:relay.example", "nostr:author.example", catalog.StreamRetried} {
		wire, err := p.archived(nil).Wire(archive.Manifest{Wire: nostr.WireName, Stream: stream})
		require.NoError(t, err)
		var m consumer.Message
		wire.Decode(e.AppendNotepack(nil), time.Now(), &m)
		require.Len(t, m.Events, 2, stream) // the demand, and the event itself
		require.Equal(t, consumer.KindErasure, m.Events[0].Kind)
	}
}
