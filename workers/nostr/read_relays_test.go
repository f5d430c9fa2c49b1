package nostr

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestRelayIsReadForAllAccountsThatNameIt reads a relay for all of them, however many they are. An
// account with more events than are read at once does not keep the others from being read, now or
// later.
func TestRelayIsReadForAllAccountsThatNameIt(t *testing.T) {
	t.Parallel()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 4, Authors: 2, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	keys := []string{n.Key(0), n.Key(1)}
	slices.Sort(keys)
	much, little := slices.Index([]string{n.Key(0), n.Key(1)}, keys[0]), slices.Index([]string{n.Key(0), n.Key(1)}, keys[1])
	now := time.Now().Unix()
	for i := range int64(150) {
		n.WriteAs(much, nil, now-7200-i, 1, nil, "much")
	}
	n.WriteAs(little, nil, now-7200, 1, nil, "little")

	r := &rig{t: t, pool: schematest.New(t)}
	r.execute(`INSERT INTO watches (target) VALUES ('npub')`)
	member := func(key string) {
		r.execute(`INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, "did:nostr:"+key)
		r.execute(`INSERT INTO nostr_authors (did, relays) VALUES ($1, ARRAY[$2])`, "did:nostr:"+key, n.URLs()[0])
	}
	member(keys[0])
	for i := range 1100 { // events that arrive between the two reads
		member(keys[1][:48] + fmt.Sprintf("%016x", i))
	}
	member(keys[1])

	w := &ReadRelays{
		patience: time.Hour, relays: reads(t, r.pool, []string{"wss://relay.example"}, "nostr.1=0"), window: 24 * time.Hour, most: 100,
	}
	work := func() {
		t.Helper()
		r.execute(`UPDATE nostr_relays SET next_at = now()`)
		require.NoError(t, w.Work(t.Context(), &river.Job[ReadRelaysArgs]{JobRow: &rivertype.JobRow{}}))
	}
	work()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM records WHERE did = $1`, "did:nostr:"+keys[1]))
	require.Less(t, r.count(`SELECT count(*) FROM records WHERE did = $1`, "did:nostr:"+keys[0]), 150)
	require.Equal(t, 1, r.count(`
SELECT count(*)
FROM nostr_relays
WHERE read_to > now() - interval '1 minute' AND problem LIKE '%more than 100 events%' AND failures = 1 AND next_at > now()`))
	asked := map[string]bool{}
	for _, request := range n.Requests(0) {
		for _, author := range request.Authors {
			asked[author] = true
		}
	}
	require.Len(t, asked, 1102)

	work()
	last := n.Requests(0)[len(n.Requests(0))-1]
	require.Greater(t, last.Since, now-3600-60, "the read must begin an hour before the last one")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM nostr_relays WHERE problem = '' AND failures = 0`))
}
