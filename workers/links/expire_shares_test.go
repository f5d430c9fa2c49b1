package links

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func setShares(ctx context.Context, pool *pgxpool.Pool, key schema.Key, shares []ranking.Share, now time.Time) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(ctx, tx, []schema.Key{key}, shares, now)
	})
}

// tid returns a TID of a time; n tells TIDs of the same time apart.
func tid(at time.Time, n int) string { return syntax.NewTID(at.UnixMicro()+int64(n), 1).String() }

func storedLedger(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT concat_ws(' ', url, coalesce(kept_sharers, 0), coalesce(extract(epoch FROM kept_at)::bigint, 0),
			coalesce(extract(epoch FROM since)::bigint, 0))
		FROM links LEFT JOIN unshared_links ON link_id = id
		UNION ALL
		SELECT concat_ws(' ', url, did, rkey, extract(epoch FROM shared_at)::bigint, extract(epoch FROM stored_at)::bigint) FROM shares
		JOIN links ON id = link_id
		UNION ALL
		SELECT 'leaving ' || part || ' ' || link_id FROM leaving_links`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(lines)
	return lines
}

// TestExpiryEqualsCheckingEveryLink has accounts add and remove shares at random for weeks. Their
// rkeys are of the present, the past or the future, or have no time. Meanwhile some accounts are
// hidden or not followed. It compares the stored rows with a computation over all of them: after
// undisturbed runs, after runs that were killed at random points and repeated, and after two
// concurrent runs and the next sweep.
func TestExpiryEqualsCheckingEveryLink(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for name, run := range map[string]func(ctx context.Context, w expiring, now time.Time, random *rand.Rand) error{
		"undisturbed": func(ctx context.Context, w expiring, now time.Time, _ *rand.Rand) error { return w.Run(ctx, now) },
		"killed": func(ctx context.Context, w expiring, now time.Time, random *rand.Rand) error {
			for range 4 {
				killed, cancel := context.WithTimeout(ctx, time.Duration(random.Int64N(int64(20*time.Millisecond))))
				err := w.Run(killed, now)
				cancel()
				if err != nil && killed.Err() == nil {
					return err
				}
			}
			return w.Run(ctx, now)
		},
		"twice at once": func(ctx context.Context, w expiring, now time.Time, _ *rand.Rand) error {
			var g errgroup.Group
			swept := w.swept.Load()
			for range 2 {
				g.Go(func() error { return w.Run(ctx, now) })
			}
			if err := g.Wait(); err != nil {
				return err
			}
			if w.swept.Load() != swept { // a sweep that ended before the other run deleted its shares has missed them
				w.swept.Store(nil)
			}
			return w.Run(ctx, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const seed = 11
			random := rand.New(rand.NewPCG(seed, 1))
			pool := schematest.New(t)
			keep := Retention{KeepSharers: 3, Shares: 30 * time.Hour, Links: 50 * time.Hour, Grace: 20 * time.Hour}
			now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
			w := expirer(t, pool, keep, workers.Retention{})
			truth := &shareModel{
				keep: keep, oldest: now.Add(-oneDay), shares: map[modelKey]modelShare{}, links: map[string]*modelLink{},
				hidden: map[string]bool{}, followed: map[string]bool{},
			}
			require.NoError(t, w.Run(t.Context(), now))
			truth.expire(now)
			kept, gone, n := 0, 0, 0
			for round := range rounds {
				now = now.Add(time.Duration(1+random.IntN(10)) * time.Hour)
				truth.decide(t, pool, random)
				for range random.IntN(20) {
					n++
					truth.change(t, pool, random, fmt.Sprint("u", 3*(round/5)+random.IntN(14)), n, now)
				}
				require.NoError(t, run(t.Context(), w, now, random))
				k, g := truth.expire(now)
				kept, gone = kept+k, gone+g
				require.Equal(t, truth.lines(), storedLedger(t, pool), "seed %d, round %d", seed, round)
				before := fingerprint(t, pool)
				require.NoError(t, w.Run(t.Context(), now))
				require.Equal(t, before, fingerprint(t, pool), "a second run must write nothing, round %d", round)
			}
			require.Greater(t, kept, rounds/3, "too few links were kept to test the rule")
			require.Greater(t, gone, rounds/10, "too few links expired to test the rule")
		})
	}
}

// fingerprint returns a value that changes with every written row, even if the row keeps its
// values.
func fingerprint(t *testing.T, pool *pgxpool.Pool) (rows string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT (SELECT coalesce(string_agg(id || ':' || ctid, ' ' ORDER BY id), '') FROM links) || '|' ||
		       (SELECT coalesce(string_agg(link_id || ':' || ctid, ' ' ORDER BY link_id), '') FROM unshared_links) || '|' ||
		       (SELECT coalesce(string_agg(tableoid || ':' || ctid, ' ' ORDER BY tableoid, ctid), '') FROM shares)`).Scan(&rows))
	return rows
}

