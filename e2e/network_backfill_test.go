package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// archivedNetwork is a simulated network whose server has an archive of small blocks.
func archivedNetwork(t *testing.T, history int, ended time.Duration) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 12, Accounts: 100, Follows: 10, History: history, HistorySpan: time.Hour,
		Start:   time.Now().Add(-ended),
		Serving: simnet.Serving{Archive: &simnet.Archive{BlockEvents: 100, SegmentBlocks: 5, Key: "the archive's key"}}})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

// backfillsDue makes network backfills continue that wait for the archive to seal more.
func backfillsDue(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(),
		`UPDATE river_job SET scheduled_at = now(), state = 'available' WHERE kind = 'backfill_network' AND state = 'scheduled'`)
	require.NoError(t, err)
}

// equalsLog waits until the tables equal the log, apart from the gaps.
func equalsLog(t *testing.T, pool *pgxpool.Pool, n *simnet.Net) {
	t.Helper()
	var problems []string
	eventually.True(t, func() bool {
		var err error
		problems, err = fold(n.Log().Entries()).problems(t.Context(), pool, time.Now().Truncate(time.Second).Add(time.Second).UTC())
		problems = slices.DeleteFunc(problems, func(problem string) bool { return strings.HasPrefix(problem, "gaps: ") })
		return err == nil && len(problems) == 0
	}, 500*time.Millisecond, "%v", &problems)
}

