package schema_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestMakingAPartitionScansNothingUnderItsLock shows that no transaction both locks posts_default
// and reads its rows, however many there are.
func TestMakingAPartitionScansNothingUnderItsLock(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const rows = 200_000
	pool := schematest.New(t)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), day))
	execute(t, pool, `
INSERT INTO posts (collection, did, rkey, rev, cid, created_at, record)
SELECT 'app.bsky.feed.post', 'd', CASE i % 2 WHEN 0 THEN tid_floor('2026-06-01Z') || i ELSE 'self' || i END, '1', '', '2026-07-04Z', '{}'
FROM generate_series(1, $1::int) AS i`, rows)
	statements, read := 0, 0
	db := &looked{pool: pool, look: func(locked bool, n int) {
		if locked {
			statements++
			require.Zero(t, n, "rows of posts_default read under the lock on it")
		}
		read += n
	}}
	var err error
	eventually.True(t, func() bool { // vacuum may hold a lock
		err = schema.EnsurePostPartitions(t.Context(), db, noon().Add(12*time.Hour), day)
		return !errors.Is(err, schema.ErrBusy)
	}, 10*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, []string{"posts_20260706_18", "posts_20260707_00"}, partitions(t, pool)[13:])
	require.GreaterOrEqual(t, statements, 4, "both the constraint and the partition need the lock")
	require.GreaterOrEqual(t, read, 2*rows, "the constraint was validated without it")
}

// looked is a database on which each statement is a transaction of its own. look receives whether
// it locked posts_default, and how many of its rows it read.
type looked struct {
	pool *pgxpool.Pool
	look func(locked bool, read int)
}

func (l *looked) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := l.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	_, before := uses(ctx, tx)
	rows, err := tx.Query(ctx, sql, args...)
	return &lookedRows{rows, sync.OnceFunc(func() {
		locked, after := uses(ctx, tx)
		l.look(locked, after-before)
		tx.Commit(ctx) // the rows had the error
	})}, err
}

func (l *looked) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	rows, err := l.Query(ctx, sql, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	return tag, err
}

// uses returns whether a transaction has locked posts_default, and how many of its rows its session
// has read so far.
func uses(ctx context.Context, tx pgx.Tx) (locked bool, read int) {
	const sql = `
SELECT EXISTS (SELECT FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'posts_default'::regclass AND mode = 'AccessExclusiveLock'),
       (SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'posts_default')`
	if err := tx.QueryRow(ctx, sql).Scan(&locked, &read); err != nil {
		return true, -1 // a value that no test expects
	}
	return locked, read
}

type lookedRows struct {
	pgx.Rows
	closed func()
}

func (r *lookedRows) Close() {
	r.Rows.Close()
	r.closed()
}

// TestPartitionsFollowOneAnother shows that, whatever the partitions held before, a new one begins
// where the last ends, also after a pause and with another retention.
func TestPartitionsFollowOneAnother(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	at, ended := noon(), time.Time{}
	write := func(at time.Time) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{post(column(t, pool, `SELECT tid_floor($1)`, at)[0], "1")}})
		require.NoError(t, err)
	}
	const year = 365 * day
	for _, next := range []struct{ after, keep time.Duration }{
		{0, day}, {6 * time.Hour, day}, {day, year}, {9 * day, year}, {day, day}, {20 * day, 0}, {100 * day, 30 * day},
	} {
		at = at.Add(next.after)
		write(at.Add(-time.Second))
		write(at.Add(47 * time.Hour))
		write(at.Add(100 * day))
		require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, at, next.keep))
		until, err := schema.PartitionsUntil(t.Context(), pool, "posts")
		require.NoError(t, err)
		require.Greater(t, until.Sub(at), 48*time.Hour)
		if !until.Equal(ended) {
			require.LessOrEqual(t, until.Sub(at), 48*time.Hour+schema.SpanFor(next.keep))
		}
		ended = until
		require.Empty(t, column(t, pool, `
			SELECT part FROM (SELECT part, begins, lag(ends) OVER (ORDER BY begins) AS was FROM partitions WHERE parent = 'posts') AS p
			WHERE begins <> was`))
		require.Empty(t, column(t, pool, `
			SELECT rkey FROM posts JOIN partitions ON part = posts.tableoid::regclass::text WHERE rkey < lower OR rkey >= upper`))
		require.Empty(t, column(t, pool, `
			SELECT relname FROM pg_class AS c WHERE relkind = 'i' AND relname LIKE 'posts\_ahead%'
			    AND relname NOT IN ('posts_ahead_pkey', 'posts_ahead_indexed_at_idx')`))
	}
	require.Equal(t, []string{"0"}, column(t, pool, `SELECT count(*)::text FROM posts_default`))
	require.Equal(t, []string{"21"}, column(t, pool, `SELECT count(*)::text FROM posts`))
	require.Less(t, len(partitions(t, pool)), 64)
}

