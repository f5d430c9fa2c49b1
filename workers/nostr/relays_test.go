package nostr

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// backfilledFrom returns a network of relays, the first of which are configured, and a function
// that backfills the first author from all of them.
func backfilledFrom(
	t *testing.T, configured int, all ...simnet.NostrRelay,
) (n *simnet.Nostr, pool *pgxpool.Pool, backfill func(since time.Time) workers.Backfilled) {
	t.Helper()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 9, Authors: 1, Now: time.Now(), Relays: all})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	pool = schematest.New(t)
	r := reads(t, pool, n.URLs()[:configured], "nostr.1=0", "nostr.30023=0")
	return n, pool, func(since time.Time) workers.Backfilled {
		t.Helper()
		return backfillFirst(t, r, n, n.URLs()[configured:], since)
	}
}

// reads returns what reads these relays and stores these collections.
func reads(t *testing.T, pool *pgxpool.Pool, urls []string, collections ...string) *relays {
	t.Helper()
	stored, err := collection.Parse(collections, 96*time.Hour)
	require.NoError(t, err)
	v := &Variables{Relays: urls, AuthorRelays: 5, AuthorLoopback: true}
	log := slog.New(slog.DiscardHandler)
	r, err := v.relays(feature.Core{Registry: stored, Services: feature.Services{Pool: pool, Log: log, Metrics: prometheus.NewRegistry(),
		Requested: func(context.Context) (*consumer.Retry, error) {
			nothing := func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }
			return &consumer.Retry{
				Wires: map[string]consumer.Wire{}, Storage: consumer.Storage{Pool: pool, Enqueue: nothing, Wanted: stored.Stores, Logger: log},
			}, nil
		}}})
	require.NoError(t, err)
	return r
}

// backfillFirst backfills the first author.
func backfillFirst(t *testing.T, r *relays, n *simnet.Nostr, further []string, since time.Time) workers.Backfilled {
	t.Helper()
	key, _ := nostr.ParseKey(n.Key(0))
	require.NoError(t, directory.AddRelayHints(t.Context(), r.Pool, nostr.DID(key), append([]string{}, further...)))
	found, err := r.Backfill(t.Context(), nostr.DID(key), since)
	require.NoError(t, err)
	return found
}

// TestDeletedRepostStaysDeletedWhenRepostsAreStored covers a deletion request that arrived before
// reposts were stored, and that named an id without its kind.
func TestDeletedRepostStaysDeletedWhenRepostsAreStored(t *testing.T) {
	t.Parallel()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 9, Authors: 1, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}, {Page: 100}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	pool := schematest.New(t)
	now := time.Now().Unix()
	gone := n.WriteAs(0, []int{1}, now-20, 6, nil, "gone")
	n.WriteAs(0, []int{1}, now-20, 6, nil, "here")
	article := n.WriteAs(0, []int{1}, now-20, 30023, [][]string{{"d", "gone"}}, "gone")
	n.WriteAs(0, []int{0}, now-10, 5, [][]string{{"e", gone.ID}, {"a", "30023:" + article.Author + ":gone"}}, "")
	backfillFirst(t, reads(t, pool, n.URLs()[:1], "nostr.1=0"), n, nil, time.Unix(now-3600, 0))

	r := reads(t, pool, n.URLs()[1:], "nostr.1=0", "nostr.6=0", "nostr.30023=0")
	count := func(sql string) (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	require.Equal(t, 1, count(`SELECT count(*) FROM tombstones WHERE collection = 'nostr.*' AND deleted_at IS NULL`))
	backfillFirst(t, r, n, nil, time.Unix(now-3600, 0))
	require.Equal(t, 1, count(`SELECT count(*) FROM records WHERE record ->> 'content' = 'here'`))
	require.Equal(t, 1, count(`SELECT count(*) FROM records`))
}

// TestPastOfARelayIsReadInParts reads a kind of three relays, each some events at a time. Each part
// begins at the date at which the one before ended, also if a relay sends the oldest events first.
func TestPastOfARelayIsReadInParts(t *testing.T) {
	t.Parallel()
	for name, relay := range map[string]simnet.NostrRelay{
		"newest first": {Page: 20}, "no limit stated": {Page: 20, Silent: true}, "oldest first": {Page: 20, Oldest: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 9, Authors: 3, Now: time.Now(), Relays: []simnet.NostrRelay{relay}})
			require.NoError(t, err)
			t.Cleanup(n.Stop)
			pool := schematest.New(t)
			now := time.Now().Unix()
			for i := range 150 {
				n.WriteAs(i%3, nil, now-int64(i/4*3600), 7, nil, strconv.Itoa(i))
				n.WriteAs(i%3, nil, now-int64(i/4*3600), 1, nil, "of another kind")
			}
			relays := reads(t, pool, n.URLs(), "nostr.1=0", "nostr.7=0")
			past := workers.Past{Collection: "nostr.7", Includes: relays.Registry.Stores, Most: 40}
			written, parts := 0, 0
			for more := true; more; parts++ {
				require.Less(t, parts, 50)
				found, _, next, unread, err := relays.StreamPast(t.Context(), relays.Streams()[0], past)
				require.NoError(t, err)
				require.NoError(t, unread)
				require.Empty(t, found.Cut)
				written += found.Written
				past.Until, more = next, !next.IsZero()
			}
			require.Equal(t, 150, written)
			require.Greater(t, parts, 2)
		})
	}
}

