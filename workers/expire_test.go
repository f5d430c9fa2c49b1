package workers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

const day = 24 * time.Hour

func expirer(t testing.TB, pool *pgxpool.Pool, keep Retention) *Expire {
	t.Helper()
	w, err := NewExpire(NewBundle(Config{Shared: Shared{Pool: pool, Projections: schema.NewProjections(posted()),
		Logger: slog.New(slog.DiscardHandler)}}),
		keep)
	require.NoError(t, err)
	return w
}

// TestExpiryRunsEveryStep has one due row and one row that is not due, of every
// kind.
func TestExpiryRunsEveryStep(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), expirer(t, pool, Retention{})
	w.Collections = collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: day},
		collection.Entry{Pattern: "app.example.*", Retention: day})
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
			DeadLetters: []schema.DeadLetter{{Stage: schema.StageCommit, Raw: []byte(name)}},
		})
		_, err := pool.Exec(t.Context(), `UPDATE records SET indexed_at = created_at`)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `UPDATE dead_letters SET last_seen = $1 WHERE raw = $2`, at, []byte(name))
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `
			INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at) VALUES ($1, $2, $3, '', $2, $2)`, name, at, at.Add(1e9))
		require.NoError(t, err)
	}
	a.apply(schema.Batch{DeadLetters: []schema.DeadLetter{
		{Stage: schema.StageCommit, Key: postKey("did:plc:gone", "refused"), Cause: "refused", Raw: []byte("text")},
	}})
	a.apply(schema.Batch{Statuses: []schema.Status{{DID: "did:plc:gone", Status: "deleted", At: now}}})
	_, err := pool.Exec(t.Context(),
		`INSERT INTO accounts (did, handle, check_at) VALUES ('did:plc:stranger', 'stranger.example', now() - interval '1 hour')`)
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
			UNION ALL SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'posts'::regclass AND inhrelid::regclass::text < $1
			ORDER BY 1`, "posts_"+now.Add(-2*day).UTC().Format("20060102"))
		require.NoError(t, err)
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{
			"account did:plc:gone", "app.bsky.feed.post did:plc:a new", "app.example.other did:plc:a new", "gap new", "letter new", "letter refused",
			"tombstone deleted new",
		}, left)
	}
}

// TestLockedRowsAreLeftToTheNextRun shows that the other rows expire.
func TestLockedRowsAreLeftToTheNextRun(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	w.Tries = 2
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	_, err := pool.Exec(t.Context(), `INSERT INTO tombstones VALUES ('c', 'd', 'r', '1', $1)`, now.Add(-9*day))
	require.NoError(t, err)
	reader, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer reader.Rollback(context.Background()) // finished, or the test has failed
	_, err = reader.Exec(t.Context(), `SELECT FROM posts`)
	require.NoError(t, err)
	require.NoError(t, w.Run(t.Context(), now.Add(day)))
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM tombstones`).Scan(&left))
	require.Zero(t, left)
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

func TestRetentionCoversWhatFeaturesKeep(t *testing.T) {
	t.Parallel()
	r, err := Retention{}.WithDefaults()
	require.NoError(t, err)
	require.Equal(t, Retention{Window: day, Projected: 7 * day, Tombstones: 8 * day, Gaps: 30 * day, DeadLetters: 90 * day, Grace: day}, r)
	r, err = Retention{Projected: 40 * day}.WithDefaults()
	require.NoError(t, err)
	require.Equal(t, []time.Duration{41 * day, 41 * day}, []time.Duration{r.Tombstones, r.Gaps},
		"tombstones and gaps must outlive what features keep")
	for text, r := range map[string]Retention{
		"invalid retention of posts 23h0m0s":       {Window: 23 * time.Hour},
		"what features keep 23h0m0s":               {Projected: 23 * time.Hour},
		"invalid retention of tombstones 168h0m0s": {Tombstones: 7 * day},
		"invalid retention -1ns":                   {Gaps: -1},
	} {
		_, err := r.WithDefaults()
		require.ErrorContains(t, err, text)
		_, err = NewExpire(NewBundle(Config{}), r)
		require.ErrorContains(t, err, text)
	}
}

// TestNothingExpiresByOneClockAlone covers a newest event that is 40 days old:
// a clock that shows a much later time may be wrong.
func TestNothingExpiresByOneClockAlone(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	w := expirer(t, pool, Retention{})
	for _, sql := range []string{
		`INSERT INTO streams (name, wire, last_event_at) VALUES ('s', 'wire', now() - interval '40 days')`,
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at, closed_at, how_closed)
		 VALUES ('s', now() - interval '60 days', now() - interval '59 days', 'lost', now() - interval '59 days', now() - interval '50 days',
		     'accepted')`,
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
