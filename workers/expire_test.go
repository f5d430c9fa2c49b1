package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

const day = 24 * time.Hour

func expirer(t testing.TB, pool *pgxpool.Pool, keep Retention) *Expire {
	t.Helper()
	w, err := newExpire(Config{Pool: pool, Projections: NewProjections(jobs.Links()), Logger: slog.New(slog.DiscardHandler)}, keep)
	require.NoError(t, err)
	return w
}

// ledger is the naive truth: all links with all shares, checked one by one.
type ledger map[string]*ledgerLink

type ledgerLink struct {
	firstSeen, fell time.Time
	shares          map[schema.Key]time.Time
	lost            []string // accounts that removed a share since the last expiry
}

func (l ledger) share(url string, key schema.Key, at, now time.Time) {
	if l[url] == nil {
		l[url] = &ledgerLink{firstSeen: now, shares: map[schema.Key]time.Time{}}
	}
	l[url].shares[key] = at
}

func (l ledger) unshare(url string, key schema.Key) {
	if k := l[url]; k != nil {
		if _, ok := k.shares[key]; ok {
			delete(k.shares, key)
			k.lost = append(k.lost, key.DID)
		}
	}
}

func (l ledger) expire(now time.Time, keep Retention) (fallen, gone int) {
	for url, k := range l {
		sharers, ever := map[string]bool{}, map[string]bool{}
		due := k.firstSeen.Add(keep.Window)
		snooze := func(t time.Time) {
			if t.After(due) {
				due = t
			}
		}
		for key, at := range k.shares {
			sharers[key.DID], ever[key.DID] = true, true
			snooze(at.Add(keep.Window))
		}
		for _, did := range k.lost {
			ever[did] = true
		}
		k.lost = nil
		if len(sharers) >= keep.KeepSharers {
			k.fell = time.Time{}
			continue
		}
		if len(ever) >= keep.KeepSharers {
			k.fell = now
			fallen++
		}
		if !k.fell.IsZero() {
			snooze(k.fell.Add(keep.Grace))
		}
		if !due.After(now) {
			delete(l, url)
			gone++
		}
	}
	return fallen, gone
}

func (l ledger) lines() []string {
	lines := []string{}
	for url, k := range l {
		lines = append(lines, url)
		for key, at := range k.shares {
			lines = append(lines, fmt.Sprintf("%s %s %s %d", url, key.DID, key.Rkey, at.Unix()))
		}
	}
	slices.Sort(lines)
	return lines
}