// sharedBy has accounts share a link, once each, in records with a time.
func sharedBy(t *testing.T, pool *pgxpool.Pool, url string, from, to int, at time.Time) {
	t.Helper()
	for i := from; i <= to; i++ {
		key := postKey(fmt.Sprintf("did:%d", i), tid(at, int(crc32.ChecksumIEEE([]byte(url))%1_000_000)*10+i))
		require.NoError(t, setShares(t.Context(), pool, key, []ranking.Share{{
			Key: key, Link: link.Link{Identity: url, URL: url}, How: "post", SharedAt: at, StoredAt: at,
		}}, at))
	}
}

func linkNames(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT url || ' ' || coalesce(kept_sharers, 0) || ' ' || (SELECT count(*) FROM shares
		WHERE link_id = id) FROM links ORDER BY url`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// TestLinksOutliveTheirDayIfFiveShareThem follows each case of the rule. Expiry runs every hour
// on the first day and before each change, and every six hours otherwise.
func TestLinksOutliveTheirDayIfFiveShareThem(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{Links: 10 * day}, workers.Retention{})
	monday := time.Date(2026, 7, 6, 0, 0, 0, 0, time.UTC)
	now := monday
	until := func(end time.Time) {
		t.Helper()
		for !now.After(end) {
			require.NoError(t, w.Run(t.Context(), now))
			if first := monday.Add(30 * time.Hour); now.After(first) && end.Sub(now) > 9*time.Hour {
				now = now.Add(6 * time.Hour)
			} else {
				now = now.Add(time.Hour)
			}
		}
	}
	until(monday)
	noon := monday.Add(12 * time.Hour)
	sharedBy(t, pool, "five", 1, 5, noon)
	sharedBy(t, pool, "four", 1, 4, noon)
	sharedBy(t, pool, "over two days", 1, 3, noon)
	sharedBy(t, pool, "over two days", 4, 5, noon.Add(day))
	sharedBy(t, pool, "later", 1, 2, noon)
	sharedBy(t, pool, "later", 3, 3, noon.Add(day))
	sharedBy(t, pool, "taken back", 1, 5, noon)
	for range 9 { // nine shares of one account are one sharer
		sharedBy(t, pool, "nine", 1, 1, noon)
	}
	_, err := ranking.EnsureLinks(t.Context(), pool, []ranking.Share{{Link: link.Link{Identity: "bare", URL: "bare"}}}, noon)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `DELETE FROM shares WHERE did = 'did:1' AND link_id = (SELECT id FROM links WHERE url = 'taken back')`)
	require.NoError(t, err)

	until(monday.Add(29 * time.Hour))
	require.Equal(t, []string{
		"bare 0 0", "five 0 5", "four 0 4", "later 0 3", "nine 0 1", "over two days 0 5", "taken back 0 4",
	}, linkNames(t, pool), "a link without shares has a day of grace")
	until(monday.Add(30 * time.Hour))
	require.Equal(t, []string{"five 0 5", "four 0 4", "later 0 3", "nine 0 1", "over two days 0 5", "taken back 0 4"}, linkNames(t, pool))
	until(monday.Add(8*day - time.Hour))
	require.Equal(t, []string{
		"five 0 5", "four 0 4", "later 0 3", "nine 0 1", "over two days 0 5", "taken back 0 4",
	}, linkNames(t, pool), "the day has not expired")
	until(monday.Add(8 * day))
	require.Equal(t, []string{"five 5 0", "four 0 0", "later 0 1", "nine 0 0", "over two days 5 2", "taken back 0 0"}, linkNames(t, pool))
	sharedBy(t, pool, "four", 9, 9, now)
	until(monday.Add(9*day + time.Hour))
	require.Equal(t, []string{
		"five 5 0", "four 0 1", "later 0 0", "over two days 5 0",
	}, linkNames(t, pool), "the link was shared again within its day of grace")
	until(monday.Add(18*day - time.Hour))
	require.Equal(t, []string{"five 5 0", "over two days 5 0"}, linkNames(t, pool))
	until(monday.Add(19*day + 7*time.Hour)) // ten days, a day of grace, and the time until expiry runs
	require.Empty(t, linkNames(t, pool))
}

// TestTenDaysOfSharesStayTheSameSize shows that from the eighth day on as many rows are deleted as
// are added.
func TestTenDaysOfSharesStayTheSameSize(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{Links: day, Grace: 6 * time.Hour}, workers.Retention{})
	now := time.Date(2026, 7, 6, 0, 0, 0, 0, time.UTC)
	sizes := map[int]string{}
	for d := 1; d <= 13; d++ {
		_, err := pool.Exec(t.Context(), `
			WITH l AS (INSERT INTO links (identity, url, site, first_seen) SELECT $1::text || n, $1::text || n, 's', $2
				FROM generate_series(1, 60) AS n RETURNING id, split_part(url, '/', 2)::int AS n)
			INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at)
			SELECT 'did:' || i, 'c', CASE i WHEN 3 THEN 'odd' || n || $1 ELSE tid_floor($2::timestamptz + n * interval '20 minutes') END,
				id, id, 'post', $2, $2
			FROM l, generate_series(1, 1 + l.n % 6) AS i`, fmt.Sprint("day", d, "/"), now)
		require.NoError(t, err)
		for range 4 {
			require.NoError(t, w.Run(t.Context(), now))
			now = now.Add(6 * time.Hour)
		}
		var size string
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT concat_ws(' ', (SELECT count(*) FROM shares), (SELECT count(*) FROM shares_default), (SELECT count(*) FROM links),
				(SELECT count(*) FROM links WHERE kept_at IS NOT NULL),
			                 (SELECT count(*) FROM unshared_links), (SELECT count(*) FROM leaving_links),
			                     (SELECT count(*) FROM partitions WHERE parent = 'shares'),
			                 (SELECT count(*) FROM pg_trigger WHERE tgrelid = 'links'::regclass))`).Scan(&size))
		sizes[d] = size
	}
	require.NotEqual(t, sizes[7], sizes[10])
	for d := 11; d <= 13; d++ {
		require.Equal(t, sizes[10], sizes[d], "day %d", d)
	}
}

