package schema_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

const day = 24 * time.Hour

func noon() time.Time { return time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC) }

func execute(t *testing.T, db schema.DB, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func column(t *testing.T, db schema.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

func TestPartitionsOfPostsAreDropped(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := noon()
	for d := range 3 {
		require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now.AddDate(0, 0, d), 24*time.Hour))
	}
	write := func(rkey, collection string, at time.Time) schema.Write {
		w := post(rkey, "1")
		w.CreatedAt, w.Collection = at, collection
		return w
	}
	store := func(writes ...schema.Write) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: writes})
		require.NoError(t, err)
	}
	tid := func(at time.Time) string { return column(t, pool, `SELECT tid_floor($1)`, at)[0] }
	old, young := tid(now), tid(now.Add(13*time.Hour))
	store(write(old, schema.PostCollection, now), write(young, schema.PostCollection, now),
		write("self", schema.PostCollection, now.Add(-9*day)),
		write("r", "app.example.other", now.Add(-9*day)), write("s", "app.example.other", now.Add(-9*day)))
	execute(t, pool, `UPDATE records SET indexed_at = $1 WHERE rkey IN ('self', 'r')`, now)
	execute(t, pool, `UPDATE records SET indexed_at = $1 WHERE rkey = 's'`, now.Add(day))

	expire := func(before time.Time) {
		t.Helper()
		partitions, err := schema.ExpiredPartitions(t.Context(), pool, "posts", before)
		require.NoError(t, err)
		for _, name := range partitions {
			for _, want := range []bool{true, false} { // a second run changes nothing
				dropped, err := schema.DropPartition(t.Context(), pool, name, nil)
				require.NoError(t, err)
				require.Equal(t, want, dropped)
			}
		}
		others := func(ctx context.Context, db schema.DB, before time.Time, limit int) (int, error) {
			return schema.ExpireRecords(ctx, db,
				[]schema.ExpiryRule{{Collection: "app.example.none", Before: before}, {Collection: "app.example.other", Before: before}}, limit)
		}
		for _, f := range []func(context.Context, schema.DB, time.Time, int) (int, error){schema.ExpirePosts, others} {
			for n := 1; n > 0; {
				n, err = f(t.Context(), pool, before, 1)
				require.NoError(t, err)
				require.LessOrEqual(t, n, 1)
			}
		}
	}
	left := func() []string { return column(t, pool, `SELECT rkey FROM records ORDER BY rkey`) }
	expire(now.Add(-time.Microsecond))
	require.Equal(t, []string{old, young, "r", "s", "self"}, left())
	require.Equal(t, "posts_20260704_06", partitions(t, pool)[0], "the partition's last post may have just arrived")
	expire(now.Add(6*time.Hour - time.Microsecond)) // the six hours of the old partition are not over
	require.Equal(t, []string{old, young, "s"}, left())
	expire(now.Add(6 * time.Hour))
	require.Equal(t, []string{young, "s"}, left())
	store(write(old, schema.PostCollection, now))
	require.Equal(t, []string{"posts_default"}, column(t, pool, `SELECT tableoid::regclass::text FROM posts WHERE rkey = $1`, old),
		"late events must be stored in the default partition")
	execute(t, pool, `UPDATE posts SET indexed_at = $1 WHERE rkey = $2`, now, old)
	expire(now.Add(6 * time.Hour))
	require.Equal(t, []string{young, "s"}, left())
}

// partitions returns the partitions of posts that hold a time, the oldest
// first.
func partitions(t *testing.T, db schema.DB) []string {
	t.Helper()
	return column(t, db, `SELECT part FROM partitions WHERE parent = 'posts' AND part <> 'posts_ahead' ORDER BY begins`)
}

// TestDaysOfTheFirstVersionsGoAsAWhole covers partitions of a day each.
func TestDaysOfTheFirstVersionsGoAsAWhole(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	bounds := column(t, pool,
		`SELECT tid_floor(d) FROM unnest(ARRAY['2026-07-04 00:00+00', '2026-07-05 00:00+00']::timestamptz[]) AS d ORDER BY 1`)
	execute(t, pool, fmt.Sprintf(`CREATE TABLE posts_20260704 PARTITION OF posts FOR VALUES FROM ('%s') TO ('%s')`, bounds[0], bounds[1]))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), 24*time.Hour))
	require.Equal(t, []string{"posts_20260704", "posts_20260705_00", "posts_20260705_06", "posts_20260705_12", "posts_20260705_18",
		"posts_20260706_00", "posts_20260706_06", "posts_20260706_12"}, partitions(t, pool), "the next begins where the day ends")
	for before, want := range map[time.Duration]int{12*time.Hour - time.Microsecond: 0, 12 * time.Hour: 1} {
		expired, err := schema.ExpiredPartitions(t.Context(), pool, "posts", noon().Add(before))
		require.NoError(t, err)
		require.Len(t, expired, want)
	}
	dropped, err := schema.DropPartition(t.Context(), pool, "posts_20260704", nil)
	require.NoError(t, err)
	require.True(t, dropped)
}

// TestDroppingGivesWayToReaders shows that a drop waits only briefly, because
// writers queue behind a waiting lock.
func TestDroppingGivesWayToReaders(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), 24*time.Hour))
	for _, use := range []string{`SELECT FROM posts`, `SELECT FROM posts_20260703_12`, `SELECT FROM posts_default`} {
		reader, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer reader.Rollback(context.Background()) // finished, or the test has failed
		execute(t, reader, use)
		_, err = schema.DropPartition(t.Context(), pool, "posts_20260703_12", nil)
		require.ErrorIs(t, err, schema.ErrBusy, use)
		require.NoError(t, reader.Rollback(t.Context()))
	}
	dropped, err := schema.DropPartition(t.Context(), pool, "posts_20260703_12", nil)
	require.NoError(t, err)
	require.True(t, dropped)
}

func TestTombstonesGapsAndDeadLettersExpire(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	for i, at := range []time.Time{now.Add(-time.Second), now, now.Add(time.Second)} {
		execute(t, pool, `INSERT INTO tombstones VALUES ('c', 'd', $1, '1', $2)`, fmt.Sprint(i), at)
		execute(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at) VALUES ($1, $2, $3, '', $2, $2)`, fmt.Sprint(i),
			at, at.Add(day))
		require.NoError(t, (&schema.DeadLetter{Stage: schema.StageDecode, Raw: []byte(fmt.Sprint(i))}).Store(t.Context(), pool, "s"))
		execute(t, pool, `UPDATE dead_letters SET last_seen = $1 WHERE raw = $2`, at, []byte(fmt.Sprint(i)))
	}
	execute(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('open', $1, $2, '', $1)`, now.Add(-1000*day), now)
	for name, step := range map[string]struct {
		expire func(context.Context, schema.DB, time.Time, int) (int, error)
		left   string
		want   []string
	}{
		"tombstones":   {schema.ExpireTombstones, `SELECT rkey FROM tombstones ORDER BY 1`, []string{"2"}},
		"gaps":         {schema.ExpireGaps, `SELECT stream FROM gaps ORDER BY 1`, []string{"2", "open"}},
		"dead letters": {schema.ExpireDeadLetters, `SELECT convert_from(raw, 'UTF8') FROM dead_letters ORDER BY 1`, []string{"2"}},
	} {
		for _, want := range []int{1, 1, 0} {
			n, err := step.expire(t.Context(), pool, now, 1)
			require.NoError(t, err)
			require.Equal(t, want, n, name)
		}
		require.Equal(t, step.want, column(t, pool, step.left), name)
	}
}