func storedLedger(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT url FROM links
		UNION ALL
		SELECT url || ' ' || did || ' ' || rkey || ' ' || extract(epoch FROM shared_at)::bigint FROM shares JOIN links ON id = link_id`)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(lines)
	return lines
}

func setShares(ctx context.Context, pool *pgxpool.Pool, key schema.Key, shares []ranking.Share, now time.Time) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(ctx, tx, []schema.Key{key}, shares, now)
	})
}

// TestExpiryEqualsCheckingEveryLink lets accounts add and remove shares at
// random for weeks, and compares the stored rows with a computation over
// everything: after undisturbed runs, after runs killed at random points and
// repeated, and with two runs at once.
func TestExpiryEqualsCheckingEveryLink(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(ctx context.Context, w *Expire, now time.Time, random *rand.Rand) error{
		"undisturbed": func(ctx context.Context, w *Expire, now time.Time, _ *rand.Rand) error { return w.Run(ctx, now) },
		"killed": func(ctx context.Context, w *Expire, now time.Time, random *rand.Rand) error {
			for range 4 {
				killed, cancel := context.WithTimeout(ctx, time.Duration(random.Int64N(int64(12*time.Millisecond))))
				err := w.Run(killed, now)
				cancel()
				if err != nil && killed.Err() == nil {
					return err
				}
			}
			return w.Run(ctx, now)
		},
		"twice at once": func(ctx context.Context, w *Expire, now time.Time, _ *rand.Rand) error {
			var g errgroup.Group
			for range 2 {
				g.Go(func() error { return w.Run(ctx, now) })
			}
			return g.Wait()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const seed = 11
			random := rand.New(rand.NewPCG(seed, 1))
			pool := schematest.New(t)
			keep, err := Retention{KeepSharers: 3, Window: 30 * time.Hour}.WithDefaults()
			require.NoError(t, err)
			w, truth := expirer(t, pool, keep), ledger{}
			now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
			fallen, gone := 0, 0
			for round := range 100 {
				now = now.Add(time.Duration(1+random.IntN(10)) * time.Hour)
				for range random.IntN(20) {
					url := fmt.Sprint("u", random.IntN(14))
					key := postKey(fmt.Sprint("did:", random.IntN(4)), fmt.Sprint(url, "-", random.IntN(2)))
					if random.IntN(2) == 0 {
						truth.unshare(url, key)
						require.NoError(t, setShares(t.Context(), pool, key, nil, now))
						continue
					}
					at := now.Add(-time.Duration(random.IntN(40)) * time.Hour)
					truth.share(url, key, at, now)
					require.NoError(t, setShares(t.Context(), pool, key, []ranking.Share{{Key: key, URL: url, How: "post", SharedAt: at}}, now))
				}
				require.NoError(t, run(t.Context(), w, now, random))
				f, g := truth.expire(now, keep)
				fallen, gone = fallen+f, gone+g
				require.Equal(t, truth.lines(), storedLedger(t, pool), "seed %d, round %d", seed, round)
				before := fingerprint(t, pool)
				require.NoError(t, w.Run(t.Context(), now))
				require.Equal(t, before, fingerprint(t, pool), "run twice, round %d", round)
			}
			require.Greater(t, fallen, 10, "the rule was tried")
			require.Greater(t, gone, 30, "the rule was tried")
		})
	}
}

// fingerprint changes with every row that is written, even to the same values.
func fingerprint(t *testing.T, pool *pgxpool.Pool) (rows string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT (SELECT coalesce(string_agg(id || ':' || ctid, ' ' ORDER BY id), '') FROM links) || '|' ||
		       (SELECT coalesce(string_agg(ctid::text, ' ' ORDER BY ctid), '') FROM shares) || '|' ||
		       (SELECT count(*) FROM lost_shares)`).Scan(&rows))
	return rows
}

