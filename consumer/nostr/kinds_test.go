package nostr_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestEveryKindIsStored stores every kind of two relays. A deletion request names an event of any
// kind by its id, also one that arrives later. It deletes no address that looks like the id, and no
// request.
func TestEveryKindIsStored(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 3, Authors: 2, Relays: []simnet.NostrRelay{{Page: 100}, {Page: 100}}})
	n.kinds = nil
	now := time.Now().Unix() - 100
	reaction, zap, request := n.Write(now, 7, nil, "gone"), n.Write(now, 1999, nil, "gone"), n.Write(now, 5, nil, "stays")
	others := n.WriteAs(1, nil, now, 7, nil, "stays")
	n.Write(now, 30078, [][]string{{"d", reaction.ID}}, "stays")
	n.Write(now, 10002, nil, "gone")
	n.Write(now+1, 10002, nil, "stays")
	late := n.WriteAs(0, []int{}, now, 9735, nil, "late")
	n.WriteAs(1, nil, now, 1, nil, "stays")
	n.Write(now, 21234, nil, "ephemeral")
	stop := n.run(func(cfg *consumer.Config) {
		cfg.Wanted = func(collection string) bool { return strings.HasPrefix(collection, "nostr.") }
	})
	defer stop()
	n.read()
	require.Equal(t, 7, n.count(`SELECT count(*) FROM records`))
	tags := [][]string{{"e", reaction.ID}, {"e", zap.ID}, {"e", request.ID}, {"e", others.ID}, {"e", late.ID}}
	n.Write(now+2, 5, tags, "stays")
	n.holdsTexts("stays", 6)
	n.Put(0, late)
	n.Put(1, late)
	n.WriteAs(1, nil, now+1, 62, [][]string{{"relay", "ALL_RELAYS"}}, "stays")
	n.Write(now+3, 44, nil, "stays")
	n.holdsTexts("stays", 5)
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records WHERE collection = 'nostr.10002' AND rkey = 'self'`))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records WHERE collection = 'nostr.30078' AND rkey = $1`, reaction.ID))
	id, err := hex.DecodeString(late.ID[:32])
	require.NoError(t, err)
	require.Equal(t, 1, n.count(`SELECT count(*) FROM seen WHERE id = $1`, [16]byte(id)))
}

// holdsTexts waits until as many records are stored, all with that text.
func (n *network) holdsTexts(text string, want int) {
	n.t.Helper()
	eventually.True(n.t, func() bool {
		return n.count(`SELECT count(*) FROM records`) == want &&
			n.count(`SELECT count(*) FROM records WHERE record ->> 'content' = $1`, text) == want
	}, 10*time.Millisecond)
}