// TestPartitionsAfterTheClockWasSetBack shows that the time before the first partition is covered, and
// so is the time between two partitions.
func TestPartitionsAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	at := noon()
	for _, now := range []time.Time{at, at.Add(-20 * day), at.Add(-19 * day), at.Add(-17 * day), at, at.Add(day)} {
		require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, day))
		for ahead := time.Duration(0); ahead <= 48*time.Hour; ahead += time.Hour {
			require.Len(t,
				column(t, pool, `SELECT part FROM partitions WHERE parent = 'posts' AND NOT ahead AND begins <= $1 AND ends > $1`, now.Add(ahead)), 1,
				"%s after %s", ahead, now)
		}
	}
}

// TestPartitionCountStaysInTheTens covers every retention.
func TestPartitionCountStaysInTheTens(t *testing.T) {
	t.Parallel()
	last := time.Duration(0)
	for keep := day; keep < 3650*day; keep += 7 * time.Hour {
		span := schema.SpanFor(keep)
		require.LessOrEqual(t, schema.PartitionsFor(keep), 64, "%s in spans of %s", keep, span)
		require.GreaterOrEqual(t, span, last)
		last = span
	}
	require.GreaterOrEqual(t, schema.SpanFor(0), last)
}

// TestQueriesLockThePartitionsOfTheirKeys shows that they lock no others, also when they run often
// enough for a cached plan.
func TestQueriesLockThePartitionsOfTheirKeys(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), day))
	require.Greater(t, len(partitions(t, pool)), 10)
	keys := []schema.Key{
		key(column(t, pool, `SELECT tid_floor($1)`, noon())[0]), key(column(t, pool, `SELECT tid_floor($1)`, noon().Add(time.Hour))[0]),
	}
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET plan_cache_mode = auto`)
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := schema.LockPosts(t.Context(), tx, keys)
			require.NoError(t, err)
			_, err = schema.Posts(t.Context(), tx, keys)
			require.NoError(t, err)
			require.Equal(t, []string{"posts", "posts_20260704_12"}, column(t, tx, `