// TestNoShareIsLostBesideExpiry: links expire while workers add shares to them.
func TestNoShareIsLostBesideExpiry(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	old := now.Add(-10 * day)
	ctx, stop := context.WithCancel(t.Context())
	var expiries, writers errgroup.Group
	var gone atomic.Int64
	for range 2 {
		expiries.Go(func() error {
			rule := schema.LinkRule{Now: now, Window: day, Grace: day, Keep: 5}
			for ctx.Err() == nil {
				done, err := schema.ExpireLinks(ctx, pool, rule, 100)
				if err != nil && !errors.Is(err, schema.ErrBusy) && ctx.Err() == nil {
					return err
				}
				gone.Add(int64(done.Links))
			}
			return nil
		})
	}
	for n := range 4 {
		writers.Go(func() error {
			random := rand.New(rand.NewPCG(5, uint64(n)))
			for i := range 150 {
				url := fmt.Sprint("u", random.IntN(3)) // known for long, shared now and then
				key := postKey(fmt.Sprint("did:", n), fmt.Sprint(i))
				shares := []ranking.Share{{Key: key, URL: url, How: "post", SharedAt: now}}
				if err := ranking.EnsureLinks(t.Context(), pool, shares, old); err != nil {
					return err
				}
				if err := setShares(t.Context(), pool, key, shares, old); err != nil {
					return err
				}
				stored, err := ranking.RecordsWithShares(t.Context(), pool, []schema.Key{key})
				if err != nil {
					return err
				}
				if len(stored) != 1 {
					return fmt.Errorf("share %d of writer %d is lost", i, n)
				}
				if err := setShares(t.Context(), pool, key, nil, old); err != nil {
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
	require.Greater(t, gone.Load(), int64(20), "links went in the meantime")
	require.NoError(t, w.Run(t.Context(), now))
	require.Empty(t, storedLedger(t, pool))
}

// TestExpiryRunsEveryStep with one row that is due and one that is not of every
// kind.
func TestExpiryRunsEveryStep(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), expirer(t, pool, Retention{})
	w.stored = collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: day}, collection.Entry{Pattern: "app.example.*", Retention: day})
	now := time.Now().Truncate(time.Second)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now.Add(-4*day), 24*time.Hour))
	for name, age := range map[string]time.Duration{"old": 100 * day, "new": time.Hour} {
		at := now.Add(-age)
		other := schema.Key{Collection: "app.example.other", DID: "did:plc:a", Rkey: name}
		a.apply(schema.Batch{
			Writes: []schema.Write{
				{Key: postKey("did:plc:a", name), Rev: "1", CreatedAt: at, Record: []byte(`{}`)},
				{Key: postKey("did:plc:gone", name), Rev: "1", CreatedAt: now, Record: []byte(`{}`)},
				{Key: other, Rev: "1", CreatedAt: at, Record: []byte(`{}`)},
			},
			Deletions:   []schema.Deletion{{Key: postKey("did:plc:a", "deleted "+name), Rev: "1", At: at}},
			DeadLetters: []schema.DeadLetter{{Stage: schema.StageCommit, Raw: []byte(name), At: at}},
		})
		_, err := pool.Exec(t.Context(), `UPDATE records SET indexed_at = created_at`)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at) VALUES ($1, $2, $3, '', $2, $2)`, name, at, at.Add(1e9))
		require.NoError(t, err)
		key := postKey("did:plc:a", name)
		require.NoError(t, setShares(t.Context(), pool, key, []ranking.Share{{Key: key, URL: name, How: "post", SharedAt: at}}, at))
	}
	a.apply(schema.Batch{DeadLetters: []schema.DeadLetter{{Stage: schema.StageCommit, Key: postKey("did:plc:gone", "refused"), Cause: "refused", Raw: []byte("text"), At: now}}})
	a.apply(schema.Batch{Statuses: []schema.Status{{DID: "did:plc:gone", Status: "deleted", At: now}}})
	_, err := pool.Exec(t.Context(), `INSERT INTO accounts (did, handle, check_at) VALUES ('did:plc:stranger', 'stranger.example', now() - interval '1 hour')`)
	require.NoError(t, err)
	job := &river.Job[jobs.Expire]{JobRow: &rivertype.JobRow{}}
	for range 2 {
		require.NoError(t, w.Work(t.Context(), job))
		rows, err := pool.Query(t.Context(), `
			SELECT collection || ' ' || did || ' ' || rkey FROM records
			UNION ALL SELECT 'tombstone ' || rkey FROM tombstones
			UNION ALL SELECT 'letter ' || cause || convert_from(raw, 'UTF8') FROM dead_letters
			UNION ALL SELECT 'account ' || did FROM accounts
			UNION ALL SELECT 'gap ' || stream FROM gaps
			UNION ALL SELECT 'link ' || url FROM links
			UNION ALL SELECT 'share ' || rkey FROM shares
			UNION ALL SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid::regclass::text < $1
			ORDER BY 1`, "posts_"+now.Add(-2*day).UTC().Format("20060102"))
		require.NoError(t, err)
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{"account did:plc:gone", "app.bsky.feed.post did:plc:a new", "app.example.other did:plc:a new", "gap new", "letter new", "letter refused", "link new",
			"share new", "tombstone deleted new"}, left)
	}
}

// TestLockedRowsAreLeftToTheNextRun, and the rest expires.
func TestLockedRowsAreLeftToTheNextRun(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	w.tries = 2
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	key := postKey("did:plc:a", "1")
	require.NoError(t, setShares(t.Context(), pool, key, []ranking.Share{{Key: key, URL: "u", How: "post", SharedAt: now}}, now))
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer reader.Rollback(context.Background()) //nolint:errcheck // done, or the test has failed
	_, err = reader.Exec(t.Context(), `SELECT FROM posts`)
	require.NoError(t, err)
	require.NoError(t, w.Run(t.Context(), now.Add(day)))
	require.Empty(t, storedLedger(t, pool))
	partitions, err := schema.ExpiredPartitions(t.Context(), pool, "posts", now)
	require.NoError(t, err)
	require.Len(t, partitions, 4)
	require.NoError(t, reader.Rollback(t.Context()))
	require.NoError(t, w.Run(t.Context(), now.Add(day)))
	partitions, err = schema.ExpiredPartitions(t.Context(), pool, "posts", now)
	require.NoError(t, err)
	require.Empty(t, partitions)
}

func TestRunEndsWhenItsTimeIsUpAndContinues(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	w.budget = -1
	var snooze *rivertype.JobSnoozeError
	require.ErrorAs(t, w.Work(t.Context(), &river.Job[jobs.Expire]{JobRow: &rivertype.JobRow{}}), &snooze)
}

func TestOneExpiryIsUnfinishedAtATime(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	client, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, skipped := range []bool{false, true} {
		job, err := client.Insert(t.Context(), jobs.Expire{}, nil)
		require.NoError(t, err)
		require.Equal(t, skipped, job.UniqueSkippedAsDuplicate)
		require.Equal(t, "expire", job.Job.Kind)
		require.Equal(t, jobs.QueueMaintenance, job.Job.Queue)
	}
	_, err = pool.Exec(t.Context(), `UPDATE river_job SET state = 'completed', finalized_at = now()`)
	require.NoError(t, err)
	job, err := client.Insert(t.Context(), jobs.Expire{}, nil)
	require.NoError(t, err)
	require.False(t, job.UniqueSkippedAsDuplicate)
}

func TestRetentionCoversTheRanking(t *testing.T) {
	t.Parallel()
	r, err := Retention{}.WithDefaults()
	require.NoError(t, err)
	require.Equal(t, Retention{Window: day, Tombstones: 7 * day, Gaps: 30 * day, DeadLetters: 90 * day, Grace: day, KeepSharers: 5}, r)
	for text, r := range map[string]Retention{
		"invalid retention of posts 23h0m0s": {Window: 23 * time.Hour},
		"invalid retention -1ns":             {Gaps: -1},
		"invalid number of sharers -1":       {KeepSharers: -1},
	} {
		_, err := r.WithDefaults()
		require.ErrorContains(t, err, text)
		_, err = newExpire(Config{}, r)
		require.ErrorContains(t, err, text)
	}
}

// TestNothingExpiresByOneClockAlone: the newest event is 40 days old, so a clock
// with another time may be wrong.
func TestNothingExpiresByOneClockAlone(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	for _, sql := range []string{
		`INSERT INTO streams (name, wire, last_event_at) VALUES ('s', 'wire', now() - interval '40 days')`,
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at, how_closed)
		 VALUES ('s', now() - interval '60 days', now() - interval '59 days', 'lost', now() - interval '59 days', now() - interval '50 days', 'accepted')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	gaps := func() (n int) {
		require.NoError(t, w.Work(t.Context(), &river.Job[jobs.Expire]{JobRow: &rivertype.JobRow{}}))
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM gaps`).Scan(&n))
		return n
	}
	require.Equal(t, 1, gaps())
	_, err := pool.Exec(t.Context(), `UPDATE streams SET last_event_at = now()`)
	require.NoError(t, err)
	require.Zero(t, gaps())
}
