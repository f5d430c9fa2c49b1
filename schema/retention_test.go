package schema_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

const day = 24 * time.Hour

func noon() time.Time { return time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC) }

func execute(t *testing.T, db schema.DB, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// share stores the share of one post of an account.
func share(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, at time.Time, card ranking.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{{Key: k, URL: url, Site: "site.example", How: "post", SharedAt: at, Card: card}}, at)
	}))
}

func column(t *testing.T, db schema.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// expireLinks checks all links that are due at the time, two at a time.
func expireLinks(t *testing.T, pool *pgxpool.Pool, now time.Time) (total schema.ExpiredLinks) {
	t.Helper()
	for {
		gone, err := schema.ExpireLinks(t.Context(), pool, schema.LinkRule{Now: now, Window: day, Grace: day, Keep: 5}, 2)
		require.NoError(t, err)
		if gone.Checked == 0 {
			return total
		}
		total.Checked += gone.Checked
		total.Links += gone.Links
		total.Shares += gone.Shares
	}
}

// sharers makes accounts share a link, once each.
func sharers(t *testing.T, pool *pgxpool.Pool, url string, from, to int, at time.Time) {
	t.Helper()
	for i := from; i <= to; i++ {
		share(t, pool, fmt.Sprintf("did:%d", i), url, url, at, ranking.Card{})
	}
}

// unshare deletes the shares that sharers made.
func unshare(t *testing.T, pool *pgxpool.Pool, url string, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		k := schema.Key{Collection: schema.PostCollection, DID: fmt.Sprintf("did:%d", i), Rkey: url}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, nil, noon())
		}))
	}
}

func links(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return column(t, pool, `SELECT url || ' ' || (SELECT count(*) FROM shares WHERE link_id = id) FROM links ORDER BY url`)
}

func TestLinkGoesWithItsLastShareUnlessFiveShareIt(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	sharers(t, pool, "five", 1, 5, now)
	sharers(t, pool, "four", 1, 4, now)
	for i := range 9 { // nine shares of one account are one sharer
		share(t, pool, "did:1", fmt.Sprint(i), "nine", now, ranking.Card{})
	}
	sharers(t, pool, "later", 1, 2, now)
	sharers(t, pool, "later", 3, 3, now.Add(time.Hour))
	require.Zero(t, expireLinks(t, pool, now.Add(day-time.Second)))
	require.Equal(t, schema.ExpiredLinks{Checked: 4, Links: 2, Shares: 13}, expireLinks(t, pool, now.Add(day)))
	require.Equal(t, []string{"five 5", "later 3"}, links(t, pool), "no share of a link goes before the last one does")
	require.Zero(t, expireLinks(t, pool, now.Add(day)), "twice is once")
	require.Zero(t, expireLinks(t, pool, now.Add(day+time.Hour-time.Second)))
	require.Equal(t, schema.ExpiredLinks{Checked: 1, Links: 1, Shares: 3}, expireLinks(t, pool, now.Add(day+time.Hour)))
	require.Zero(t, expireLinks(t, pool, now.Add(1000*day)), "a link that is kept is not looked at again")
	require.Equal(t, []string{"five 5"}, links(t, pool))
}

func TestLinkBelowFiveSharersHasADayOfGrace(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	sharers(t, pool, "falls", 1, 6, now)
	sharers(t, pool, "falls unseen", 1, 5, now)
	sharers(t, pool, "recovers", 1, 5, now)
	sharers(t, pool, "never had five", 1, 4, now)
	unshare(t, pool, "falls unseen", 1, 1)
	unshare(t, pool, "never had five", 1, 1)
	fell := now.Add(time.Hour)
	expireLinks(t, pool, fell) // "falls unseen" fell in the window
	expireLinks(t, pool, now.Add(day))
	require.Equal(t, []string{"falls 6", "falls unseen 4", "recovers 5"}, links(t, pool))
	expireLinks(t, pool, fell.Add(day))
	require.Equal(t, []string{"falls 6", "recovers 5"}, links(t, pool))

	now = now.Add(10 * day)
	unshare(t, pool, "falls", 1, 1)
	unshare(t, pool, "recovers", 1, 1)
	expireLinks(t, pool, now)
	require.Empty(t, column(t, pool, `SELECT url FROM links WHERE url = 'falls' AND fell_at IS NOT NULL`), "five are left")
	unshare(t, pool, "falls", 2, 4)
	expireLinks(t, pool, now)
	require.Equal(t, []string{"falls", "recovers"}, column(t, pool, `SELECT url FROM links WHERE fell_at = $1 ORDER BY url`, now))
	unshare(t, pool, "falls", 5, 5) // another loss does not begin another day
	expireLinks(t, pool, now.Add(time.Hour))
	sharers(t, pool, "recovers", 7, 7, now.Add(-30*day)) // however old
	expireLinks(t, pool, now.Add(day-time.Second))
	require.Equal(t, []string{"falls 1", "recovers 5"}, links(t, pool))
	expireLinks(t, pool, now.Add(day))
	require.Equal(t, []string{"recovers 5"}, links(t, pool))
	require.Empty(t, column(t, pool, `SELECT link_id::text FROM lost_shares`))
	require.Empty(t, column(t, pool, `SELECT url FROM links WHERE fell_at IS NOT NULL`))
}

