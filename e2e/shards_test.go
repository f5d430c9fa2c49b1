package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// sharded is a network of which some accounts are followed, in several streams.
// Feeds are not read, so events that the streams lose stay lost.
type sharded struct {
	t        *testing.T
	net      *simnet.Net
	pool     *pgxpool.Pool
	env      []string
	followed []string
}

func newSharded(t *testing.T, followed int) *sharded {
	t.Helper()
	s := &sharded{t: t, net: network(t, 6000)}
	database := schematest.NewURL(t)
	s.pool = open(t, database)
	s.env = append(reads(s.net, database), "WEIR_START=tip", "WEIR_BATCH_INTERVAL=20ms")
	for _, a := range s.net.Accounts()[:followed] {
		s.followed = append(s.followed, a.DID)
	}
	s.exec(`INSERT INTO river_queue (name, paused_at, updated_at) VALUES ('backfill', now(), now()), ('network', now(), now())`)
	s.exec(`INSERT INTO watches (target) VALUES ('somebody.example')`)
	// A first registration would take every lease, those that the tests set too.
	s.exec(`INSERT INTO projections (name, collections, kind, queue, tables) VALUES ('links', '{app.bsky.feed.post,app.bsky.feed.repost}', 'process_posts', 'process', '{shares,subjects}')`)
	s.exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, unnest($1::text[])`, s.followed)
	return s
}

func (s *sharded) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

// share assigns the accounts as a process with this configuration would, before
// any runs.
func (s *sharded) share(mode string, accounts int) {
	s.t.Helper()
	require.NoError(s.t, schema.SetSharding(s.t.Context(), s.pool, "jetstream", "jetstream-v1", schema.Sharding{Mode: mode, Accounts: accounts}))
	require.NoError(s.t, pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := schema.AssignAccounts(s.t.Context(), tx, "jetstream", false)
		return err
	}))
}

// fromTheBeginning sets every stream's position so that a resume reads the history
// from its first event. Events from before the position verify the resume, since
// there is no anchor.
func (s *sharded) fromTheBeginning() {
	s.t.Helper()
	at := time.UnixMicro(s.net.Log().Entries()[0].TimeUS).Add(4 * time.Minute)
	s.exec(`UPDATE streams SET cursor_kind = 'time', last_event_at = $1, caught_up_at = $1`, at)
}

// start starts a process with this configuration.
func (s *sharded) start(mode string, accounts int) *process {
	s.t.Helper()
	return start(s.t, append(slices.Clone(s.env), "WEIR_SHARDING="+mode, fmt.Sprintf("WEIR_SHARD_ACCOUNTS=%d", accounts)), "serve")
}

// streams waits until this many streams are read.
func (s *sharded) streams(n int) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		streams, err := tryCount(s.pool, `SELECT count(*) FROM streams`)
		read, err2 := tryCount(s.pool, `SELECT count(*) FROM streams WHERE lease_expires_at > now() AND state IN ('live', 'quiet', 'catching up') AND cursor_kind <> ''`)
		return err == nil && err2 == nil && streams == n && read == n
	}, time.Minute, 10*time.Millisecond, "expected %d streams", n)
}

// differences compares the tables with the log of the accounts.
func (s *sharded) differences(dids []string) []string {
	s.t.Helper()
	wanted := map[string]bool{}
	for _, did := range dids {
		wanted[did] = true
	}
	entries := slices.DeleteFunc(s.net.Log().Entries(), func(e *simnet.Entry) bool { return !wanted[e.DID] })
	problems, err := fold(entries).problems(s.t.Context(), s.pool, time.Now().Truncate(time.Second).Add(time.Second).UTC())
	require.NoError(s.t, err)
	return problems
}

// equal waits until the tables equal the log of the accounts.
func (s *sharded) equal(dids []string) {
	s.t.Helper()
	problems := s.differences(dids)
	for until := time.Now().Add(time.Minute); len(problems) > 0 && time.Now().Before(until); problems = s.differences(dids) {
		select {
		case <-s.t.Context().Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	require.Empty(s.t, problems)
}

// of returns the accounts of a stream.
func (s *sharded) of(stream string) []string {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT did FROM stream_accounts WHERE stream = $1`, stream)
	require.NoError(s.t, err)
	dids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	return dids
}

