package lexicons

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func key(collection, did string, n int) schema.Key {
	return schema.Key{Collection: collection, DID: did, Rkey: tidOf(n)}
}

func typeDef(of schema.Key) string {
	return fmt.Sprintf(`,"ontologyRef":%q,"name":"t","typeKind":"entity-type"`, of.URI())
}

// state returns the verdict on a record.
func (b *bench) state(k schema.Key) string {
	b.t.Helper()
	all := strs(b.t, b.pool, strings.Replace(states, "ORDER BY 1",
		fmt.Sprintf("WHERE v.did = '%s' AND v.collection = '%s' AND v.rkey = '%s'", k.DID, k.Collection, k.Rkey), 1))
	_, found, _ := strings.Cut(strings.TrimPrefix(strings.Join(all, "; "), k.DID+" "), " ")
	return found
}

// TestParkedIsReleased shows that a parked record is released by every change that ends its wait,
// however late.
func TestParkedIsReleased(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	b := newBench(t, nil)
	const did = "did:plc:waiter"
	target := key(ontologies, "did:plc:author", 1)
	def := key(typeDefs, did, 1)

	// The wait is visible, and nothing is derived from the record.
	b.write(def, tidOf(1), typeDef(target))
	becomes(t, b.pool, []string{def.Rkey + " " + target.URI() + " waiting"}, `
SELECT rkey || ' at://' || to_did || '/' || to_collection || '/' || to_rkey || ' ' || state
FROM parked`)
	require.Equal(t, "valid parked", b.state(def))
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM record_refs`))

	// Its server is asked once and does not have the target. The record becomes a dead letter,
	// which the target releases.
	b.settled()
	require.Equal(t, "valid missing letter:reference", b.state(def))
	require.Equal(t, 1, b.server.askedFor(target.URI()))
	require.Equal(t, 1, count(t, b.pool, `
SELECT count(*)
FROM dead_letters
WHERE state = 'open' AND cause LIKE 'a record that it requires%' AND expected = $1`, target.URI()))
	for _, retry := range []bool{true, false} {
		if retry { // the retry changes nothing
			_, err := schema.RetryDeadLetters(t.Context(), b.pool, schema.DeadLetterFilter{Stage: schema.StageReference})
			require.NoError(t, err)
		} else {
			b.write(target, tidOf(1), `,"name":"o"`)
		}
		b.settled()
		require.Equal(t, map[bool]string{true: "valid missing letter:reference", false: "valid projected refs:/ontologyRef"}[retry], b.state(def))
	}
	require.Equal(t, 1, b.server.askedFor(target.URI()), "asked once")
	require.Equal(t, 1, count(t, b.pool, `SELECT count(*) FROM dead_letters WHERE stage = 'reference' AND state = 'retried' AND count = 2`))

	// A server that has the target returns it.
	given, takes := key(ontologies, "did:plc:author", 2), key(typeDefs, did, 2)
	b.server.has(given.URI(), `{"$type":"`+ontologies+`","createdAt":"2026-01-02T03:04:05Z","name":"given"}`)
	b.write(takes, tidOf(2), typeDef(given))
	b.settled()
	require.Equal(t, "valid projected refs:/ontologyRef", b.state(takes))
	require.Equal(t, "valid projected", b.state(given))

	// The target is deleted and comes back. A deletion of a record that was never received is known
	// too.
	b.delete(given, tidOf(9))
	b.settled()
	require.Equal(t, "valid projected dangling refs:/ontologyRef!", b.state(takes))
	execute(t, b.pool, `DELETE FROM tombstones`) // the tombstones expire, and the catalog changes
	execute(t, b.pool, `UPDATE verdicts SET schema_hash = 'old'`)
	b.judgeAgain(takes)
	require.Equal(t, "valid projected dangling refs:/ontologyRef!", b.state(takes), "a target that was known to be deleted must stay so")
	b.write(given, tidOf(12), `,"name":"again"`)
	b.settled()
	require.Equal(t, "valid projected refs:/ontologyRef", b.state(takes))
	never, late := key(ontologies, "did:plc:author", 3), key(typeDefs, did, 3)
	b.write(late, tidOf(3), typeDef(never))
	becomes(t, b.pool, []string{"1"}, `SELECT count(*)::text FROM parked WHERE state = 'waiting'`)
	b.delete(never, tidOf(3))
	b.settled()
	require.Equal(t, "valid projected dangling refs:/ontologyRef!", b.state(late))

	// A deleted record's rows are deleted with it.
	b.delete(late, tidOf(4))
	b.delete(takes, tidOf(4))
	b.write(def, tidOf(5), `,"name":"t"`)
	b.settled()
	require.Equal(t, "invalid refused letter:lexicon", b.state(def))
	b.delete(def, tidOf(6))
	b.settled()
	for _, table := range []string{"verdicts", "record_refs", "record_texts", "parked"} {
		require.Zero(t, count(t, b.pool, `SELECT count(*) FROM `+table+` WHERE did = $1`, did), table)
	}
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' OR did = $1 AND raw_bytes > 0`, did))
}