// TestOldRequestsToDeleteAreReadBack covers old deletion requests: another relay may still have the
// events that they delete.
func TestOldRequestsToDeleteAreReadBack(t *testing.T) {
	t.Parallel()
	n, pool, backfill := backfilledFrom(t, 2, simnet.NostrRelay{Page: 100}, simnet.NostrRelay{Page: 100})
	month := time.Now().Add(-30 * 24 * time.Hour).Unix()
	n.WriteAs(0, []int{1}, month, 30023, [][]string{{"d", "gone"}}, "article")
	n.WriteAs(0, []int{1}, month, 30023, [][]string{{"d", "here"}}, "article")
	n.WriteAs(0, []int{0}, month+1, 5, [][]string{{"a", "30023:" + n.Key(0) + ":gone"}}, "")
	found := backfill(time.Now().Add(-24 * time.Hour))
	require.Empty(t, found.Cut)
	var left string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(rkey, ' ') FROM records`).Scan(&left))
	require.Equal(t, "here", left)
}

// TestCutBackfillSaysHowFarItWent shows that the reported time ignores dates that authors invent,
// and depends only on the events of the configured relays.
func TestCutBackfillSaysHowFarItWent(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-24 * time.Hour)
	for name, c := range map[string]struct {
		full int
		at   int64
	}{
		"a configured relay":                {0, time.Now().Unix() - 100},
		"a configured relay, the last date": {0, nostr.MaxCreatedAt},
		"a relay of the author":             {1, time.Now().Unix() - 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _, backfill := backfilledFrom(t, 1, simnet.NostrRelay{Page: 30}, simnet.NostrRelay{Page: 30})
			for i := range 40 { // the relay does not send all events of one second
				n.WriteAs(0, []int{c.full}, c.at, 1, [][]string{{"n", string(rune('a' + i))}}, "")
			}
			n.WriteAs(0, []int{1}, since.Unix()+1, 1, nil, "old")
			found := backfill(since)
			if c.full == 1 {
				require.Empty(t, found.Cut)
				return
			}
			require.NotEmpty(t, found.Cut)
			require.WithinRange(t, found.Oldest, time.Unix(min(c.at, time.Now().Add(-time.Minute).Unix()), 0), time.Now())
		})
	}
}

// TestNothingIsBackfilledAsExpiredByAClockThatIsAhead shows that an event does not expire early.
// The older version, which it replaced, would be deleted for ever.
func TestNothingIsBackfilledAsExpiredByAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	n, pool, backfill := backfilledFrom(t, 1, simnet.NostrRelay{Page: 100})
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA behind;
CREATE FUNCTION behind.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT pg_catalog.clock_timestamp() - interval '1 day'$$;
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, behind, pg_catalog', current_database()); END $$`)
	require.NoError(t, err)
	pool.Reset()
	expires := time.Now().Add(-18 * time.Hour).Unix()
	n.WriteAs(0, nil, expires-10, 30023, [][]string{{"d", "here"}, {"expiration", strconv.FormatInt(expires, 10)}}, "article")
	backfill(time.Now().Add(-48 * time.Hour))
	var records, tombstones int
	require.NoError(t, pool.QueryRow(t.Context(), `
SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM tombstones)`).Scan(&records, &tombstones))
	require.Equal(t, [2]int{1, 0}, [2]int{records, tombstones})
}

// TestSeenEventsAreNotVerifiedAgain covers the relays that authors name: they are read every five
// minutes, each time from an hour before.
func TestSeenEventsAreNotVerifiedAgain(t *testing.T) {
	t.Parallel()
	n, err := simnet.NewNostr(simnet.NostrConfig{Seed: 9, Authors: 1, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 100}}})
	require.NoError(t, err)
	t.Cleanup(n.Stop)
	pool := schematest.New(t)
	_, err = pool.Exec(t.Context(), `INSERT INTO watches (target) VALUES ('npub')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, "did:nostr:"+n.Key(0))
	require.NoError(t, err)
	asked := reads(t, pool, n.URLs(), "nostr.1=0")
	key, _ := nostr.ParseKey(n.Key(0))
	for round, want := range []int{3, 1, 0} {
		for i := range want {
			n.WriteAs(0, nil, time.Now().Unix()-int64(i), 1, nil, strconv.Itoa(10*round+i))
		}
		before := metric(t, asked, "weir_nostr_verified_events_total")
		written, unread, err := asked.Read(t.Context(), n.URLs()[0], [][32]byte{key}, time.Now().Add(-time.Hour), 100)
		require.NoError(t, err)
		require.NoError(t, unread)
		require.Equal(t, want, written)
		require.EqualValues(t, want, metric(t, asked, "weir_nostr_verified_events_total")-before, round)
	}
}

// metric returns the value of a counter; 0 if it does not exist yet.
func metric(t *testing.T, r *relays, name string) float64 {
	t.Helper()
	families, err := r.Metrics.(*prometheus.Registry).Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}