// TestMovingAccountsLosesNothing: one stream is hours behind the others when the
// configuration of the next process moves its accounts.
//
// It fails without takeOver, and if takeOver uses the latest position.
func TestMovingAccountsLosesNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	type layout struct {
		mode     string
		accounts int
		streams  int
	}
	network := layout{schema.ShardsNetwork, 25, 1}
	for name, c := range map[string]struct {
		before, after layout
		behind        string // the stream that is behind
	}{
		"shards become the network":  {layout{schema.ShardsAlways, 25, 4}, network, "jetstream-3"},
		"the network becomes shards": {network, layout{schema.ShardsAlways, 25, 4}, "jetstream"},
		"shards are merged":          {layout{schema.ShardsAlways, 20, 5}, layout{schema.ShardsAuto, 60, 2}, "jetstream-5"},
		"shards are split":           {layout{schema.ShardsAlways, 50, 2}, layout{schema.ShardsAuto, 12, 9}, "jetstream-2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSharded(t, 100)
			s.share(c.before.mode, c.before.accounts)
			s.fromTheBeginning()
			s.exec(`UPDATE streams SET lease_owner = 'somebody dead', lease_expires_at = now() + interval '1 hour' WHERE name = $1`, c.behind)
			late := s.of(c.behind)
			first := s.start(c.before.mode, c.before.accounts)
			s.equal(slices.DeleteFunc(slices.Clone(s.followed), func(did string) bool { return slices.Contains(late, did) }))
			require.NotEmpty(t, s.differences(s.followed), "the test needs events to lose")
			require.Equal(t, c.before.streams, count(t, s.pool, `SELECT count(*) FROM streams`))
			first.kill()
			s.exec(`UPDATE streams SET lease_expires_at = now() - interval '1 second'`)
			second := s.start(c.after.mode, c.after.accounts)
			s.streams(c.after.streams)
			s.equal(s.followed)
			require.Zero(t, count(t, s.pool, `SELECT count(*) FROM gaps`))
			second.signal(syscall.SIGTERM)
			require.Zero(t, second.wait(t, time.Minute))
			require.Equal(t, c.after.streams, count(t, s.pool, `SELECT count(*) FROM streams`))
			require.Zero(t, count(t, s.pool, `SELECT count(*) FROM streams WHERE lease_owner IS NOT NULL`), "each lease is given back")
			require.Zero(t, count(t, s.pool, `SELECT count(*) FROM streams WHERE state <> 'stopped'`), "and says so")
		})
	}
}

// TestMovingAccountsWhileTheyPost, from one layout to the next, with and without a
// kill. A process with another configuration starts beside the running one, and
// both use the new configuration.
func TestMovingAccountsWhileTheyPost(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	s := newSharded(t, 100)
	s.share(schema.ShardsAlways, 25)
	s.fromTheBeginning()
	stop := live(t, s.net, 500)
	defer stop()
	var last *process
	for i, c := range []struct {
		mode              string
		accounts, streams int
	}{
		{schema.ShardsAlways, 25, 4}, {schema.ShardsNetwork, 25, 1}, {schema.ShardsAuto, 12, 9}, {schema.ShardsAlways, 60, 2},
		{schema.ShardsAuto, 5, 1}, {schema.ShardsAlways, 10, 10}, {schema.ShardsAuto, 1000, 1},
	} {
		if last != nil && i%2 == 0 {
			last.kill()
		}
		said := len(s.net.FilterSizes())
		next := s.start(c.mode, c.accounts)
		s.streams(c.streams)
		posts := count(t, s.pool, `SELECT count(*) FROM posts`)
		require.Eventually(t, func() bool { return count(t, s.pool, `SELECT count(*) FROM posts`) > posts+20 }, time.Minute, 10*time.Millisecond)
		if last != nil && i%2 == 1 { // it uses the new layout
			require.NotContains(t, last.stderr.String(), `"level":"ERROR"`)
			last.kill()
			s.streams(c.streams)
		}
		if i == 0 { // the first layout is that of the configuration
			require.NotContains(t, s.net.FilterSizes()[said:], 0, "a stream requested the whole network")
			require.LessOrEqual(t, slices.Max(s.net.FilterSizes()[said:]), c.accounts)
		}
		last = next
	}
	stop()
	s.equal(s.followed)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM gaps`))
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM streams`))
	last.signal(syscall.SIGTERM)
	require.Zero(t, last.wait(t, time.Minute))
	require.Empty(t, s.differences(s.followed))
}

