package ranking

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestCountsOfANetworkOutliveTheOther shows that an account that leaves the longest window changes
// no counts of the other network.
func TestCountsOfANetworkOutliveTheOther(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	count := func(at time.Time) {
		for more := true; more; {
			done, err := Count(t.Context(), pool, at)
			require.NoError(t, err)
			more = done.More
		}
	}
	networks := func() []Network {
		all, err := Networks(t.Context(), pool)
		require.NoError(t, err)
		return all
	}
	require.Empty(t, networks())
	exec(`INSERT INTO links (identity, url, site, first_seen) VALUES ('l', 'https://l.example/', 'l.example', $1)`, now)
	for did, at := range map[string]time.Time{
		"did:nostr:1": now, "did:nostr:2": now, "did:plc:late": now.Add(-LongestWindow + 30*time.Minute),
	} {
		exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) VALUES ($1, 'c', 'r', 1, 1, 'post', $2)`, did, at)
	}
	count(now)
	require.Equal(t, []Network{Bluesky, Nostr}, networks())
	count(now.Add(2 * time.Hour))
	require.Equal(t, []Network{Nostr}, networks())
	done, err := Check(t.Context(), pool, func(d Difference) { require.Fail(t, d.String()) })
	require.NoError(t, err)
	require.False(t, done.Pending)
	exec(`UPDATE nostr_counts SET sharers = 3`)
	var found []string
	_, err = Check(t.Context(), pool, func(d Difference) { found = append(found, fmt.Sprint(d.Network, d.Link)) })
	require.NoError(t, err)
	require.Equal(t, []string{"nostr1"}, found, "a wrong count of one network must be found")
}

// TestNewestOfANetwork shows that only a network's own sharers include a link in its window,
// however the page is read.
func TestNewestOfANetwork(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	_, err := pool.Exec(t.Context(), `INSERT INTO links (identity, url, site, first_seen)
		SELECT n::text, 'https://l.example/' || n, 'l.example', $1 FROM generate_series(1, 3) AS n`, now)
	require.NoError(t, err)
	for i, s := range []struct {
		did  string
		link int
		ago  time.Duration
	}{{"did:nostr:1", 1, time.Minute}, {"did:plc:1", 1, 2 * time.Hour}, {"did:nostr:1", 2, 2 * time.Hour},
		{"did:plc:1", 2, time.Minute}, {"did:plc:2", 3, time.Minute}} {
		_, err := pool.Exec(t.Context(), `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			VALUES ($1, 'c', $2, $3, $3, 'post', $4)`, s.did, fmt.Sprint(i), s.link, now.Add(-s.ago))
		require.NoError(t, err)
	}
	_, err = Count(t.Context(), pool, now)
	require.NoError(t, err)
	for _, few := range []int{0, 2000} {
		for network, want := range map[Network][]int64{BothNetworks: {3, 2, 1}, Bluesky: {3, 2}, Nostr: {1}} {
			for _, sort := range []Sort{Newest, Sharers, Speed} {
				p, err := trending(t.Context(), pool, Query{
					At: now, Window: time.Hour, Sort: sort, Network: network, Limit: 10, Bare: true,
				}, limits{pending: 5000, crossings: 5000, few: few, many: usualLimits().many})
				require.NoError(t, err)
				require.False(t, p.Recounted)
				var got []int64
				for _, l := range p.Links {
					got = append(got, l.ID)
				}
				require.ElementsMatch(t, want, got, "%s %s %d", network, sort, few)
			}
		}
	}
}

func TestParametersOfNetworks(t *testing.T) {
	t.Parallel()
	parse := func(name, text string) (Query, error) {
		return ParseQuery(func(n string) (string, bool) { return text, n == name }, Limits{50, 200})
	}
	for text, want := range map[string]Network{"both": BothNetworks, "bluesky": Bluesky, "nostr": Nostr} {
		q, err := parse("network", text)
		require.NoError(t, err)
		require.Equal(t, want, q.Network)
		require.Equal(t, string(want), q.Parameter("network", 50))
	}
	_, err := parse("network", "atproto")
	require.EqualError(t, err, `network is "atproto"`)
	for _, text := range []string{
		"npub1sn0wdenkukak0d9dfczzeacvhkrgz92ak56egt7vdgzn8pv2wfqqhrjdv9",
		"nostr:npub1sn0wdenkukak0d9dfczzeacvhkrgz92ak56egt7vdgzn8pv2wfqqhrjdv9",
	} {
		q, err := parse("by", text)
		require.NoError(t, err)
		require.Equal(t, "did:nostr:84dee6e676e5bb67b4ad4e042cf70cbd8681155db535942fcc6a0533858a7240", q.By)
	}
	for _, name := range []string{"by", "domain", "network", "window"} {
		_, err = parse(name, "NSEC1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5/")
		require.Error(t, err)
		require.NotContains(t, err.Error(), "vl029", "the error contains a secret key")
	}
}
