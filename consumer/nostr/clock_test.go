package nostr_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// databaseIsBehind sets the database's clock back by a day. The process's clock is the wrong one.
func (n *network) databaseIsBehind() {
	n.t.Helper()
	_, err := n.pool.Exec(n.t.Context(), `CREATE SCHEMA behind;
CREATE FUNCTION behind.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.clock_timestamp() - interval '1 day'$$;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, behind, pg_catalog', current_database()); END $$`)
	require.NoError(n.t, err)
	n.pool.Reset()
}

// TestPositionIsOfTheEarlierClock runs a process whose clock is a day ahead. With its clock, the
// next connection would request events of tomorrow.
func TestPositionIsOfTheEarlierClock(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 10, Relays: []simnet.NostrRelay{{Page: 500}}})
	n.databaseIsBehind()
	ahead := func() int {
		return n.count(`
SELECT count(*)
FROM streams
WHERE last_event_at > clock_timestamp() OR to_timestamp(cursor / 1e6) > clock_timestamp() OR caught_up_at > clock_timestamp()`)
	}
	n.Play(20)
	defer n.run(nil)()
	n.read()
	n.holds()
	require.Zero(t, ahead())
	before := n.count(`SELECT cursor FROM streams`)
	n.Play(20)
	n.holds()
	eventually.True(t, func() bool { return n.count(`SELECT cursor FROM streams`) > before }, 20*time.Millisecond)
	require.Zero(t, ahead())
}

// TestNothingExpiresByTheClockThatIsAhead shows that an event does not expire early. The older
// version, which it replaced, would be deleted for ever.
func TestNothingExpiresByTheClockThatIsAhead(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 10, Authors: 1, Relays: []simnet.NostrRelay{{Page: 500}}})
	n.databaseIsBehind()
	yesterday := time.Now().Add(-24 * time.Hour)
	for _, expires := range []time.Duration{-time.Hour, 6 * time.Hour} {
		name := []string{"d", expires.String()}
		n.Write(yesterday.Unix()-20, 30023, [][]string{name}, "older")
		n.Write(yesterday.Unix()-10, 30023, [][]string{name, {"expiration", strconv.FormatInt(yesterday.Add(expires).Unix(), 10)}}, "newer")
	}
	stop := n.run(nil)
	n.read()
	stop()
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records WHERE rkey = '6h0m0s' AND record ->> 'content' = 'newer'`))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM records`))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM tombstones WHERE rkey = '-1h0m0s'`))
	require.Equal(t, 1, n.count(`SELECT count(*) FROM tombstones`))
}
