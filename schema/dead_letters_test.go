package schema_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestUnknownDeadLetterFiltersAreRefused shows that the functions themselves refuse them.
func TestUnknownDeadLetterFiltersAreRefused(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, sql := range []string{
		`SELECT retry_dead_letter(1)`, `SELECT retry_dead_letter(NULL)`, `SELECT dismiss_dead_letter(1)`, `SELECT dismiss_dead_letter(NULL)`,
		`SELECT retry_dead_letter(dead_letter => 1)`, `SELECT dismiss_dead_letter(dead_letter => 1)`,
		`SELECT retry_dead_letters('decoding')`, `SELECT retry_dead_letters('')`, `SELECT retry_dead_letters(class => 'odd')`,
		`SELECT dismiss_dead_letters('x')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "22023", sql)
	}
	require.Equal(t, []string{"0"}, column(t, pool, `SELECT count(*)::text FROM river_job`))
}

// TestBulkActionsTakeOnlyOpenDeadLetters shows that a bulk action only takes open dead letters of a
// stage and class, and wakes a worker.
func TestBulkActionsTakeOnlyOpenDeadLetters(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, l := range []string{
		"decode permanent open", "decode permanent dismissed", "commit permanent open", "job permanent open", "job retryable open",
		"job retryable retried",
	} {
		execute(t, pool, `INSERT INTO dead_letters (key, stage, class, state, cause, raw, raw_bytes, first_seen, last_seen)
			SELECT convert_to($1, 'UTF8'), w[1], w[2], w[3], '', '', 0, now(), now() FROM string_to_array($1, ' ') AS w`, l)
	}
	states := func() []string {
		return column(t, pool, `SELECT concat_ws(' ', stage, class, state) FROM dead_letters ORDER BY id`)
	}
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `LISTEN "public.river_insert"`)
	require.NoError(t, err)
	n, err := schema.RetryDeadLetters(t.Context(), pool, schema.DeadLetterFilter{Stage: "job", Class: "retryable"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	woken, err := conn.Conn().WaitForNotification(ctx)
	require.NoError(t, err)
	require.JSONEq(t, `{"queue":"network"}`, woken.Payload)
	require.Equal(t, []string{
		"decode permanent open", "decode permanent dismissed", "commit permanent open", "job permanent open", "job retryable retrying",
		"job retryable retried",
	}, states())
	n, err = schema.DismissDeadLetters(t.Context(), pool, schema.DeadLetterFilter{Stage: "job"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = schema.RetryDeadLetters(t.Context(), pool, schema.DeadLetterFilter{})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []string{
		"decode permanent retrying", "decode permanent dismissed", "commit permanent retrying", "job permanent dismissed",
		"job retryable retrying", "job retryable retried",
	}, states())
	n, err = schema.RetryDeadLetters(t.Context(), pool, schema.DeadLetterFilter{})
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, []string{"2"}, column(t, pool, `SELECT count(*)::text FROM river_job WHERE kind = 'retry_dead_letters'`),
		"no job may be added if there is nothing to do")
}

// TestDeadLettersToRetryAreBoundedInBytes shows that there is at least one, and that they are in
// order.
func TestDeadLettersToRetryAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, raw := range []string{"first, which is long", "2", "3", "4"} {
		require.NoError(t, (&schema.DeadLetter{Stage: schema.StageDecode, Raw: []byte(raw)}).Store(t.Context(), pool, "s"))
	}
	execute(t, pool, `SELECT retry_dead_letters()`)
	asked := func(limit int, bytes int64) (all []string) {
		letters, err := schema.DeadLettersToRetry(t.Context(), pool, limit, bytes)
		require.NoError(t, err)
		for _, l := range letters {
			all = append(all, string(l.Raw))
		}
		return all
	}
	require.Equal(t, []string{"first, which is long"}, asked(9, 1))
	require.Equal(t, []string{"first, which is long", "2"}, asked(9, 21))
	require.Equal(t, []string{"first, which is long", "2", "3"}, asked(3, 1000))
}

// TestLastCauseIsTheLast shows that the last cause is stored even if it equals the first. It is
// empty if all are the same.
func TestLastCauseIsTheLast(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for i, c := range []struct{ cause, path, last string }{
		{"A", "/did", ""}, {"A", "/did", ""}, {"B", "/did", "B at /did"}, {"B", "/did", "B at /did"}, {"A", "/did", "A at /did"},
		{"A", "/rev", "A at /rev"}, {"A", "/did", "A at /did"},
	} {
		require.NoError(t, (&schema.DeadLetter{
			Stage: schema.StageDecode, Cause: c.cause, Path: c.path, Raw: []byte("{"),
		}).Store(t.Context(), pool, "s"))
		require.Equal(t, []string{"A /did, " + c.last}, column(t, pool, `SELECT cause || ' ' || path || ', ' || last_cause FROM dead_letters`),
			"%d", i)
	}
	require.Equal(t, []string{"7"}, column(t, pool, `SELECT count::text FROM dead_letters`))
}

// TestRowIsRetriedIfItsPartitionIsMadeMeanwhile covers a valid row that is being written to the
// default partition while the partition of its day is attached.
func TestRowIsRetriedIfItsPartitionIsMadeMeanwhile(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `CREATE TABLE days (day integer NOT NULL) PARTITION BY LIST (day)`)
	execute(t, pool, `CREATE TABLE days_default PARTITION OF days DEFAULT`)
	execute(t, pool, `CREATE TABLE days_1 (LIKE days)`)
	inserted := make(chan error, 1)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `ALTER TABLE days ATTACH PARTITION days_1 FOR VALUES IN (1)`); err != nil {
			return err
		}
		go func() {
			_, err := pool.Exec(context.Background(), `INSERT INTO days VALUES (1)`)
			inserted <- err
		}()
		eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 10*time.Millisecond)
		return nil
	}))
	err := <-inserted
	require.ErrorContains(t, err, "23514")
	require.Equal(t, schema.Transient, schema.Classify(err))
	execute(t, pool, `ALTER TABLE posts_default ADD CONSTRAINT strict CHECK (rkey <> 'x')`)
	_, err = pool.Exec(t.Context(), `
		INSERT INTO posts_default (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('app.bsky.feed.post', 'd', 'x', 'r', '', now(), '{}')`)
	require.Equal(t, schema.Data, schema.Classify(err), "a constraint that somebody added must count as a data error")
}

// TestDeletionClearsDeadLetters shows that the cause is kept and the record is cleared, however it
// was deleted and whichever came first.
func TestDeletionClearsDeadLetters(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	about := func(rkey, rev string) schema.DeadLetter {
		return schema.DeadLetter{
			Stage: schema.StageCommit, Key: key(rkey), Rev: rev, Cause: "why", Expected: "e", Received: "text", Raw: []byte("text of " + rkey),
		}
	}
	kept := func() []string {
		return column(t, pool, `
			SELECT rkey FROM dead_letters WHERE (raw, raw_bytes, expected, received, last_cause) <> ('', 0, '', '', '') ORDER BY 1`)
	}
	must := func(_ []schema.Key, err error) { require.NoError(t, err) }
	var b schema.Batch
	for _, rkey := range []string{"a", "b", "c", "d"} {
		b.DeadLetters = append(b.DeadLetters, about(rkey, "2"))
	}
	must(apply(t.Context(), pool, lease, b))
	require.Equal(t, []string{"a", "b", "c", "d"}, kept())
	must(apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("a", "3")}}))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return schema.DeleteRecords(t.Context(), tx, []schema.Deletion{deletion("b", "3")}, madeProjection())
	}))
	require.Equal(t, []string{"c", "d"}, kept())
	execute(t, pool, `DELETE FROM dead_letters WHERE rkey IN ('a', 'b')`)

	// A create that fails after the deletion was applied, or in the same batch.
	must(apply(t.Context(), pool, lease, schema.Batch{DeadLetters: []schema.DeadLetter{about("a", "2")}}))
	must(apply(t.Context(), pool, lease,
		schema.Batch{Deletions: []schema.Deletion{deletion("e", "3")}, DeadLetters: []schema.DeadLetter{about("e", "2")}}))
	late, again := about("b", "2"), about("b", "4")
	late.Stage = schema.StageProcess
	require.NoError(t, late.Store(t.Context(), pool, ""))
	require.Equal(t, []string{"c", "d"}, kept())
	must(apply(t.Context(), pool, lease, schema.Batch{DeadLetters: []schema.DeadLetter{again}}))
	require.Equal(t, []string{"b", "c", "d"}, kept(), "a post that was created again is not deleted")

	must(apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:a", Status: "deleted", At: noon()}}}))
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, noon()))
	must(apply(t.Context(), pool, lease, schema.Batch{DeadLetters: []schema.DeadLetter{about("f", "5")}}))
	require.Empty(t, kept())
	require.Equal(t, []string{"7"}, column(t, pool, `SELECT count(*)::text FROM dead_letters WHERE cause = 'why'`))
}

// TestDeadLettersOfOneAccountAreBounded shows that an account that keeps sending bad input cannot
// fill the disk, and that it leaves space for others.
func TestDeadLettersOfOneAccountAreBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, did := range []string{"did:plc:flood", ""} {
		execute(t, pool, `INSERT INTO dead_letters (key, stage, did, cause, raw, raw_bytes, first_seen, last_seen)
			SELECT sha256(convert_to($1 || n, 'UTF8')), 'decode', nullif($1, ''), 'before', '', 0, now(), now() FROM generate_series(1, 999) AS n`,
			did)
	}
	for _, did := range []string{"did:plc:flood", "did:plc:other", ""} {
		for _, input := range []string{"1", "2", "3", "4", "1"} {
			letter := schema.DeadLetter{Stage: schema.StageDecode, Key: schema.Key{DID: did}, Cause: "bad", Raw: []byte(input)}
			require.NoError(t, letter.Store(t.Context(), pool, "s"))
		}
	}
	require.Equal(t, []string{
		"did:plc:flood bad 1 2", "did:plc:flood further inputs of this account are counted here and not kept: it has too many dead letters  3",
		"did:plc:other bad 1 2", "did:plc:other bad 2 1", "did:plc:other bad 3 1", "did:plc:other bad 4 1",
		" bad 1 2", " further inputs of this account are counted here and not kept: it has too many dead letters  3",
	}, column(t, pool, `
		SELECT concat(did, ' ', cause, ' ', convert_from(raw, 'UTF8'), ' ', count) FROM dead_letters WHERE cause <> 'before' ORDER BY id`))
}

// TestLargeInputsAreBounded shows that a few inputs are kept whole. Of further ones, and of those
// that no retry can store, only the beginning is kept.
func TestLargeInputsAreBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	park := func(did string, size int, final bool) {
		t.Helper()
		letter := schema.DeadLetter{
			Stage: schema.StageDecode, Key: schema.Key{DID: did}, Raw: bytes.Repeat([]byte("x"), size), Final: final,
		}
		require.NoError(t, letter.Store(t.Context(), pool, "s"))
	}
	kept := func(did string) []string {
		return column(t, pool, `SELECT concat(octet_length(raw), ' of ', raw_bytes) FROM dead_letters WHERE did = $1`, did)
	}
	park("did:plc:final", 2<<20, true)
	require.Equal(t, []string{"16384 of 2097152"}, kept("did:plc:final"))
	execute(t, pool, `INSERT INTO dead_letters (key, stage, did, cause, raw, raw_bytes, first_seen, last_seen)
		SELECT sha256(convert_to(n::text, 'UTF8')), 'decode', 'did:plc:flood' || n, '', convert_to(repeat('x', 16385), 'UTF8'), 16385, now(),
		    now()
		FROM generate_series(1, 63) AS n`)
	park("did:plc:last", 2<<20, false)
	park("did:plc:more", 2<<20, false)
	park("did:plc:small", 16384, false)
	require.Equal(t, []string{"1048576 of 2097152"}, kept("did:plc:last"))
	require.Equal(t, []string{"4096 of 2097152"}, kept("did:plc:more"))
	require.Equal(t, []string{"16384 of 16384"}, kept("did:plc:small"))
	letters, err := schema.ListDeadLetters(t.Context(), pool, schema.DeadLetterFilter{}, 100)
	require.NoError(t, err)
	for _, l := range letters {
		require.Equal(t, l.DID == "did:plc:final" || l.DID == "did:plc:last" || l.DID == "did:plc:more", l.Truncated(), l.DID)
	}
}

// TestRedeliveredDeletionKeepsNewerInput covers a resume that delivers both events again.
func TestRedeliveredDeletionKeepsNewerInput(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	letter := schema.DeadLetter{
		Stage: schema.StageCommit, Key: key("a"), Rev: "5", Cause: "no", Expected: "a number", Received: "a word", Raw: []byte("input"),
	}
	for range 2 {
		for _, b := range []schema.Batch{{Deletions: []schema.Deletion{deletion("a", "3")}}, {DeadLetters: []schema.DeadLetter{letter}}} {
			_, err := apply(t.Context(), pool, lease, b)
			require.NoError(t, err)
		}
		require.Equal(t, []string{"input 5 a number a word open "}, column(t, pool, `
			SELECT concat_ws(' ', convert_from(raw, 'UTF8'), raw_bytes, expected, received, state, last_cause) FROM dead_letters`))
	}
	_, err := apply(t.Context(), pool, lease,
		schema.Batch{Deletions: []schema.Deletion{deletion("a", "6")}, DeadLetters: []schema.DeadLetter{letter}})
	require.NoError(t, err)
	require.Equal(t, []string{"0"}, column(t, pool, `SELECT raw_bytes::text FROM dead_letters`), "the input must be deleted with the record")

	letter.Cause, letter.Received = "not that either", "what was written"
	_, err = apply(t.Context(), pool, lease, schema.Batch{DeadLetters: []schema.DeadLetter{letter}})
	require.NoError(t, err)
	require.Empty(t, column(t, pool, `SELECT d::text FROM dead_letters AS d WHERE strpos(d::text, 'what was written') > 0`),
		"a dead letter still quotes the deleted record")
}

// TestAccountsWithTheirOwnDocumentsPauseNoStream shows that events that wait for the servers of
// did:web accounts do not count for the pause of the stream: they may wait for ever.
func TestAccountsWithTheirOwnDocumentsPauseNoStream(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	store := func(did string, size int) {
		t.Helper()
		l := schema.DeadLetter{
			Stage: schema.StageVerify, Class: schema.ClassRetryable, Key: schema.Key{Collection: "c", DID: did, Rkey: "r"}, Raw: make([]byte, size),
		}
		require.NoError(t, l.Store(t.Context(), pool, "s"))
	}
	store("did:web:down.example", 1<<20)
	store("did:plc:a", 10)
	store("did:plc:b", 1<<14)
	waiting, err := schema.WaitingDeadLetters(t.Context(), pool, 100)
	require.NoError(t, err)
	require.Equal(t, 3, waiting)
	due, err := schema.RequestDueRetries(t.Context(), pool)
	require.NoError(t, err)
	require.Zero(t, due, "a minute after the first failure")
	execute(t, pool, `UPDATE dead_letters SET last_seen = now() - interval '61 s' WHERE did <> 'did:plc:b'`)
	execute(t, pool, `UPDATE dead_letters SET last_seen = now() + interval '1 day' WHERE did = 'did:plc:b'`) // the clock was set back
	due, err = schema.RequestDueRetries(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 3, due, "all are retried")
}