// TestGapOfTheWholeNetworkIsReadFromTheArchive loses an hour of the whole network: the process is
// down, and the server drops what it had. The archive has it, apart from the newest blocks. While the
// gap is read, the server restarts twice, once with other numbers, rewrites its segments and damages
// blocks, and the process is killed. The gap is then exactly the rest, and closes when the archive
// has sealed it. Nothing is missing. The key of the archive is in no log.
//
// The test fails if the position moves before the events are stored, if a plan is continued by
// numbers after the renumbering, or if the gap closes before the archive has all of it.
func TestGapOfTheWholeNetworkIsReadFromTheArchive(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := archivedNetwork(t, 500, time.Hour)
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(reads(n, database), "WEIR_JETSTREAM_KEY=the archive's key", "WEIR_API_INTERVAL=50ms", "WEIR_BATCH_EVENTS=300")
	first := start(t, env, "serve")
	readsAll(t, pool, n)
	first.kill()

	const chunks = 40
	for i := range chunks { // an hour, until five minutes ago
		n.Travel(-time.Hour + time.Duration(i)*55*time.Minute/chunks)
		n.Play(100)
		if i == chunks-4 {
			n.SealArchive()
		}
	}
	require.NoError(t, n.Do(simnet.TooOld))
	n.SpoilBlocks(simnet.FlippedBit, 2)
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: "network.bsky.jetstream.getBlock", After: 5, Count: 2}))
	second := start(t, env, "serve")
	rescued(t, pool, first)
	eventually.True(t, func() bool { return n.Log().Last() != nil && len(n.FilterSizes()) > 1 }, 20*time.Millisecond)
	n.Travel(-5 * time.Minute)
	n.Play(100) // the gap ends where the stream goes on
	read := func(events int) {
		t.Helper()
		eventually.True(t, func() bool { return count(t, pool, `SELECT coalesce(sum(events), 0) FROM network_backfills`) >= events },
			10*time.Millisecond, "%s", &second.stderr)
	}
	require.NoError(t, n.Do(simnet.Renumber))
	n.CompactArchive()
	read(1)
	require.NoError(t, n.Do(simnet.Restart))
	second.kill()
	third := start(t, env, "serve")
	rescued(t, pool, second)

	eventually.True(t, func() bool {
		backfillsDue(t, pool)
		return count(t, pool, `SELECT count(*) FROM network_backfills WHERE problem LIKE 'the newest events%'`) == 1
	}, 100*time.Millisecond, "%s", &third.stderr)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM gaps AS g JOIN network_backfills AS b ON b.gap_id = g.id
		WHERE g.closed_at IS NULL AND g.problem = '' AND g.from_at = b.read_to - interval '1 minute'
		    AND g.from_at > b.from_at + interval '40 minutes'`), "the gap is what is left")

	n.Travel(0)
	n.Play(100)
	n.SealArchive()
	eventually.True(t, func() bool {
		backfillsDue(t, pool)
		return count(t, pool, `
			SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND how_closed LIKE 'the interval was read from the archive of 127.0.0.1:%'`) == 1
	}, 100*time.Millisecond, "%s", &third.stderr)
	equalsLog(t, pool, n)
	require.Equal(t, 2, n.ArchiveFired()[simnet.FlippedBit])
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Contains(t, succeed(t, env, "backfill", "status"), "network: complete, 100 % of ")
	for _, p := range []*process{first, second, third} {
		require.NotContains(t, p.stderr.String(), "the archive's key")
	}
}

// TestGapClosesThoughNobodyWrites loses half an hour of the whole network. The archive misses a block for a while,
// which is requested again after seconds. Nobody writes after the stream has resumed, so the archive never has
// anything later than the gap. The gap closes when the end of it is sealed, and not before.
//
// The test fails if a gap needs something later in the archive, or if it closes before its end is sealed.
func TestGapClosesThoughNobodyWrites(t *testing.T) {
	t.Parallel()
	n := archivedNetwork(t, 300, time.Hour)
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(reads(n, database), "WEIR_JETSTREAM_KEY=the archive's key", "WEIR_API_INTERVAL=1ms", "WEIR_QUIET_AFTER=1s")
	first := start(t, env, "serve")
	readsAll(t, pool, n)
	first.kill()
	for i := range 6 {
		n.Travel(time.Duration(5*i-50) * time.Minute)
		n.Play(100)
	}
	require.NoError(t, n.Do(simnet.TooOld))
	n.SpoilBlocks(simnet.BlockAbsent, 15) // five times the three that are requested at once
	second := start(t, env, "serve")
	rescued(t, pool, first)
	eventually.True(t, func() bool { return len(n.FilterSizes()) > 1 }, 20*time.Millisecond)
	n.Travel(-5 * time.Minute)
	n.Play(300) // the gap ends here
	eventually.True(t, func() bool {
		return count(t, pool, `
			SELECT count(*) FROM network_backfills AS b JOIN river_job AS j ON j.kind = 'backfill_network'
			WHERE b.problem LIKE '%BlockNotFound%' AND b.unread_since IS NOT NULL AND j.scheduled_at < now() + interval '10 s'`) == 1
	}, 20*time.Millisecond, "%s", &second.stderr)
	page := measured(t, second.opsURL(t), "")
	require.Contains(t, page, "\nweir_network_backfills_open 1\n")
	require.Regexp(t, `\nweir_network_backfill_left_seconds [1-9]`, page)
	require.Regexp(t, `\nweir_network_backfill_unread_seconds [0-9.]*[1-9]`, page)
	eventually.True(t, func() bool {
		return count(t, pool, `
			SELECT count(*) FROM network_backfills
			WHERE problem LIKE 'the newest events%' AND unread_since IS NULL AND events > 0 AND completed_at IS NULL`) == 1
	}, 20*time.Millisecond, "%s", &second.stderr)
	readsAll(t, pool, n)
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM streams WHERE caught_up_at > now() - interval '1 min'`) == 1
	},
		20*time.Millisecond, "%s", &second.stderr)
	planned := len(n.Calls("network.bsky.jetstream.listSegments"))
	eventually.True(t, func() bool { // it has been tried since, to its end
		backfillsDue(t, pool)
		return len(n.Calls("network.bsky.jetstream.listSegments")) > planned+1
	}, 20*time.Millisecond)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM gaps WHERE closed_at IS NULL`), "its end is not sealed")
	n.SealArchive()
	eventually.True(t, func() bool {
		backfillsDue(t, pool)
		return count(t, pool, `
			SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND how_closed LIKE 'the interval was read from the archive of 127.0.0.1:%'`) == 1
	}, 100*time.Millisecond, "%s", &second.stderr)
	equalsLog(t, pool, n)
	require.Contains(t, measured(t, second.opsURL(t), ""), "\nweir_network_backfills_open 0\n")
}

// TestRequestedBackfillEndsThoughNobodyWrites requests the past of a network in which nobody writes any more. The
// backfill is complete when the last event is sealed, and not before.
//
// The test fails if a requested backfill needs something later in the archive.
func TestRequestedBackfillEndsThoughNobodyWrites(t *testing.T) {
	t.Parallel()
	n := archivedNetwork(t, 600, time.Hour)
	n.SealArchive()
	n.Travel(-5 * time.Minute)
	n.Play(100) // it is not sealed
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(reads(n, database), "WEIR_JETSTREAM_KEY=the archive's key", "WEIR_API_INTERVAL=1ms", "WEIR_QUIET_AFTER=1s")
	p := start(t, env, "serve")
	readsAll(t, pool, n)
	_, err := pool.Exec(t.Context(), `SELECT enqueue_network_backfill(interval '2 hours')`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `UPDATE network_backfills SET to_at = to_at - interval '2 min'`) // as if it was two minutes ago
	require.NoError(t, err)
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM streams WHERE caught_up_at > (SELECT to_at + interval '1 min' FROM network_backfills)`) == 1
	}, 20*time.Millisecond, "%s", &p.stderr)
	planned := len(n.Calls("network.bsky.jetstream.listSegments"))
	eventually.True(t, func() bool { // it has been tried since, to its end
		backfillsDue(t, pool)
		return len(n.Calls("network.bsky.jetstream.listSegments")) > planned+1
	}, 20*time.Millisecond, "%s", &p.stderr)
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM network_backfills WHERE problem LIKE 'the newest events%' AND events > 0 AND completed_at IS NULL`))
	n.SealArchive()
	eventually.True(t, func() bool {
		backfillsDue(t, pool)
		return count(t, pool, `SELECT count(*) FROM network_backfills WHERE completed_at IS NOT NULL`) == 1
	}, 100*time.Millisecond, "%s", &p.stderr)
	equalsLog(t, pool, n)
}

// TestEmptyDatabaseIsFilledWithThePast reads live events into an empty database, and what the archive
// has of the past behind them. What was deleted or edited meanwhile stays so.
//
// The test fails if a backfill overwrites newer revisions, or does not obey tombstones.
func TestEmptyDatabaseIsFilledWithThePast(t *testing.T) {
	t.Parallel()
	n := archivedNetwork(t, 1500, 0)
	n.SealArchive()
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(reads(n, database), "WEIR_JETSTREAM_KEY=the archive's key", "WEIR_API_INTERVAL=1ms", "WEIR_START=tip")
	p := start(t, env, "serve")
	eventually.True(t, func() bool { return len(n.FilterSizes()) > 0 }, 20*time.Millisecond)
	// some of it edits and deletes what is in the archive
	n.Play(600)
	// it began with a time
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM streams WHERE cursor_kind = 'seq'`) == 1 },
		20*time.Millisecond)
	readsAll(t, pool, n)
	require.Positive(t, count(t, pool, `SELECT count(*) FROM tombstones`))
	require.Contains(t, succeed(t, env, "backfill", "network", "--since", "2h", "--collections", "app.bsky.feed.post,app.bsky.feed.repost"),
		"backfill of the network requested (job ")
	_, stderr, code := weir(t, env, "backfill", "network", "--collections", "com.example.unknown")
	require.NotZero(t, code)
	require.Contains(t, stderr, "com.example.unknown is not stored")
	require.Contains(t, succeed(t, env, "backfill", "status"), "network: ")
	eventually.True(t, func() bool {
		n.SealArchive()
		n.Play(1)
		backfillsDue(t, pool)
		return count(t, pool, `SELECT count(*) FROM network_backfills WHERE completed_at IS NOT NULL`) == 1
	}, 200*time.Millisecond, "%s", &p.stderr)
	equalsLog(t, pool, n)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Contains(t, succeed(t, env, "backfill", "status"), "network: complete, 100 % of ")
}