// TestShardsComeAndGoInARunningProcess, and the page shows the current ones.
func TestShardsComeAndGoInARunningProcess(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := followNetwork(t, 30)
	database := schematest.NewURL(t)
	pool := open(t, database)
	s := &sharded{t: t, net: n, pool: pool}
	hub := n.Hub()
	env := append(follower(n, database), "WEIR_WATCH="+hub.Handle, "WEIR_SHARD_ACCOUNTS=30")
	serve := start(t, env, "serve")
	page := serve.page(t)
	require.Eventually(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM stream_accounts WHERE stream = 'jetstream'`) == 30
	}, time.Minute, 10*time.Millisecond)
	s.streams(1)
	stop := live(t, n, 300)
	defer stop()

	// One more account: its past from its feed, its new posts from another stream.
	someone := stranger(t, n, 5)
	dials := len(n.FilterSizes())
	require.NoError(t, n.Follow(hub.DID, someone))
	succeed(t, env, "watch", "sync")
	s.streams(2)
	require.Equal(t, []string{someone}, s.of("jetstream-2"))
	require.Equal(t, []int{1}, n.FilterSizes()[dials:], "other streams reconnected")
	require.Eventually(t, func() bool {
		return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND feed_read_at IS NOT NULL`, someone)) == 1
	}, time.Minute, 20*time.Millisecond)
	html, err := get(page)
	require.NoError(t, err)
	require.Contains(t, html, "jetstream-2")
	stop()
	settled(t, pool)
	all := append(n.Follows(hub.DID)[:0:0], someone)
	mine := func() []string {
		return slices.DeleteFunc(stored(t, pool), func(post string) bool { return !strings.HasPrefix(post, someone+"/") })
	}
	require.Eventually(t, func() bool { return slices.Equal(current(n, all), mine()) }, time.Minute, 50*time.Millisecond, "posts are missing or doubled")

	// The first stream takes it over when it has room, and the shard is removed.
	for _, did := range n.Follows(hub.DID)[1:10] {
		if did != someone {
			require.NoError(t, n.Unfollow(hub.DID, did))
		}
	}
	succeed(t, env, "watch", "sync")
	s.streams(1)
	require.Contains(t, s.of("jetstream"), someone)
	_, err = n.PostNow(someone, "from the first stream")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return slices.Equal(current(n, all), mine()) }, time.Minute, 50*time.Millisecond)
	html, err = get(page)
	require.NoError(t, err)
	require.NotContains(t, html, "jetstream-2")
	require.NotContains(t, html, "No consumer is running")
	require.NotContains(t, n.FilterSizes(), 0, "a stream requested the whole network")
	require.NotContains(t, serve.stderr.String(), "ERROR")
	serve.signal(syscall.SIGTERM)
	require.Zero(t, serve.wait(t, time.Minute))
}

// stranger is an account that the hub does not follow, with this many posts.
func stranger(t *testing.T, n *simnet.Net, posts int) string {
	t.Helper()
	followed := n.Follows(n.Hub().DID)
	for _, a := range n.Accounts() {
		if !slices.Contains(followed, a.DID) && a.DID != n.Hub().DID && a.Status == "" && len(current(n, []string{a.DID})) > posts {
			return a.DID
		}
	}
	require.Fail(t, "every account is followed")
	return ""
}

// TestProcessesShareTheShards: each lease has one holder; after a kill the
// surviving process takes all of them.
func TestProcessesShareTheShards(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	s := newSharded(t, 100)
	s.share(schema.ShardsAlways, 20)
	s.fromTheBeginning()
	var processes []*process
	for range 3 {
		processes = append(processes, s.start(schema.ShardsAlways, 20))
	}
	s.streams(5)
	stop := live(t, s.net, 500)
	for _, p := range processes[:2] {
		p.kill()
		s.streams(5)
	}
	stop()
	s.equal(s.followed)
	require.Equal(t, 1, count(t, s.pool, `SELECT count(DISTINCT lease_owner) FROM streams`))
}