// TestReaderKeepsADayFromGoing shows that expiry waits only briefly for a reader, and holds no lock
// meanwhile. A later run drops the day.
func TestReaderKeepsADayFromGoing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{}, workers.Retention{})
	w.Tries = 2
	now := time.Date(2026, 7, 6, 12, 0, 0, 0, time.UTC)
	require.NoError(t, w.Run(t.Context(), now))
	sharedBy(t, pool, "x", 1, 5, now)
	names, err := ranking.ExpiredDays(t.Context(), pool, now.Add(13*time.Hour))
	require.NoError(t, err)
	require.Len(t, names, 2)
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer reader.Rollback(context.Background()) // finished, or the test has failed
	_, err = reader.Exec(t.Context(), `SELECT FROM shares LIMIT 1`)
	require.NoError(t, err)
	_, err = ranking.DropDay(t.Context(), pool, names[0])
	require.ErrorIs(t, err, schema.ErrBusy)
	require.ErrorIs(t, ranking.EnsureDays(t.Context(), pool, now.Add(2*day), 7*day), schema.ErrBusy)
	later := now.Add(8 * day)
	require.NoError(t, w.Run(t.Context(), later))
	require.Equal(t, []string{"x 0 5"}, linkNames(t, pool), "the day must be counted, and not yet dropped")
	sharedBy(t, pool, "y", 1, 1, now) // not blocked by expiry
	_, err = pool.Exec(t.Context(), `DELETE FROM shares WHERE did = 'did:5'`)
	require.NoError(t, err)
	require.NoError(t, reader.Rollback(t.Context()))
	require.NoError(t, w.Run(t.Context(), later))
	require.Equal(t, []string{"x 0 0", "y 0 0"}, linkNames(t, pool), "the link has only four sharers when its day is dropped")
}