func (b *bench) judgeAgain(keys ...schema.Key) {
	b.t.Helper()
	at := workers.PagePlace{}
	_, err := b.client.Insert(b.t.Context(), JudgeRecordsArgs{Batch: jobs.Batch{Records: at.Advance(keys)}}, nil)
	require.NoError(b.t, err)
	b.settled()
}

// TestManyWaitForOne shows that all waiting records are released, and that their target is
// requested only once.
func TestManyWaitForOne(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	b := newBench(t, func(c *settings) { c.JobTimeout, c.RescueAfter = time.Hour, 2*time.Hour }) // a job that runs for long yields to others
	const many = 4000                                                                            // eight pages
	target := key(ontologies, "did:plc:author", 1)
	name := strings.NewReplacer("0", "a", "1", "b", "8", "y", "9", "z")
	for at := 0; at < many; {
		var writes []schema.Write
		for ; len(writes) < 500; at++ {
			key := schema.Key{Collection: typeDefs, DID: fmt.Sprint("did:plc:waiter", at%100), Rkey: name.Replace(fmt.Sprintf("3kabcde%06d", at))}
			writes = append(writes, written(key, tidOf(1), typeDef(target)))
		}
		require.NoError(t, b.commit(b.projections, schema.Batch{Writes: sorted(writes)}))
	}
	b.settled()
	require.Equal(t, many, count(t, b.pool, `SELECT count(*) FROM verdicts WHERE state = 'missing'`))
	require.Equal(t, 1, b.server.askedFor(target.URI()))
	b.write(target, tidOf(1), `,"name":"o"`)
	b.settled()
	require.Equal(t, many+1, count(t, b.pool, `SELECT count(*) FROM verdicts WHERE state = 'projected' AND NOT dangling`))
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM parked`))
	const judge = ` FROM river_job WHERE kind IN ('judge_records', 'judge_dependents')`
	require.Less(t, count(t, b.pool, `SELECT count(*)`+judge), many/10, "expected a job per page, and no retries")
	require.Zero(t, count(t, b.pool, `SELECT coalesce(sum((metadata ->> 'snoozes')::int), 0)`+judge))
}

// TestManyTargetsAtOnce adds far more jobs that judge dependents than may wait in their queue. If
// each waited for the queue to become short, all would wait for ever. One job judges all dependents
// of its targets.
func TestManyTargetsAtOnce(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	b := newBench(t, nil)
	var job JudgeDependentsArgs
	for i := range 20 {
		target := key(ontologies, "did:plc:author", i)
		b.write(key(typeDefs, "did:plc:waiter", i), tidOf(1), typeDef(target))
		job.Targets = append(job.Targets, jobs.Record(target))
	}
	becomes(t, b.pool, []string{"20"}, `SELECT count(*)::text FROM parked`)
	many := []river.InsertManyParams{{Args: job}}
	for range 600 {
		many = append(many, river.InsertManyParams{Args: JudgeDependentsArgs{Targets: []jobs.Record{{Collection: ontologies,
			DID: "did:plc:nobody", Rkey: "1"}}}})
	}
	_, err := b.client.InsertMany(t.Context(), many)
	require.NoError(t, err)
	becomes(t, b.pool, []string{"601"}, `SELECT count(*)::text FROM river_job WHERE kind = 'judge_dependents' AND state = 'completed'`)
	require.Equal(t, 1, count(t, b.pool, `
SELECT count(*)
FROM river_job
WHERE kind = 'judge_records' AND jsonb_array_length(args -> 'records') = 20`))
}

func sorted(writes []schema.Write) []schema.Write {
	keys := map[schema.Key]schema.Write{}
	var order []schema.Key
	for _, w := range writes {
		keys[w.Key], order = w, append(order, w.Key)
	}
	out := writes[:0]
	for _, k := range workers.SortedKeys(order) {
		out = append(out, keys[k])
	}
	return out
}

// TestTargetThatChangesMeanwhile stores, edits or deletes the target between the judgment and its
// commit. No other job would notice.
func TestTargetThatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) { c.Queues = []string{jobs.QueueAlerts} }) // no other job judges
	w := b.judge()
	target, def := key(ontologies, "did:plc:author", 1), key(typeDefs, "did:plc:waiter", 1)
	b.write(def, tidOf(1), typeDef(target))
	for _, c := range []struct {
		does func()
		want string
	}{
		{func() { b.write(target, tidOf(1), `,"name":"o"`) }, "valid projected refs:/ontologyRef"},
		{func() { b.delete(target, tidOf(2)) }, "valid projected dangling refs:/ontologyRef!"},
		{func() { b.write(target, tidOf(3), `,"name":"o"`) }, "valid projected refs:/ontologyRef"},
		{func() { b.account(target.DID, "deleted") }, "valid projected dangling refs:/ontologyRef!"},
	} {
		ctx := crashpoint.On(t.Context(), 1, "judgment: after its transaction", func(context.Context) { c.does() })
		require.NoError(t, w.chunk(ctx, &rivertype.JobRow{}, []schema.Key{def}))
		require.Equal(t, c.want, b.state(def))
	}
}

// judge returns a worker that judges the records that a test gives it.
func (b *bench) judge() *JudgeRecords {
	return &JudgeRecords{Projector: b.bundle.Projector(Name), pool: b.pool,
		catalogs: &catalogs{}, rules: b.settings.Lexicons.Rules, judged: func(string) bool { return true }}
}

// TestRecordThatReturnsMeanwhile covers a job that finds that a record was deleted. Before it
// settles the dead letter, the record is stored again, and another job refuses it again.
func TestRecordThatReturnsMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) { c.Queues = []string{jobs.QueueAlerts} }) // no other job judges
	w, other := b.judge(), b.judge()
	def := key(typeDefs, "did:plc:waiter", 1)
	judges := func(ctx context.Context, w *JudgeRecords) {
		t.Helper()
		require.NoError(t, w.chunk(ctx, &rivertype.JobRow{}, []schema.Key{def}))
	}
	b.write(def, tidOf(1), `,"name":1`)
	judges(t.Context(), w)
	b.delete(def, tidOf(2))
	judges(crashpoint.On(t.Context(), 1, "judgment: after its transaction", func(context.Context) {
		b.write(def, tidOf(3), `,"name":2`)
		judges(t.Context(), other)
	}), w)
	require.Equal(t, "invalid refused letter:lexicon", b.state(def))
	b.delete(def, tidOf(4))
	judges(t.Context(), other)
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open'`))
}

