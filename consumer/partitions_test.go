package consumer_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

const day = 24 * time.Hour

// TestReaderAtPartitionEndBlocksNothing keeps a transaction open that has read
// posts while the last partition ends.
func TestReaderAtPartitionEndBlocksNothing(t *testing.T) {
	t.Parallel()
	readerAtTheEnd(t, func(s *stream) (end func()) {
		tx, err := s.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT FROM posts`)
		require.NoError(t, err)
		return func() { require.NoError(t, tx.Rollback(t.Context())) }
	})
}

// TestPgDumpAtPartitionEndBlocksNothing does the same with a backup whose output is
// not read.
func TestPgDumpAtPartitionEndBlocksNothing(t *testing.T) {
	t.Parallel()
	readerAtTheEnd(t, func(s *stream) (end func()) {
		_, err := s.pool.Exec(t.Context(), `CREATE TABLE large AS SELECT repeat('x', 1 << 20)`) // more than a pipe holds
		require.NoError(t, err)
		unread, out, err := os.Pipe()
		require.NoError(t, err)
		dump := exec.CommandContext(t.Context(), pgDump(t), s.pool.Config().ConnString())
		dump.Stdout = out
		require.NoError(t, dump.Start())
		require.NoError(t, out.Close())
		eventually.True(t, func() bool {
			return count(t, s.pool, `
SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE a.datname = current_database() AND a.application_name = 'pg_dump' AND l.granted AND l.mode = 'AccessShareLock'
    AND l.relation = 'posts_default'::regclass`) == 1
		}, 10*time.Millisecond)
		return func() {
			require.NoError(t, dump.Process.Kill())
			require.Error(t, dump.Wait(), "pg_dump ended before it was killed")
			require.NoError(t, unread.Close())
		}
	})
}

// readerAtTheEnd lets the last partition end while a reader has locked posts.
// Batches are still committed and the lease is renewed. After the reader ends,
// the partitions are created and contain the posts that arrived meanwhile.
func readerAtTheEnd(t *testing.T, read func(*stream) (end func())) {
	s := newStream(t, simnet.Config{History: 300, HistorySpan: time.Minute})
	var now atomic.Pointer[time.Time]
	set := func(at time.Time) { now.Store(&at) }
	set(time.Now().Add(-4 * day))
	// the consumer's own commits could make its attempts fail
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), s.pool, *now.Load(), day))
	stop := s.run(func(c *consumer.Config) {
		c.Keep, c.PartitionInterval, c.Now = day, 10*time.Millisecond, func() time.Time { return *now.Load() }
	})
	s.stores()
	s.partitioned()
	end := read(s)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM partitions WHERE parent = 'posts' AND ends > now() AND part <> 'posts_ahead'`))
	set(time.Now())
	eventually.True(t, func() bool { return s.log.has("partitions_run_out") }, time.Millisecond)
	renewed := func() bool {
		return count(t, s.pool, `SELECT count(*) FROM streams WHERE lease_renewed_at > $1`, *now.Load()) == 1
	}
	s.net.Play(300)
	s.stores()
	set(time.Now())
	eventually.True(t, renewed, 20*time.Millisecond)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM partitions WHERE parent = 'posts' AND ends > now() AND part <> 'posts_ahead'`),
		"no partition may be created while the reader has its lock")
	require.False(t, s.log.has("partitions_made"))

	end()
	eventually.True(t, func() bool { return s.log.has("partitions_made") }, time.Millisecond)
	stop()
	require.Equal(t, 1, s.log.count("partition_creation_failed"), "a state is logged once")
	require.Equal(t, 1, s.log.count("partitions_run_out"))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts_ahead`))
	require.Positive(t,
		count(t, s.pool, `SELECT count(*) FROM posts JOIN partitions ON part = posts.tableoid::regclass::text WHERE ends > now()`))
}

// partitioned waits until there are partitions. The stream does not wait for them.
func (s *stream) partitioned() {
	s.t.Helper()
	eventually.True(s.t, func() bool {
		return count(s.t, s.pool, `SELECT count(*) FROM partitions WHERE parent = 'posts' AND part <> 'posts_ahead'`) > 0
	}, 10*time.Millisecond)
}

// TestFastClockCreatesNoHugePartition checks that a clock that is a year ahead
// does not create a partition that spans a year and would expire late.
func TestFastClockCreatesNoHugePartition(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 10})
	var ahead atomic.Int64
	stop := s.run(func(c *consumer.Config) {
		c.Keep, c.PartitionInterval, c.Now = day, 10*time.Millisecond, func() time.Time {
			ahead.Add(1)
			return time.Now().AddDate(1, 0, 0)
		}
	})
	s.stores()
	s.partitioned()
	before := ahead.Load()
	eventually.True(t, func() bool { return ahead.Load() > before+1 }, time.Millisecond, "no whole attempt since")
	stop()
	require.Zero(t,
		count(t, s.pool, `SELECT count(*) FROM partitions WHERE parent = 'posts' AND part <> 'posts_ahead' AND ends > now() + interval '3 days'`))
}

// pgDump returns the path of pg_dump, of the same version as the server of the
// tests.
func pgDump(t *testing.T) string {
	t.Helper()
	bin, version, err := devpg.Find()
	require.NoError(t, err)
	path := filepath.Join(bin, "pg_dump")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err = exec.LookPath("pg_dump")
	require.NoError(t, err, "pg_dump of PostgreSQL %d is missing: `make postgres` installs it, or install PostgreSQL's client", version)
	return path
}
