package consumer_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// retried retries every open dead letter, with the configuration that change sets.
func retried(t *testing.T, pool *pgxpool.Pool, change func(*consumer.Retry)) {
	t.Helper()
	_, err := schema.RetryDeadLetters(t.Context(), pool, schema.DeadLetterFilter{})
	require.NoError(t, err)
	deadLetters, err := schema.DeadLettersToRetry(t.Context(), pool, 1000, 1<<30)
	require.NoError(t, err)
	wire := jetstream.Wire(nil)
	r := consumer.Retry{Wires: map[string]consumer.Wire{wire.Name: wire}, Storage: consumer.Storage{
		Pool: pool, Logger: slog.New(slog.DiscardHandler),
		Wanted:  func(collection string) bool { return collection == schema.PostCollection },
		Enqueue: addsNoJobs,
	}}
	if change != nil {
		change(&r)
	}
	require.NoError(t, r.Run(t.Context(), deadLetters))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retrying'`), "every dead letter must be settled")
}

// strict is a constraint that rejects some posts, like one that a database's
// owner might add.
const strict = `ALTER TABLE posts_default ADD CONSTRAINT strict CHECK (record ->> 'text' NOT LIKE 'refused%')`

// refusable returns a post that the constraint rejects.
func refusable(n int) string { return line(n, `{"text":"refused"}`) }

// stored returns every post as "rkey rev text".
func stored(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT rkey || ' ' || rev || ' ' || (record ->> 'text') FROM posts ORDER BY 1`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// TestRetryAfterFixStoresEvents checks that a retry enqueues the jobs with the
// events, and keeps dead letters that are still rejected.
func TestRetryAfterFixStoresEvents(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	var lines []string
	for i := range 200 {
		lines = append(lines, refusable(i))
	}
	lines[77] = line(77, `{"text":"refused","n":`+strings.Repeat("9", 131073)+`}`)
	require.NoError(t, played(t, pool, lines, nil).Run(t.Context()))
	require.Equal(t, 200, count(t, pool, `SELECT count(*) FROM dead_letters WHERE stage = 'commit'`))

	retried(t, pool, nil)
	require.Equal(t, 199, count(t, pool, `
		SELECT count(*) FROM dead_letters WHERE state = 'open' AND count = 2 AND cause LIKE '%"strict"%' AND last_cause LIKE '%"strict"%'`),
		"not lifted yet: each is dead-lettered again")
	_, err = pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	enqueued := 0
	retried(t, pool, func(r *consumer.Retry) {
		r.Enqueue = func(_ context.Context, _ pgx.Tx, written []schema.Stored, _ time.Time) error {
			enqueued += len(written)
			return nil
		}
	})
	require.Equal(t, 199, count(t, pool, `SELECT count(*) FROM posts`))
	require.GreaterOrEqual(t, enqueued, 199, "a retried transaction enqueues more jobs")
	require.Equal(t, 199, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND cause LIKE '%"strict"%'`))
	require.Equal(t, 1,
		count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND count = 3 AND rkey = 'r77' AND last_cause LIKE '%numeric%'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams`), "a retry must not create a stream")
}

// TestRetryNeverOverwritesNewer retries dead letters after a later edit and a
// deletion. A second retry changes nothing.
func TestRetryNeverOverwritesNewer(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	record := func(rkey string, n int, operation, text string) string {
		l := strings.Replace(line(n, fmt.Sprintf(`{"text":%q}`, text)), fmt.Sprintf(`"rkey":"r%d"`, n), fmt.Sprintf(`"rkey":%q`, rkey), 1)
		return strings.Replace(l, `"create"`, fmt.Sprintf("%q", operation), 1)
	}
	deletion := func(rkey string, n int) string {
		return fmt.Sprintf(`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":%d,"kind":"commit","commit":{"rev":%q,"operation":"delete",`+
			`"collection":"app.bsky.feed.post","rkey":%q}}`, 1783175888000000+n, rev(n), rkey)
	}
	lines := []string{
		record("edited", 1, "create", "refused"), record("deleted", 2, "create", "refused"), record("twice", 3, "create", "refused 1"),
		record("edited", 4, "update", "newer"), deletion("deleted", 5), record("twice", 6, "update", "refused 2"),
	}
	require.NoError(t, played(t, pool, lines, nil).Run(t.Context()))
	require.Equal(t, []string{"edited " + rev(4) + " newer"}, stored(t, pool))
	_, err = pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	for range 2 {
		retried(t, pool, nil)
		require.Equal(t, []string{"edited " + rev(4) + " newer", "twice " + rev(6) + " refused 2"}, stored(t, pool))
		require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND count = 1`))
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'dismissed' AND rkey = 'deleted'`))
		_, err := pool.Exec(t.Context(), `UPDATE dead_letters SET state = 'open'`)
		require.NoError(t, err)
	}
}