// TestDeletedAccountIsKnownAtOnce shows that records that refer to the account's records are
// dangling, and that records that wait for them no longer wait. That holds before the purge and
// when the account comes back.
func TestDeletedAccountIsKnownAtOnce(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	b := newBench(t, nil)
	const author, other, did = "did:plc:author", "did:plc:other", "did:plc:waiter"
	stored, purged, never, kept := key(ontologies, author, 1), key(ontologies, author, 2), key(ontologies, author, 3),
		key(ontologies, other, 1)
	parent := key(expressions, author, 4)
	word := func(of schema.Key) string { return fmt.Sprintf(`,"id":"x","kind":"word","parentRef":%q`, of.URI()) }
	for _, k := range []schema.Key{stored, purged, kept} {
		b.write(k, tidOf(1), `,"name":"o"`)
	}
	b.write(parent, tidOf(1), `,"id":"p","kind":"document"`)
	for i, k := range []schema.Key{stored, purged, never, kept} {
		b.write(key(typeDefs, did, i), tidOf(1), typeDef(k))
	}
	b.write(key(expressions, did, 5), tidOf(1), word(parent))
	plain := key(typeDefs, did, 6) // no rule reads its second reference
	b.write(plain, tidOf(1), typeDef(kept)+fmt.Sprintf(`,"typeKindUri":%q`, stored.URI()))
	found := func() (all []string) {
		for i := range 4 {
			all = append(all, b.state(key(typeDefs, did, i)))
		}
		return append(all, b.state(key(expressions, did, 5)))
	}
	const refers, dangles = "valid projected refs:/ontologyRef", "valid projected dangling refs:/ontologyRef!"
	b.settled()
	require.Equal(t, []string{refers, refers, "valid missing letter:reference", refers, "valid projected refs:/parentRef"}, found())

	b.account(author, "deleted")
	b.settled()
	require.Equal(t, []string{dangles, dangles, dangles, refers, "valid projected refs:/parentRef!"}, found())
	require.Equal(t, "valid projected refs:/ontologyRef,/typeKindUri!", b.state(plain))
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM parked`))

	execute(t, b.pool, `DELETE FROM records_other WHERE rkey = '`+purged.Rkey+`' AND did = '`+author+`'`)
	b.account(author, "active")
	b.settled()
	require.Equal(t, []string{refers, dangles, dangles, refers, "valid projected refs:/parentRef"}, found(),
		"purged records must stay deleted until they are stored again")
	require.Equal(t, "valid projected refs:/ontologyRef,/typeKindUri", b.state(plain))
	b.account("did:plc:nobody", "deleted")
	b.settled()
	require.Zero(t, count(t, b.pool, `
SELECT count(*)
FROM river_job
WHERE kind = 'judge_dependents' AND args::text LIKE '%did:plc:nobody%'`), "no job may be added for an account that no record refers to")

	execute(t, b.pool, `DELETE FROM river_job`)
	execute(t, b.pool, `DELETE FROM projections WHERE name = 'lexicon'`)
	execute(t, b.pool, `UPDATE accounts SET status = 'deleted' WHERE did = '`+author+`'`)
	require.Zero(t, count(t, b.pool, `SELECT count(*) FROM river_job WHERE kind = 'judge_account'`),
		"no job may be added without the projection: no worker knows it")
}

// TestAccountChangesWhileOthersAreJudged covers a record that is judged between the statement that
// deletes an account, or brings it back, and its commit. It is the first that refers to the
// account. It is committed and its targets are checked once more. Neither transaction sees the
// other's rows.
func TestAccountChangesWhileOthersAreJudged(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	b := newBench(t, nil)
	const refers, dangles = "valid projected refs:/parentRef", "valid projected refs:/parentRef!"
	for i, c := range []struct{ from, to, before, after string }{
		{"active", "deleted", refers, dangles},
		{"deleted", "active", dangles, refers},
	} {
		parent, word := key(expressions, fmt.Sprint("did:plc:author", i), 1), key(expressions, "did:plc:waiter", i)
		b.write(parent, tidOf(1), `,"id":"p","kind":"document"`)
		b.account(parent.DID, c.from)
		b.settled()
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) // finished, or the test has failed
		_, err = tx.Exec(t.Context(), `
INSERT INTO accounts (did, status)
VALUES ($1, $2)
ON CONFLICT (did) DO UPDATE SET status = excluded.status`, parent.DID, c.to)
		require.NoError(t, err)
		b.write(word, tidOf(1), fmt.Sprintf(`,"id":"x","kind":"word","parentRef":%q`, parent.URI()))
		b.settled()
		require.Equal(t, c.before, b.state(word))
		require.NoError(t, tx.Commit(t.Context()))
		b.settled()
		require.Equal(t, c.after, b.state(word), c.to)
	}
}

// account commits the status of an account.
func (b *bench) account(did, status string) {
	b.t.Helper()
	require.NoError(b.t, b.commit(b.projections, schema.Batch{Statuses: []schema.Status{{DID: did, Status: status, At: time.Now()}}}))
}

// TestRetryDelays shows that missing records are looked up after 1, 4 and 16 seconds.
func TestRetryDelays(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) { c.Queues = []string{jobs.QueueProcess} })
	target := key(ontologies, "did:plc:author", 1)
	b.write(key(typeDefs, "did:plc:waiter", 1), tidOf(1), typeDef(target))
	becomes(t, b.pool, []string{"waiting 0 1"}, `
SELECT state || ' ' || attempts || ' ' || extract(epoch FROM retry_at - since)::int
FROM parked`)
	for i, want := range []string{"waiting 1 4", "waiting 2 16", "asking 3"} {
		execute(t, b.pool, `UPDATE parked SET retry_at = now() - interval '1 hour'`)
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			targets, more, err := verdict.DueParked(t.Context(), tx, 10)
			require.Equal(t, []verdict.ParkedTarget{{Key: target, Last: i == 2}}, targets)
			require.False(t, more)
			next, failed := verdict.NextDue(t.Context(), tx)
			require.NoError(t, failed)
			require.Equal(t, i < 2, next != nil)
			if err == nil {
				_, err = tx.Exec(t.Context(), `UPDATE parked SET since = now()`)
			}
			return err
		}))
		require.Equal(t, []string{want}, strs(t, b.pool, `
SELECT state || ' ' || attempts || coalesce(' ' || extract(epoch FROM retry_at - since)::int, '')
FROM parked`))
	}
}

// TestParkedAtTheEndOfALook parks a record after the job for that second has looked. The record's
// transaction adds no job. The running job waits for that transaction and adds the next job.
func TestParkedAtTheEndOfALook(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *settings) { c.Queues = []string{jobs.QueueAlerts} }) // the test runs the checks
	ctx := rivertest.WorkContext(t.Context(), b.client.Client)
	due := time.Now().Unix() + 3600 // a second that no other job has
	inserted, err := b.client.Insert(ctx, CheckParkedArgs{Due: due}, nil)
	require.NoError(t, err)
	execute(t, b.pool, fmt.Sprintf(`UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE id = %d`, inserted.Job.ID))
	row, err := b.client.JobGet(ctx, inserted.Job.ID)
	require.NoError(t, err)
	var committed sync.WaitGroup
	meanwhile := crashpoint.On(ctx, 1, "release: no target is due", func(context.Context) {
		tx, err := b.pool.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `
INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey, retry_at)
VALUES ('c', 'd', 'r', 'c', 'e', 'r', now() + interval '1 second')`)
		require.NoError(t, err)
		require.NoError(t, insertCheck(ctx, tx, due))
		committed.Go(func() {
			assert.True(t, eventually.Loop(ctx, 10*time.Millisecond, func() bool { return schematest.Blocks(t, b.pool, tx) }),
				"the job waits for the transaction")
			assert.NoError(t, tx.Commit(ctx))
		})
	})
	w := &CheckParked{pool: b.pool}
	require.NoError(t, w.Work(meanwhile, &river.Job[CheckParkedArgs]{JobRow: row, Args: CheckParkedArgs{Due: due}}))
	committed.Wait()
	require.Equal(t, []string{"completed 0", "scheduled 1"}, strs(t, b.pool, fmt.Sprintf(`
SELECT state || ' ' || (args ->> 'due')::bigint - %d
FROM river_job
WHERE kind = 'check_parked' AND args ->> 'due' <> '0'
ORDER BY id`, due)))
}