SELECT DISTINCT c.relname::text FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND c.relkind IN ('r', 'p') AND c.relname LIKE 'posts%' ORDER BY 1`))
			return nil
		}))
	}
}

// TestAYearOfPostsNeedsNoMoreLocksThanPostgresHas uses the default settings: sixteen workers and a
// batch with deletions, each with posts of every age, run at the same time.
func TestAYearOfPostsNeedsNoMoreLocksThanPostgresHas(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	server, err := devpg.Start(t.Context(), devpg.Options{Settings: map[string]string{"max_connections": "100"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	cfg, err := pgxpool.ParseConfig(server.URL("weir"))
	require.NoError(t, err)
	cfg.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, schematest.Migrate(t.Context(), pool))
	require.Equal(t, []string{"64"}, column(t, pool, `SELECT current_setting('max_locks_per_transaction')`))

	const keep, workers = 365 * day, 16
	var keys []schema.Key
	made := `SELECT tid_floor(at) FROM generate_series($1::timestamptz, $2, $3::interval) AS at WHERE ensure_partition('posts', at, $3)`
	for _, tid := range column(t, pool, made, noon().Add(-keep), noon().Add(2*day), schema.SpanFor(keep)) {
		keys = append(keys, key(tid))
	}
	require.Greater(t, len(keys), 50)
	keys = append(keys, key("self"))
	lease := take(t, pool, "me")
	var locked, done sync.WaitGroup
	locked.Add(workers)
	committed := make(chan struct{})
	errs := make([]error, workers)
	for i := range workers {
		done.Go(func() {
			errs[i] = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := schema.LockPosts(t.Context(), tx, keys)
				locked.Done()
				<-committed
				return err
			})
		})
	}
	locked.Wait()
	var deletions []schema.Deletion
	for _, k := range keys {
		deletions = append(deletions, deletion(k.Rkey, "3zzzzzzzzzzzz"))
	}
	_, err = apply(t.Context(), pool, lease, schema.Batch{Deletions: slices.Clip(deletions)})
	close(committed)
	done.Wait()
	require.NoError(t, err)
	for i, err := range errs {
		require.NoError(t, err, fmt.Sprint("worker ", i))
	}
}

// TestPartitionsOfAnotherRetentionLeaveNoHole shows that partitions of a longer span begin where
// the others end.
func TestPartitionsOfAnotherRetentionLeaveNoHole(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon().Add(-9 * time.Hour)
	for ahead := -24 * time.Hour; ahead <= 12*time.Hour; ahead += 6 * time.Hour {
		execute(t, pool, `SELECT ensure_partition('posts', $1, '6 hours')`, now.Add(ahead))
	}
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 30*day))
	require.Contains(t, column(t, pool, `SELECT (ends - begins)::text FROM partitions WHERE parent = 'posts' AND part <> 'posts_ahead'`),
		"1 day")
	require.Empty(t, column(t, pool, `
		SELECT part FROM (SELECT part, begins, lag(ends) OVER (ORDER BY begins) AS was FROM partitions WHERE parent = 'posts') AS p
		WHERE begins <> was`))
}

// TestReadersFindTheRowsThatAPartitionTakes covers a reader that began before the partition was
// created and waits for it. It then looks for its rows in the new partition.
func TestReadersFindTheRowsThatAPartitionTakes(t *testing.T) {
	t.Parallel()
	for table, read := range map[string]func(*pgxpool.Pool, []schema.Key) (int, error){
		"posts": func(pool *pgxpool.Pool, keys []schema.Key) (int, error) {
			posts, err := schema.Posts(t.Context(), pool, keys)
			return len(posts), err
		},
		"records": func(pool *pgxpool.Pool, keys []schema.Key) (n int, err error) {
			err = pool.QueryRow(t.Context(), `SELECT count(*) FROM records WHERE collection = $1 AND rkey = $2`, keys[0].Collection,
				keys[0].Rkey).Scan(&n)
			return n, err
		},
	} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			keys := []schema.Key{key(column(t, pool, `SELECT tid_floor($1)`, noon())[0])}
			execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) VALUES ($1, $2, $3, '1', 'c', now(), '{}')`,
				keys[0].Collection, keys[0].DID, keys[0].Rkey)
			parent := table
			if table == "records" {
				parent = "posts"
			}
			found := make(chan error, 1)
			n := 0
			require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				require.Equal(t, []string{"true"}, column(t, tx, `SELECT ensure_partition($1, $2, '6 hours')::text`, parent, noon()))
				go func() {
					var err error
					n, err = read(pool, keys)
					found <- err
				}()
				eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 10*time.Millisecond)
				return nil
			}))
			require.NoError(t, <-found)
			require.Equal(t, 1, n)
		})
	}
}