// TestOneBusyAccountHidesNoSharers: the sharers are counted from the latest on, and
// to the end where one account has shared most.
func TestOneBusyAccountHidesNoSharers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	for url, others := range map[string]int{"five": 4, "four": 3} {
		sharers(t, pool, url, 2, 1+others, now.Add(-day))
		execute(t, pool, `
			INSERT INTO shares (did, collection, rkey, link_id, how, shared_at)
			SELECT 'did:1', 'c', n::text, id, 'post', $2 FROM generate_series(1, 300) AS n, links WHERE url = $1`, url, now)
	}
	require.Equal(t, schema.ExpiredLinks{Checked: 2, Links: 1, Shares: 303}, expireLinks(t, pool, now.Add(day)))
	require.Equal(t, []string{"five 304"}, links(t, pool))
}

// TestLinkWithoutSharesHasADay: workers add links shortly before the shares.
func TestLinkWithoutSharesHasADay(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	require.NoError(t, ranking.EnsureLinks(t.Context(), pool, []ranking.Share{{URL: "bare"}, {URL: "old news"}, {URL: "taken back"}}, now))
	sharers(t, pool, "old news", 1, 1, now.Add(-30*day))
	sharers(t, pool, "taken back", 1, 2, now.Add(5*day))
	expireLinks(t, pool, now.Add(day-time.Second))
	require.Equal(t, []string{"bare 0", "old news 1", "taken back 2"}, links(t, pool))
	expireLinks(t, pool, now.Add(day))
	require.Equal(t, []string{"taken back 2"}, links(t, pool))
	unshare(t, pool, "taken back", 2, 2)
	expireLinks(t, pool, now.Add(2*day))
	share(t, pool, "did:1", "taken back", "taken back", now.Add(2*day), ranking.Card{}) // an edit of its date
	expireLinks(t, pool, now.Add(3*day-time.Second))
	require.Equal(t, []string{"taken back 1"}, links(t, pool))
	expireLinks(t, pool, now.Add(3*day))
	require.Empty(t, links(t, pool), "looked at when a share changes, not only when it would have left")
}