// TestNoShareIsLostBesideExpiry expires links while workers add and share them.
func TestNoShareIsLostBesideExpiry(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{}, workers.Retention{})
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	require.NoError(t, ranking.EnsureDays(t.Context(), pool, now, 7*day))
	ctx, stop := context.WithCancel(t.Context())
	var expiries, writers errgroup.Group
	var gone, again atomic.Int64
	least := 150
	if testing.Short() {
		least = 50
	}
	for range 2 {
		expiries.Go(func() error {
			rule := ranking.LinkRule{Now: now, Sharers: 5}
			for ctx.Err() == nil {
				_, err := ranking.FindUnshared(ctx, pool, rule, 0, 100)
				if err == nil {
					var done ranking.Expired
					done, err = ranking.ExpireLinks(ctx, pool, rule, 100)
					gone.Add(int64(done.Deleted))
				}
				if err != nil && schema.Classify(err) != schema.Transient && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	for n := range 4 {
		writers.Go(func() error {
			random := rand.New(rand.NewPCG(5, uint64(n)))
			for i := 0; i < least || gone.Load() <= 20; i++ { // until enough links were deleted meanwhile
				url := fmt.Sprint("u", random.IntN(3)) // shared from time to time
				key := postKey(fmt.Sprint("did:", n), tid(now, i))
				shares := []ranking.Share{{Key: key, Link: link.Link{Identity: url, URL: url}, How: "post", SharedAt: now}}
				if _, err := ranking.EnsureLinks(t.Context(), pool, shares, now); err != nil {
					return err
				}
				err := setShares(t.Context(), pool, key, shares, now)
				for ; errors.Is(err, schema.ErrBusy); err = setShares(t.Context(), pool, key, shares, now) {
					again.Add(1)
				}
				if err != nil {
					return err
				}
				stored, err := ranking.RecordsWithShares(t.Context(), pool, []schema.Key{key})
				if err != nil {
					return err
				}
				if len(stored) != 1 {
					return fmt.Errorf("share %d of writer %d is lost", i, n)
				}
				if err := setShares(t.Context(), pool, key, nil, now); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := writers.Wait()
	stop()
	require.NoError(t, expiries.Wait())
	require.NoError(t, err)
	t.Logf("%d links deleted, %d transactions repeated", gone.Load(), again.Load())
	for _, at := range []time.Time{now, now.Add(day)} {
		require.NoError(t, w.Run(t.Context(), at))
	}
	require.Empty(t, storedLedger(t, pool))
}

// TestLinkThatExpiresWhileItIsSharedIsAddedAgain has expiry delete a link after the worker has
// added it, and before the share is stored. The post does not become a dead letter.
func TestLinkThatExpiresWhileItIsSharedIsAddedAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	key := postKey("did:plc:a", tid(now, 1))
	shares := []ranking.Share{{
		Key: key, Link: link.Link{Identity: "x", URL: "x", Card: link.Card{Title: "title"}}, How: "post", SharedAt: now,
	}}
	_, err := ranking.EnsureLinks(t.Context(), pool, shares, now)
	require.NoError(t, err)
	expiry, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer expiry.Rollback(context.Background()) // finished, or the test has failed
	_, err = expiry.Exec(t.Context(), `DELETE FROM links`)
	require.NoError(t, err)
	var worker errgroup.Group
	worker.Go(func() error { return setShares(t.Context(), pool, key, shares, now) })
	eventually.True(t, func() bool { return schematest.Blocks(t, pool, expiry) }, 10*time.Millisecond)
	require.NoError(t, expiry.Commit(t.Context()))
	err = worker.Wait()
	require.ErrorIs(t, err, schema.ErrBusy)
	require.Equal(t, schema.Transient, schema.Classify(err), "the error must be transient, so that the job is retried")
	require.NoError(t, setShares(t.Context(), pool, key, shares, now))
	require.Equal(t, []string{"x 0 1"}, linkNames(t, pool))
}