// TestFailedRetryKeepsFirstCause checks that the first and the last cause are
// recorded. A truncated input is never treated as complete.
func TestFailedRetryKeepsFirstCause(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	noDID := strings.Replace(line(2, plainRecord), `"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa",`, ``, 1)
	large := line(3, `{"text":"`+strings.Repeat("x", 3<<20)+`"}`)
	require.NoError(t, played(t, pool, []string{`{"did":`, noDID, large}, nil).Run(t.Context()))
	const first = `
		SELECT count(*) FROM dead_letters WHERE state = 'open' AND count = $1 AND (cause, path) IN (SELECT cause, path FROM remembered)`
	_, err := pool.Exec(t.Context(), `CREATE TABLE remembered AS SELECT id, cause, path, first_seen FROM dead_letters`)
	require.NoError(t, err)
	require.Equal(t, 3, count(t, pool, first, 1))
	for n := 2; n < 4; n++ {
		retried(t, pool, nil)
		require.Equal(t, 3, count(t, pool, first, n))
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE last_cause LIKE 'only the beginning of the input was kept%'`))
		require.Equal(t, 3, count(t, pool, `
			SELECT count(*) FROM dead_letters JOIN remembered USING (id, first_seen) WHERE last_cause <> '' AND last_seen > first_seen`))
	}
	require.NoError(t, played(t, pool, []string{noDID}, nil).Run(t.Context()))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE count = 4 AND path = '/did'`),
		"the same input from the stream must be counted in the same dead letter")
}

// TestRetryOfUnwantedCollectionSettles checks that the dead letter is settled
// and nothing is stored, because the stream would ignore the event too.
func TestRetryOfUnwantedCollectionSettles(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	require.NoError(t, played(t, pool, []string{refusable(1)}, nil).Run(t.Context()))
	_, err = pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	retried(t, pool, func(r *consumer.Retry) { r.Follows = func(string) bool { return false } })
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried'`))
	require.Empty(t, stored(t, pool))
}

// TestRetryRestoresNothingDeleted checks that a retry stores no record if the
// tombstones of its time have expired.
func TestRetryRestoresNothingDeleted(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	require.NoError(t, played(t, pool, []string{refusable(1), refusable(2)}, nil).Run(t.Context()))
	_, err = pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	retried(t, pool, func(r *consumer.Retry) { r.Since = time.UnixMicro(1783175888000002) })
	require.Equal(t, []string{"r2 " + rev(2) + " refused"}, stored(t, pool))
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM dead_letters WHERE state = 'open' AND rkey = 'r1' AND cause LIKE '%strict%'
		    AND last_cause LIKE '%that deletion may have expired%'`))
}

// TestRetryOfDeletedRecordFails checks the cause: the input was erased when the
// record was deleted.
func TestRetryOfDeletedRecordFails(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	require.NoError(t, played(t, pool, []string{refusable(1), refusable(2)}, nil).Run(t.Context()))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return schema.DeleteRecords(t.Context(), tx, []schema.Deletion{
			{Key: schema.Key{Collection: schema.PostCollection, DID: "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", Rkey: "r1"}, Rev: rev(3), At: time.Now()},
		}, nil)
	}))
	_, err = pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	retried(t, pool, nil)
	require.Equal(t, []string{"r2 " + rev(2) + " refused"}, stored(t, pool))
	require.Equal(t, 1, count(t, pool, `
		SELECT count(*) FROM dead_letters WHERE state = 'dismissed' AND rkey = 'r1' AND raw = '' AND cause LIKE '%strict%'
		    AND last_cause LIKE '%nothing is left to retry'`))
}

// TestDismissedDeadLetterStaysDismissed repeats the input of a dismissed dead
// letter and of a retried one. Only the retried one is opened again.
func TestDismissedDeadLetterStaysDismissed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	input := []string{`{"did":`}
	for state, then := range map[string]string{
		schema.DeadLetterDismissed: schema.DeadLetterDismissed, schema.DeadLetterRetried: schema.DeadLetterOpen,
	} {
		require.NoError(t, played(t, pool, input, nil).Run(t.Context()))
		_, err := pool.Exec(t.Context(), `UPDATE dead_letters SET state = $1`, state)
		require.NoError(t, err)
		require.NoError(t, played(t, pool, input, nil).Run(t.Context()))
		require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = $1`, then))
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters`))
}

// TestRetryOfAnOutdatedProgramDeletesNothing retries with a program that lacks
// a projection registered meanwhile, so it does not know that projection's
// tables.
func TestRetryOfAnOutdatedProgramDeletesNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, played(t, pool, []string{line(1, `{"text":"x"}`)}, nil).Run(t.Context()))
	_, err := pool.Exec(t.Context(),
		`INSERT INTO projections (name, collections, kind, queue, tables) VALUES ('later', '{app.bsky.feed.post}', 'k', 'q', '{}')`)
	require.NoError(t, err)
	wire := jetstream.Wire(nil)
	r := consumer.Retry{Wires: map[string]consumer.Wire{wire.Name: wire}, Storage: consumer.Storage{Pool: pool,
		Logger: slog.New(slog.DiscardHandler), Wanted: func(string) bool { return true }}}
	deletion := fmt.Sprintf(`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783175888000002,"kind":"commit","commit":{"rev":%q,`+
		`"operation":"delete",`+
		`"collection":"app.bsky.feed.post","rkey":"r1"}}`, rev(2))
	err = r.Run(t.Context(), []schema.StoredDeadLetter{
		{ID: 1, Wire: wire.Name, Raw: []byte(deletion), RawBytes: int64(len(deletion)), RawKept: int64(len(deletion)), FirstSeen: time.Now()},
	})
	require.ErrorAs(t, err, new(*schema.OutdatedError))
	require.Len(t, stored(t, pool), 1)
}