// TestShareInFlightIsNotLost: a worker has looked for its link and not yet
// inserted the share when the link expires.
func TestShareInFlightIsNotLost(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{
		"looked": `INSERT INTO links (url, site, first_seen) SELECT 'x', 's', now() WHERE NOT EXISTS (SELECT FROM links WHERE url = 'x')`,
		"bare":   `SELECT`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			require.NoError(t, ranking.EnsureLinks(t.Context(), pool, []ranking.Share{{URL: "x"}}, noon()))
			worker, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer worker.Rollback(context.Background()) //nolint:errcheck // committed, or the test has failed
			execute(t, worker, first)
			const insert = `INSERT INTO shares (did, collection, rkey, link_id, how, shared_at) SELECT 'did:1', 'c', 'r', id, 'post', $1 FROM links WHERE url = 'x'`
			if name == "bare" {
				execute(t, worker, insert, noon().Add(2*day))
			}
			rule := schema.LinkRule{Now: noon().Add(2 * day), Window: day, Grace: day, Keep: 5}
			gone, err := schema.ExpireLinks(t.Context(), pool, rule, 10)
			require.ErrorIs(t, err, schema.ErrBusy)
			if name == "looked" {
				execute(t, worker, insert, noon().Add(2*day))
			}
			require.Zero(t, gone)
			require.NoError(t, worker.Commit(t.Context()))
			_, err = schema.ExpireLinks(t.Context(), pool, rule, 10)
			require.NoError(t, err)
			require.Equal(t, []string{"x 1"}, links(t, pool))
		})
	}
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
	store(write(old, schema.PostCollection, now), write(young, schema.PostCollection, now), write("self", schema.PostCollection, now.Add(-9*day)),
		write("r", "app.example.other", now.Add(-9*day)), write("s", "app.example.other", now.Add(-9*day)))
	execute(t, pool, `UPDATE records SET indexed_at = $1 WHERE rkey IN ('self', 'r')`, now)
	execute(t, pool, `UPDATE records SET indexed_at = $1 WHERE rkey = 's'`, now.Add(day))

	expire := func(before time.Time) {
		t.Helper()
		partitions, err := schema.ExpiredPostPartitions(t.Context(), pool, before)
		require.NoError(t, err)
		for _, name := range partitions {
			for _, want := range []bool{true, false} { // twice is once
				dropped, err := schema.DropPostPartition(t.Context(), pool, name)
				require.NoError(t, err)
				require.Equal(t, want, dropped)
			}
		}
		others := func(ctx context.Context, db schema.DB, before time.Time, limit int) (int, error) {
			return schema.ExpireRecords(ctx, db, []schema.ExpiryRule{{Collection: "app.example.none", Before: before}, {Collection: "app.example.other", Before: before}}, limit)
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
	require.Equal(t, "posts_20260704_06", partitions(t, pool)[0], "its last post may have come a moment ago")
	expire(now.Add(6*time.Hour - time.Microsecond)) // the six hours of old are not over
	require.Equal(t, []string{old, young, "s"}, left())
	expire(now.Add(6 * time.Hour))
	require.Equal(t, []string{young, "s"}, left())
	store(write(old, schema.PostCollection, now))
	require.Equal(t, []string{"posts_default"}, column(t, pool, `SELECT tableoid::regclass::text FROM posts WHERE rkey = $1`, old), "late events land there")
	execute(t, pool, `UPDATE posts SET indexed_at = $1 WHERE rkey = $2`, now, old)
	expire(now.Add(6 * time.Hour))
	require.Equal(t, []string{young, "s"}, left())
}

// partitions are those of posts that hold a time, the oldest first.
func partitions(t *testing.T, db schema.DB) []string {
	t.Helper()
	return column(t, db, `SELECT part FROM post_partitions WHERE part <> 'posts_ahead' ORDER BY begins`)
}

// TestDaysOfTheFirstVersionsGoAsAWhole: partitions held a day each.
func TestDaysOfTheFirstVersionsGoAsAWhole(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	bounds := column(t, pool, `SELECT tid_floor(d) FROM unnest(ARRAY['2026-07-04 00:00+00', '2026-07-05 00:00+00']::timestamptz[]) AS d ORDER BY 1`)
	execute(t, pool, fmt.Sprintf(`CREATE TABLE posts_20260704 PARTITION OF posts FOR VALUES FROM ('%s') TO ('%s')`, bounds[0], bounds[1]))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), 24*time.Hour))
	require.Equal(t, []string{"posts_20260704", "posts_20260705_00", "posts_20260705_06", "posts_20260705_12", "posts_20260705_18", "posts_20260706_00",
		"posts_20260706_06", "posts_20260706_12"}, partitions(t, pool), "the next begins where the day ends")
	for before, want := range map[time.Duration]int{12*time.Hour - time.Microsecond: 0, 12 * time.Hour: 1} {
		expired, err := schema.ExpiredPostPartitions(t.Context(), pool, noon().Add(before))
		require.NoError(t, err)
		require.Len(t, expired, want)
	}
	dropped, err := schema.DropPostPartition(t.Context(), pool, "posts_20260704")
	require.NoError(t, err)
	require.True(t, dropped)
}

// TestDroppingGivesWayToReaders: writers queue behind a waiting lock, so it waits
// only for a moment.
func TestDroppingGivesWayToReaders(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, noon(), 24*time.Hour))
	for _, use := range []string{`SELECT FROM posts`, `SELECT FROM posts_20260703_12`, `SELECT FROM posts_default`} {
		reader, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer reader.Rollback(context.Background()) //nolint:errcheck // done, or the test has failed
		execute(t, reader, use)
		_, err = schema.DropPostPartition(t.Context(), pool, "posts_20260703_12")
		require.ErrorIs(t, err, schema.ErrBusy, use)
		require.NoError(t, reader.Rollback(t.Context()))
	}
	dropped, err := schema.DropPostPartition(t.Context(), pool, "posts_20260703_12")
	require.NoError(t, err)
	require.True(t, dropped)
}

func TestTombstonesGapsAndDeadLettersExpire(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	for i, at := range []time.Time{now.Add(-time.Second), now, now.Add(time.Second)} {
		execute(t, pool, `INSERT INTO tombstones VALUES ('c', 'd', $1, '1', $2)`, fmt.Sprint(i), at)
		execute(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at) VALUES ($1, $2, $3, '', $2, $2)`, fmt.Sprint(i), at, at.Add(day))
		require.NoError(t, (&schema.DeadLetter{Stage: schema.StageDecode, Raw: []byte(fmt.Sprint(i)), At: at}).Store(t.Context(), pool, "s"))
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
