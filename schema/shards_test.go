package schema_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// followed is a database whose followed accounts are divided among streams.
type followed struct {
	t      *testing.T
	pool   *pgxpool.Pool
	oldest bool
}

func newFollowed(t *testing.T, mode string, accounts int) *followed {
	t.Helper()
	f := &followed{t: t, pool: schematest.New(t)}
	f.exec(`INSERT INTO watches (target) VALUES ('somebody.example')`)
	f.set(mode, accounts)
	return f
}

func (f *followed) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.pool.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

func (f *followed) set(mode string, accounts int) {
	f.t.Helper()
	require.NoError(f.t, schema.SetSharding(f.t.Context(), f.pool, "s", "wire", schema.Sharding{Mode: mode, Accounts: accounts}))
}

// follow follows the accounts with the numbers from one to another.
func (f *followed) follow(from, to int) {
	f.t.Helper()
	f.exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, 'did:plc:' || to_char(n, 'FM00000') FROM generate_series($1::int, $2::int) AS n ON CONFLICT DO NOTHING`, from, to)
}

func (f *followed) unfollow(from, to int) {
	f.t.Helper()
	f.exec(`DELETE FROM watch_members WHERE did BETWEEN 'did:plc:' || to_char($1::int, 'FM00000') AND 'did:plc:' || to_char($2::int, 'FM00000')`, from, to)
}

// share assigns the accounts and returns the stream of each. It checks the invariants.
func (f *followed) share() (all []schema.Shard, at map[string]string) {
	f.t.Helper()
	require.NoError(f.t, pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) (err error) {
		all, err = schema.AssignAccounts(f.t.Context(), tx, "s", f.oldest)
		return err
	}))
	at = map[string]string{}
	for i, one := range all {
		require.Equal(f.t, i == 0, one.Stream == "s")
		require.True(f.t, i == 0 || len(one.DIDs) > 0, "%s has nobody", one.Stream)
		for _, did := range one.DIDs {
			require.Empty(f.t, at[did], "%s is in two streams", did)
			at[did] = one.Stream
		}
	}
	now, err := schema.FollowedAccounts(f.t.Context(), f.pool)
	require.NoError(f.t, err)
	require.Len(f.t, at, len(now.DIDs))
	for _, did := range now.DIDs {
		require.NotEmpty(f.t, at[did], "%s is in no stream", did)
	}
	rows, err := f.pool.Query(f.t.Context(), `SELECT name FROM streams WHERE name = 's' OR root = 's'`)
	require.NoError(f.t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(f.t, err)
	require.Len(f.t, all, len(names), "a row for each, and none for those that are gone")
	return all, at
}

// sizes returns the number of accounts of each stream.
func sizes(all []schema.Shard) map[string]int {
	n := map[string]int{}
	for _, one := range all {
		n[one.Stream] = len(one.DIDs)
	}
	return n
}

// position sets the position of a stream, in minutes after noon.
func (f *followed) position(stream string, minutes int) {
	f.t.Helper()
	f.exec(`UPDATE streams SET host = 'h', cursor_kind = 'seq', cursor = 5, anchor = '{}', filter_hash = 'f', last_event_at = $2, caught_up_at = $2 WHERE name = $1`, stream, past(minutes))
}

// past returns a time in minutes after noon.
func past(minutes int) time.Time {
	return time.Date(2026, 7, 4, 12, minutes, 0, 0, time.UTC)
}

func (f *followed) lease(stream string) schema.Lease {
	f.t.Helper()
	lease, ok, err := schema.TakeShard(f.t.Context(), f.pool, stream, "me", ttl)
	require.NoError(f.t, err)
	require.True(f.t, ok)
	return lease
}

// TestOneMoreAccountMovesNoOther, even above the limit of a stream.
func TestOneMoreAccountMovesNoOther(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAuto, 100)
	f.follow(1, 100)
	all, before := f.share()
	require.Equal(t, map[string]int{"s": 100}, sizes(all))
	f.position("s", 0)
	lease := f.lease("s")
	f.follow(101, 101)
	all, after := f.share()
	require.Equal(t, map[string]int{"s": 100, "s-2": 1}, sizes(all))
	for did, stream := range before {
		require.Equal(t, stream, after[did])
	}
	require.NoError(t, renew(t, f.pool, lease), "the first stream goes on")
	f.follow(102, 150)
	f.unfollow(1, 3) // three places in the first
	f.follow(151, 153)
	all, _ = f.share()
	require.Equal(t, map[string]int{"s": 100, "s-2": 50}, sizes(all), "the fullest is filled first")
	require.NoError(t, renew(t, f.pool, lease))
	_, err := f.pool.Exec(t.Context(), `CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'written'; END $$;
		CREATE TRIGGER no AFTER INSERT OR UPDATE OR DELETE ON stream_accounts FOR EACH STATEMENT EXECUTE FUNCTION no()`)
	require.NoError(t, err)
	f.share() // nothing changed: nothing is written, and nobody is notified
}

// TestAssignmentInvariants: accounts come and go and the limits change.
func TestAssignmentInvariants(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAlways, 10)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	mode, limit := schema.ShardsAlways, 10
	var before map[string]string
	for step := range 80 {
		what := fmt.Sprintf("seed %d, step %d", seed, step)
		from := rng.IntN(300)
		changed := false
		switch rng.IntN(5) {
		case 0, 1:
			f.follow(from, from+rng.IntN(60))
		case 2, 3:
			f.unfollow(from, from+rng.IntN(60))
		case 4:
			mode = []string{schema.ShardsAlways, schema.ShardsAlways, schema.ShardsAuto, schema.ShardsNetwork}[rng.IntN(4)]
			limit = []int{1, 5, 10, 37, 1000}[rng.IntN(5)]
			f.set(mode, limit)
			changed = true
		}
		all, at := f.share()
		network := mode == schema.ShardsNetwork || mode == schema.ShardsAuto && len(at) > schema.AutoShards*limit
		back := mode == schema.ShardsAuto && len(all) == 1 // it may still be on the way back to shards
		for _, one := range all {
			require.Equal(t, len(one.DIDs) > limit, one.Network, what)
			require.True(t, len(one.DIDs) <= limit || network || back, "%s: %v with %d at most", what, sizes(all), limit)
		}
		require.True(t, !network || len(all) == 1, what)
		require.LessOrEqual(t, len(all), 2+len(at)*10/(limit*9), "%s: %d accounts, %d at most in one: %v", what, len(at), limit, sizes(all))
		again, still := f.share()
		require.Equal(t, at, still, what)
		require.Len(t, again, len(all))
		stay := mode == schema.ShardsAlways && !changed
		for _, stream := range before {
			stay = stay && slices.ContainsFunc(all, func(one schema.Shard) bool { return one.Stream == stream })
		}
		for did, stream := range before {
			require.True(t, !stay || at[did] == "" || at[did] == stream, "%s: %s moved without need", what, did)
		}
		before = at
	}
}

// TestConsumersAreNotifiedOfSharding, wherever they run.
func TestConsumersAreNotifiedOfSharding(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAlways, 10)
	conn, err := f.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `LISTEN `+schema.FollowsChannel)
	require.NoError(t, err)
	f.set(schema.ShardsNetwork, 10)
	told, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = conn.Conn().WaitForNotification(told)
	require.NoError(t, err)
}

// TestSmallChangesMoveNoAccounts: accounts do not move back and forth.
func TestSmallChangesMoveNoAccounts(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAuto, 100)
	for _, n := range []int{schema.AutoShards * 100, 150} {
		f.unfollow(0, 99999)
		f.follow(1, n)
		_, before := f.share()
		f.unfollow(1, 4)
		f.follow(n+1, n+4)
		_, after := f.share()
		for did, stream := range before {
			require.True(t, after[did] == "" || after[did] == stream)
		}
	}
	f.unfollow(0, 99999)
	f.follow(1, 110)
	all, _ := f.share()
	require.Len(t, all, 2)
	f.unfollow(1, 15) // 95 are left: five more would be too many again
	all, _ = f.share()
	require.Len(t, all, 2)
	f.unfollow(1, 20)
	all, _ = f.share()
	require.Equal(t, map[string]int{"s": 90}, sizes(all))

	f.follow(1, schema.AutoShards*100+1)
	all, _ = f.share()
	require.Len(t, all, 1)
	require.True(t, all[0].Network, "too many shards for auto")
	f.unfollow(1, 50)
	all, _ = f.share()
	require.Len(t, all, 1)
	f.unfollow(1, 101)
	all, _ = f.share()
	require.Len(t, all, 9)
	require.False(t, all[0].Network)
}

// TestStreamThatTakesOverAccountsMovesBack to the earliest position of
// the others, in the transaction that ends its lease.
func TestStreamThatTakesOverAccountsMovesBack(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAlways, 100)
	f.follow(1, 250)
	all, _ := f.share()
	require.Equal(t, map[string]int{"s": 100, "s-2": 100, "s-3": 50}, sizes(all))
	for stream, minutes := range map[string]int{"s": 30, "s-2": 20, "s-3": 40} {
		f.position(stream, minutes)
	}
	f.exec(`UPDATE streams SET caught_up_at = $1, written_at = $2 WHERE name = 's-2'`, past(50), past(15))
	f.exec(`UPDATE streams SET anchors = '{1,2}'`)
	leases := map[string]schema.Lease{"s": f.lease("s"), "s-2": f.lease("s-2"), "s-3": f.lease("s-3")}
	f.set(schema.ShardsNetwork, 100)
	all, _ = f.share()
	require.Equal(t, map[string]int{"s": 250}, sizes(all))
	require.True(t, all[0].Network)
	for stream, lease := range leases {
		_, err := apply(t.Context(), f.pool, lease, schema.Batch{})
		require.ErrorIs(t, err, schema.ErrFenced, stream)
		_, ok, err := schema.TakeShard(t.Context(), f.pool, stream, "me", ttl)
		require.NoError(t, err)
		require.Equal(t, stream == "s", ok, stream)
	}
	at := f.lease("s").Position
	require.Equal(t, "time", at.CursorKind)
	require.Equal(t, past(20).UnixMicro(), at.Cursor)
	require.True(t, past(20).Equal(at.LastEvent))
	require.True(t, past(30).Equal(at.CaughtUp), "the earliest moment that all were complete up to")
	require.Nil(t, at.Anchor)
	require.Zero(t, at.Anchors, "they are of accounts that it may not have")
	require.Equal(t, 5*time.Minute, at.Lag(), "the longest of them")
	require.False(t, at.Quiet)

	// And back: new shards begin where the first stream stands, under new names.
	f.position("s", 55)
	lease := f.lease("s")
	f.set(schema.ShardsAlways, 100)
	all, _ = f.share()
	require.Equal(t, map[string]int{"s": 100, "s-4": 100, "s-5": 50}, sizes(all))
	for _, stream := range []string{"s-4", "s-5"} {
		at := f.lease(stream).Position
		require.True(t, past(55).Equal(at.LastEvent))
		require.Equal(t, "time", at.CursorKind)
	}
	require.NoError(t, renew(t, f.pool, lease), "who only gives accounts away goes on")

	// No watch is left: the network is followed, from the position of the shards.
	f.position("s", 56)
	f.position("s-4", 10)
	f.exec(`DELETE FROM watches`)
	all, _ = f.share()
	require.Len(t, all, 1)
	require.True(t, all[0].Everyone && all[0].Network)
	require.True(t, past(10).Equal(f.lease("s").Position.LastEvent))
}

// TestStreamThatReadNothing holds nobody back when it would begin at the tip; it
// takes who has its accounts back to the oldest event when that is the start.
func TestStreamThatReadNothing(t *testing.T) {
	t.Parallel()
	for _, oldest := range []bool{false, true} {
		f := newFollowed(t, schema.ShardsAlways, 10)
		f.oldest = oldest
		f.follow(1, 15)
		f.share()
		require.Empty(t, f.lease("s-2").Position.CursorKind, "it starts where the first one does")
		f.position("s", 7)
		f.follow(16, 35)
		all, _ := f.share()
		require.Len(t, all, 4)
		require.True(t, past(7).Equal(f.lease("s-4").Position.LastEvent), "new accounts")
		f.set(schema.ShardsNetwork, 10)
		f.share()
		at := f.lease("s").Position
		require.Equal(t, oldest, at.CursorKind == "")
		require.True(t, oldest || past(7).Equal(at.LastEvent))
	}
}

// TestRootsDivideTheirAccountsSeparately: two Weirs, or an old and a
// new one side by side.
func TestRootsDivideTheirAccountsSeparately(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAlways, 10)
	f.follow(1, 25)
	f.exec(`INSERT INTO streams (name, wire) VALUES ('s-2', 'somebody else''s')`)
	require.NoError(t, schema.SetSharding(t.Context(), f.pool, "other", "wire", schema.Sharding{Mode: schema.ShardsNetwork, Accounts: 10}))
	share := func(root string) (all []schema.Shard) {
		require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) (err error) {
			all, err = schema.AssignAccounts(t.Context(), tx, root, false)
			return err
		}))
		return all
	}
	for range 2 {
		require.Equal(t, map[string]int{"s": 10, "s-3": 10, "s-4": 5}, sizes(share("s")))
		require.Equal(t, map[string]int{"other": 25}, sizes(share("other")))
	}
	_, err := f.pool.Exec(t.Context(), `DELETE FROM streams WHERE name = 's'`)
	require.NoError(t, err)
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := schema.AssignAccounts(t.Context(), tx, "s", false)
		return err
	}), schema.ErrNoRows)
	require.Equal(t, map[string]int{"other": 25}, sizes(share("other")))
}

// TestGapOfAShardConcernsItsAccounts, and those that moved since.
func TestGapOfAShardConcernsItsAccounts(t *testing.T) {
	t.Parallel()
	f := newFollowed(t, schema.ShardsAlways, 10)
	f.follow(1, 25)
	f.share()
	gap := func(stream string) (concerned []string) {
		var id int64
		require.NoError(t, f.pool.QueryRow(t.Context(), `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
			VALUES ($1, now() - interval '1 hour', now() - random() * interval '10 minutes', 'a test', clock_timestamp()) RETURNING id`, stream).Scan(&id))
		return f.start(id)
	}
	require.NoError(t, schema.SetSharding(t.Context(), f.pool, "other", "wire", schema.Sharding{Mode: schema.ShardsNetwork, Accounts: 10}))
	require.NoError(t, pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := schema.AssignAccounts(t.Context(), tx, "other", false)
		return err
	}))
	of := func(stream string) []string {
		all, _ := f.share()
		return all[slices.IndexFunc(all, func(one schema.Shard) bool { return one.Stream == stream })].DIDs
	}
	require.Equal(t, of("s-2"), gap("s-2"))
	require.Equal(t, of("s"), gap("s"))
	require.Len(t, gap("of no shard"), 25)

	// Half of the accounts of a shard move after its gap opened, before it is looked at.
	var id int64
	require.NoError(t, f.pool.QueryRow(t.Context(), `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s-2', now() - interval '1 hour', now(), 'a test', clock_timestamp()) RETURNING id`).Scan(&id))
	before := of("s-2")
	f.set(schema.ShardsAlways, 5)
	all, _ := f.share()
	require.Equal(t, map[string]int{"s": 5, "s-2": 5, "s-3": 5, "s-4": 5, "s-5": 5}, sizes(all))
	concerned := f.start(id)
	require.Subset(t, concerned, before)
	require.NotContains(t, concerned, of("s")[0], "who was elsewhere before")
}

func (f *followed) start(gap int64) (concerned []string) {
	f.t.Helper()
	require.NoError(f.t, pgx.BeginFunc(f.t.Context(), f.pool, func(tx pgx.Tx) error {
		started, _, err := schema.StartGap(context.WithoutCancel(f.t.Context()), tx, gap, time.Now())
		concerned = started.DIDs
		return err
	}))
	return concerned
}
