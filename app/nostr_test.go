package app

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/feature"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// readsNostr returns a configuration that reads relays too.
func readsNostr(t *testing.T, c Config, relays ...string) Config {
	t.Helper()
	c.features = Features()
	require.NoError(t, c.SetEndpoints("nostr", relays))
	return c
}

// TestEachStreamFollowsItsNetwork shows that no server is asked for accounts of another network.
func TestEachStreamFollowsItsNetwork(t *testing.T) {
	t.Parallel()
	const key = "did:nostr:7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
	c := Config{Source: "firehose", Stream: "main", Relays: []string{"wss://a.example", "wss://b.example"}, Collections: []string{"nostr.1"}}
	c = readsNostr(t, c, "wss://c.example", "wss://d.example")
	p := New(c, nil)
	followed := map[string][]string{}
	servers := 0
	for _, one := range p.streams() {
		s := stream{configuredStream: one}
		followed[one.Name] = s.accounts(p.sources(), schema.Followed{DIDs: []string{"did:plc:a", key, "did:web:b"}}).DIDs
		servers += len(one.Endpoints)
	}
	repositories := []string{"did:plc:a", "did:web:b"}
	require.Equal(t, map[string][]string{"main": repositories, "nostr:c.example": {key}, "nostr:d.example": {key}}, followed)
	require.Equal(t, 4, servers)
	require.ErrorContains(t, c.SetSource("nostr"), `"nostr" is no source: expected jetstream or firehose`)
}

// TestArchivedDemandsToVanishAreApplied shows that archived requests to vanish are applied whatever
// relay they name. The archive contains only requests that were applied, also of relays that authors
// name and of relays that are no longer configured.
func TestArchivedDemandsToVanishAreApplied(t *testing.T) {
	t.Parallel()
	e := &protocol.Event{Kind: protocol.KindVanish, CreatedAt: 1_700_000_000, Tags: [][]string{{"relay", "wss://author.example/inbox"}}}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	p := New(readsNostr(t, Config{Collections: []string{"nostr.1"}}, "wss://relay.example"), nil)
	wires, err := p.wires(feature.Decoding{Archived: true})
	require.NoError(t, err)
	var m consumer.Message
	wires[nostr.WireName].Decode(e.AppendNotepack(nil), time.Now(), &m)
	require.Len(t, m.Events, 2) // the demand, and the event itself
	require.Equal(t, consumer.KindErasure, m.Events[0].Kind)
}

// TestDoctorChecksRelays shows that each relay that does not work has a line of its own.
func TestDoctorChecksRelays(t *testing.T) {
	t.Parallel()
	relays, err := simnet.NewNostr(simnet.NostrConfig{Seed: 3, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 10}}})
	require.NoError(t, err)
	t.Cleanup(relays.Stop)
	relay := relays.URLs()[0]
	refuses := httptest.NewServer(http.NotFoundHandler())
	refuses.Close()
	nothing := "ws" + refuses.URL[len("http"):]
	c := readsNostr(t, Config{Source: "jetstream", Verify: VerifyWhole, Collections: []string{"nostr.1"}, Retention: time.Hour}, relay,
		nothing)
	const within = 20 * time.Second
	checks := slices.DeleteFunc(c.checks(within, c.pool(within)), func(check doctor.Check) bool { return check.Name != "nostr" })
	all := map[string]doctor.Finding{}
	for _, f := range doctor.Run(t.Context(), within, checks...) {
		all[f.Check] = f
	}
	require.Equal(t, doctor.OK, all["nostr "+relay[len("ws://"):]].Level, "%+v", all)
	require.Equal(t, doctor.Fail, all["nostr "+nothing[len("ws://"):]].Level, "another relay does not have its events: %+v", all)
}