// TestGapOfFollowedAccountsIsReadWhereThatIsCheaper opens gaps of twenty minutes. With many followed
// accounts the archive takes fewer calls than their repositories, and the log says how many fewer.
// With one account, or if the archive cannot be read, repositories are compared.
func TestGapOfFollowedAccountsIsReadWhereThatIsCheaper(t *testing.T) {
	t.Parallel()
	n := archivedNetwork(t, 1500, 0)
	n.SealArchive()
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(reads(n, database), "WEIR_JETSTREAM_KEY=the archive's key", "WEIR_API_INTERVAL=1ms", "WEIR_DIRECTORY="+n.DirectoryURL(),
		"WEIR_APPVIEW="+n.AppViewURL(), "WEIR_START=tip")
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	var followed []string
	for _, a := range n.Accounts()[:60] {
		if a.Status == "" {
			followed = append(followed, a.DID)
		}
	}
	exec(`INSERT INTO watches (target, kind, synced_at) VALUES ('somebody.example', 'follows', now())`)
	exec(`INSERT INTO watch_members (watch_id, did) SELECT 1, unnest($1::text[])`, followed)
	exec(`DELETE FROM river_job`)
	p := start(t, env, "work")
	opened := `
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('jetstream', now() - interval '30 minutes', now() - interval '10 minutes' + $1::interval, 'lost', now())`
	closed := func(how string) {
		t.Helper()
		eventually.True(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND how_closed LIKE '`+how+`'`) == 1
		}, 50*time.Millisecond, "%s", &p.stderr)
	}
	exec(opened, "0 s")
	closed("the interval was read from the archive of %")
	require.Contains(t, p.stderr.String(), `"msg":"gap_archive_compared","gap":1,"archive_calls":`)
	within := slices.DeleteFunc(n.Log().Entries(), func(e *simnet.Entry) bool {
		age := time.Since(time.UnixMicro(e.TimeUS))
		return !slices.Contains(followed, e.DID) || age < 10*time.Minute || age > 30*time.Minute
	})
	for key := range fold(within).records {
		require.Equal(t, 1,
			count(t, pool, `SELECT count(*) FROM records WHERE did = '`+key.did+`' AND collection = '`+key.collection+`' AND rkey = '`+key.rkey+`'`),
			"%+v", key)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM records WHERE did <> ALL (SELECT did FROM watch_members)`), "strangers")

	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: "network.bsky.jetstream.getBlock", Count: 1000}))
	exec(opened, "2 s")
	closed("the records of 5_ accounts were compared with the repositories")

	exec(`DELETE FROM watch_members WHERE did <> $1`, followed[0])
	exec(opened, "1 s")
	closed("the records of 1 account were compared with the repositories")
}
