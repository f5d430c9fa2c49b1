package workers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// registered registers the projections of the weir binary and returns them.
func registered(t testing.TB, pool *pgxpool.Pool) schema.Projections {
	t.Helper()
	p := schema.NewProjections(posted())
	require.NoError(t, register(t, pool, p))
	return p
}

// register registers projections.
func register(t testing.TB, pool *pgxpool.Pool, p schema.Projections) error {
	_, err := p.Register(t.Context(), pool)
	return err
}

// countWords is the job of another program's projection. It counts the words of notes in its own
// table.
type countWords struct{ jobs.Batch }

func (countWords) Kind() string { return "count_words" }

type wordCounter struct {
	river.WorkerDefaults[countWords]
	*Projector
	broken atomic.Bool
}

func (w *wordCounter) Work(ctx context.Context, job *river.Job[countWords]) error {
	return w.Project(ctx, job.JobRow, job.Args.Records, func(ctx context.Context, tx pgx.Tx, records []schema.Record) error {
		for _, r := range records {
			var note struct{ Text string }
			if err := json.Unmarshal(r.Record, &note); err != nil {
				return err
			}
			switch {
			case strings.HasPrefix(note.Text, "bad") && w.broken.Load():
				return errors.New("it says " + note.Text)
			case strings.HasPrefix(note.Text, "worse") && w.broken.Load():
				panic(note.Text)
			}
			const upsert = `INSERT INTO words VALUES ($1, $2, $3, $4) ON CONFLICT (did, collection, rkey) DO UPDATE SET n = excluded.n`
			if _, err := tx.Exec(ctx, upsert, r.DID, r.Collection, r.Rkey, len(strings.Fields(note.Text))); err != nil {
				return err
			}
		}
		return nil
	})
}

const layers = "pub.layers.note"

func noteKey(rkey string) schema.Key {
	return schema.Key{Collection: layers, DID: "did:plc:a", Rkey: rkey}
}

// words returns the other program's projections, and creates their table.
func words(t *testing.T, pool *pgxpool.Pool) schema.Projections {
	t.Helper()
	execute(t, pool,
		`CREATE TABLE IF NOT EXISTS words (did text, collection text, rkey text, n int CHECK (n < 9), PRIMARY KEY (did, collection, rkey))`)
	return schema.NewProjections(posted(), schema.Projection{
		Name: "words", Collections: []string{"pub.layers.*"}, Tables: []string{"words"},
		Job: func(b jobs.Batch) river.JobArgs { return countWords{b} },
	})
}

// counting starts the workers of the other program.
func counting(t *testing.T, pool *pgxpool.Pool, p schema.Projections) *wordCounter {
	t.Helper()
	w := &wordCounter{}
	client, err := New(withPosts(Config{Shared: Shared{Pool: pool, Projections: p, Logger: slog.New(slog.DiscardHandler)},
		ID: t.Name(), Processing: Processing{Queues: append(p.AllQueues(), jobs.QueueNetwork, jobs.QueueMaintenance)},
		Features: []func(Bundle) error{func(b Bundle) error {
			w.Projector = b.Projector("words")
			Add(b, w)
			return nil
		}}}))
	require.NoError(t, err)
	running(t, client)
	return w
}

// commit stores a batch like the consumer.
func (a author) commit(p schema.Projections, b schema.Batch) (err error) {
	a.t.Helper()
	queue, err := Queue(a.pool, slog.New(slog.DiscardHandler))
	require.NoError(a.t, err)
	b.Projections, b.Careful = p, true
	return pgx.BeginFunc(a.t.Context(), a.pool, func(tx pgx.Tx) error {
		written, err := b.Apply(a.t.Context(), tx, a.lease)
		if err != nil {
			return err
		}
		return p.Enqueue(queue, "s")(a.t.Context(), tx, append(b.Stored(written), schema.NotFresh(p.Deleted(b.Deletions))...), time.Now())
	})
}

func notes(rev string, texts ...string) (writes []schema.Write) {
	for _, text := range texts {
		rkey, _, _ := strings.Cut(text, " ")
		writes = append(writes,
			schema.Write{Key: noteKey(rkey), Rev: rev, CID: "c", CreatedAt: time.Unix(100, 0), Record: fmt.Appendf(nil, `{"text":%q}`, text)})
	}
	return writes
}

const counted = `SELECT rkey || ' ' || n FROM words ORDER BY rkey`

// TestProjectionOfAnotherProgram shows that such a projection works like that of links. It has one
// job per batch. Its rows are deleted in the transaction that deletes their record, or with their
// account. Single records become dead letters and are retried.
func TestProjectionOfAnotherProgram(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	p := words(t, pool)
	require.NoError(t, register(t, pool, p))
	a := newAuthorOf(t, pool)
	w := counting(t, pool, p)
	w.broken.Store(true)
	w1 := schema.Write{
		Key: postKey("did:plc:a", "post"), Rev: "1", CID: "c", CreatedAt: time.Unix(100, 0), Record: []byte(`{"text":"https://a.example"}`),
	}
	first := append([]schema.Write{w1}, notes("1", "a b c", "bad x", "long 2 3 4 5 6 7 8 9 10", "worse x", "z")...)
	require.NoError(t, a.commit(p, schema.Batch{Writes: first}))
	becomes(t, pool, []string{"a 3", "z 1"}, counted)
	require.Equal(t,
		[]string{`count_words process ["did:plc:a/pub.layers.note/a", "did:plc:a/pub.layers.note/bad", "did:plc:a/pub.layers.note/long",` +
			` "did:plc:a/pub.layers.note/worse", "did:plc:a/pub.layers.note/z"]`,
			`read_posts process ["did:plc:a/app.bsky.feed.post/post"]`},
		strs(t, pool, `SELECT concat_ws(' ', kind, queue, args -> 'records') FROM river_job WHERE queue = 'process' ORDER BY kind`))
	const letters = `
		SELECT concat_ws(' ', rkey, projection, state, count, replace(substring(cause
		    FROM 'it says bad x|words_n_check|the projection panicked: worse x'), ' ', '_')) FROM dead_letters ORDER BY rkey`
	becomes(t, pool,
		[]string{"bad words open 1 it_says_bad_x", "long words open 1 words_n_check", "worse words open 1 the_projection_panicked:_worse_x"},
		letters)

	// Retries: too early, after the repair, and after the record was deleted.
	require.NoError(t, a.commit(p, schema.Batch{Deletions: []schema.Deletion{
		{Key: noteKey("worse"), Rev: "2", At: time.Unix(200, 0)}, {Key: noteKey("z"), Rev: "2", At: time.Unix(200, 0)},
	}}))
	require.Equal(t, []string{"a 3"}, strs(t, pool, counted), "the rows must be deleted with the record, before any job")
	execute(t, pool, `SELECT retry_dead_letters('process')`)
	becomes(t, pool,
		[]string{"bad words open 2 it_says_bad_x", "long words open 2 words_n_check", "worse words retried 1 the_projection_panicked:_worse_x"},
		letters)
	w.broken.Store(false)
	execute(t, pool, `ALTER TABLE words DROP CONSTRAINT words_n_check`)
	execute(t, pool, `SELECT retry_dead_letters('process')`)
	becomes(t, pool, []string{"a 3", "bad 2", "long 10"}, counted)
	becomes(t, pool, []string{"retried"}, `SELECT DISTINCT state FROM dead_letters`)

	// A later edit, and the purge of the account.
	require.NoError(t, a.commit(p, schema.Batch{Writes: notes("3", "a b")}))
	becomes(t, pool, []string{"a 2", "bad 2", "long 10"}, counted)
	require.NoError(t, a.commit(p, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:a", Status: "deleted", At: time.Now()}}}))
	expire, err := NewExpire(NewBundle(Config{Shared: Shared{Pool: pool, Projections: p, Logger: slog.New(slog.DiscardHandler)}}),
		Retention{Forever: true})
	require.NoError(t, err)
	require.NoError(t, expire.Run(t.Context(), time.Now()))
	require.Empty(t, strs(t, pool, counted))
	require.Equal(t, []string{"deleted"}, strs(t, pool, `SELECT status FROM accounts`))
}

// TestConcurrentCommitIsProjected shows that registering a projection waits for the commits without
// it, and that no later commit omits it.
func TestConcurrentCommitIsProjected(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	before := registered(t, pool)
	a := newAuthorOf(t, pool)
	p := words(t, pool)
	b := schema.Batch{Writes: notes("1", "a")}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) // committed, or the test has failed
	_, err = b.Apply(t.Context(), tx, a.lease)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- register(t, pool, p) }()
	becomes(t, pool, []string{"1"},
		`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-done)
	require.Equal(t, []string{"words"}, strs(t, pool, `SELECT args ->> 'name' FROM river_job WHERE kind = 'run_projection'`))
	require.ErrorIs(t, a.commit(before, schema.Batch{Writes: notes("1", "b")}), schema.ErrFenced)
}

// TestNewProjectionReadsWhatIsStored shows that it reads every record of its collections, once.
func TestNewProjectionReadsWhatIsStored(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	before := registered(t, pool)
	a := newAuthorOf(t, pool)
	var stored []schema.Write
	for i := range 3 * PageRecords {
		stored = append(stored, notes("1", fmt.Sprintf("r%04d x", i))...)
	}
	require.NoError(t, a.commit(before, schema.Batch{Writes: stored}))
	execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT c, 'did:plc:b', 'other', '1', 'c', now(), '{"text":"o"}'
		FROM unnest(ARRAY['pub.layer', 'pub.layers', 'pub.layers.z', 'pub.layerss']) AS c`)

	p := words(t, pool)
	require.NoError(t, register(t, pool, p))
	counting(t, pool, p)
	becomes(t, pool, []string{"other 1", fmt.Sprint("r ", 3*PageRecords)}, `
		SELECT kind || ' ' || count(*) FROM (SELECT CASE n WHEN 1 THEN rkey ELSE left(rkey, 1) END AS kind FROM words) AS w GROUP BY kind
		ORDER BY kind`)
	require.Equal(t, []string{"500", "500", "500", "1"},
		strs(t, pool, `SELECT jsonb_array_length(args -> 'records')::text FROM river_job WHERE kind = 'count_words' ORDER BY id`))
	becomes(t, pool, []string{"completed"}, `SELECT state::text FROM river_job WHERE kind = 'run_projection'`)
	require.NoError(t, register(t, pool, p), "again, as at every start")
	require.Equal(t, []string{"1"}, strs(t, pool, `SELECT count(*)::text FROM river_job WHERE kind = 'run_projection'`))
	execute(t, pool, `DELETE FROM words`)
	execute(t, pool, `INSERT INTO words (collection, did, rkey, n) VALUES ('com.example.unread', 'did:plc:a', 'stale', 1)`)
	id, err := schema.RunProjection(t.Context(), pool, "words") // as `weir rebuild` does
	require.NoError(t, err)
	eventually.True(t, func() bool {
		run, err := schema.FindProjectionRun(t.Context(), pool, id)
		require.NoError(t, err)
		return run == schema.ProjectionRun{State: "completed", Records: 3*PageRecords + 1}
	}, 10*time.Millisecond)
	require.Equal(t, []string{fmt.Sprint(3*PageRecords + 1)}, strs(t, pool, `SELECT count(*)::text FROM words`))
}

// TestProgramThatLacksAProjectionStoresNothing shows that its error says what to do, until the
// projection is removed. Unfinished jobs prevent the removal.
func TestProgramThatLacksAProjectionStoresNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	log := slog.New(slog.DiscardHandler)
	older := registered(t, pool)
	newer := words(t, pool)
	ended := make(chan error, 1)
	go func() { ended <- older.Watch(t.Context(), pool, time.Millisecond) }()
	queue, err := Queue(pool, log)
	require.NoError(t, err)
	var outdated *schema.OutdatedError
	stray := func(p schema.Projections) error { // stores without a stream
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return p.Enqueue(queue, "")(t.Context(), tx, schema.NotFresh([]schema.Key{noteKey("b")}), time.Time{})
		})
	}
	require.ErrorAs(t, stray(newer), &outdated, "before it is registered")
	require.NoError(t, register(t, pool, newer))
	a := newAuthorOf(t, pool)
	require.NoError(t, a.commit(newer, schema.Batch{Writes: notes("1", "a b")}))

	err = register(t, pool, schema.NewProjections(posted()))
	require.ErrorAs(t, err, &outdated)
	require.ErrorContains(t, err,
		`"words", which this program lacks: run the program that has it, or remove the projection by `+"`weir projection remove words`")
	require.ErrorAs(t, <-ended, &outdated, "a program that is already running must end")
	require.ErrorAs(t, stray(older), &outdated, "so does what comes without a stream")
	_, err = New(withPosts(Config{Shared: Shared{Pool: pool, Projections: newer, Logger: log}}))
	require.ErrorContains(t, err, `projection "words": no worker processes its jobs of kind count_words`)

	require.ErrorContains(t, schema.RemoveProjection(t.Context(), pool, "words"), "unfinished count_words jobs: Run the program")
	execute(t, pool, `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE kind = 'count_words'`)
	execute(t, pool, `
		INSERT INTO dead_letters (key, stage, projection, cause, raw, raw_bytes, first_seen, last_seen)
		VALUES ('\x00', 'process', 'words', 'x', '', 0, now(), now())`)
	require.NoError(t, schema.RemoveProjection(t.Context(), pool, "words"))
	require.ErrorIs(t, schema.RemoveProjection(t.Context(), pool, "words"), schema.ErrNoRows)
	require.Equal(t, []string{"dismissed"}, strs(t, pool, `SELECT state FROM dead_letters`))
	require.ErrorAs(t, newer.Check(t.Context(), pool), &outdated, "the program that has it would add jobs of an unknown kind")
	require.NoError(t, register(t, pool, schema.NewProjections(posted())))

	// Invalid projections.
	for want, change := range map[string]func(*schema.Projection){
		"there is no table nowhere with":     func(p *schema.Projection) { p.Tables = []string{"nowhere"} },
		"there is no table streams with":     func(p *schema.Projection) { p.Tables = []string{"streams"} },
		"there is no table or view streams":  func(p *schema.Projection) { p.Compared = []string{"streams"} },
		"have the same kind of job":          func(p *schema.Projection) { p.Job = posted().Job },
		`"*" is neither a collection nor`:    func(p *schema.Projection) { p.Collections = []string{"*"} },
		`"a.*.b" is neither a collection`:    func(p *schema.Projection) { p.Collections = []string{"a.*.b"} },
		`violates check constraint "project`: func(p *schema.Projection) { p.Name = "Words!" },
	} {
		bad := newer[1]
		change(&bad)
		require.ErrorContains(t, register(t, pool, schema.NewProjections(append(slices.Clip(older), bad)...)), want)
	}
}

// TestOutdatedProgramDeletesNothing covers a program that lacks a projection registered meanwhile.
// It does not know that projection's tables, and their rows would stay.
func TestOutdatedProgramDeletesNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	r := &repository{Shared: Shared{Pool: pool, Projections: registered(t, pool)}, did: "did:plc:a"}
	execute(t, pool, `
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('app.example.x', 'did:plc:a', '1', '1', 'c', now(), '{}')`)
	execute(t, pool,
		`INSERT INTO projections (name, collections, kind, queue, tables) VALUES ('later', '{app.example.x}', 'k', 'process', '{}')`)
	err := r.repair(t.Context(), nil, "2",
		compared{faults: []schema.Fault{{Collection: "app.example.x", Rkey: "1", Fault: schema.FaultExtra, Rev: "1"}}}, nil)
	require.ErrorAs(t, err, new(*schema.OutdatedError))
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM records`).Scan(&left))
	require.Equal(t, 1, left)
}

// TestNamespacesHaveQueues shows that a batch has a job in each queue, and that another
// configuration leaves no job behind.
func TestNamespacesHaveQueues(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	of := func(queues ...schema.Queue) schema.Projections {
		p := schema.NewProjections(schema.Projection{Name: "words", Collections: []string{"example.weir.*"}, Separate: queues,
			Job: func(b jobs.Batch) river.JobArgs { return countWords{b} }})
		require.NoError(t, register(t, pool, p))
		return p
	}
	graph := schema.Queue{Name: "weir_graph", Collections: []string{"example.weir.graph.*"}, Workers: 3, Priority: 2}
	rest := schema.Queue{
		Name: "weir_rest", Collections: []string{"example.weir.media.*", "example.weir.persona.persona"}, Workers: 1, Priority: 4,
	}
	p := of(graph, rest)
	require.Equal(t, []string{"process", "weir_graph", "weir_rest"}, p.AllQueues())
	waiting, err := schema.Queues(t.Context(), pool, nil)
	require.NoError(t, err)
	require.Len(t, waiting, 3, "the queues must be listed before any worker has served them")
	bundle := Bundle{bundle: &bundle{cfg: &Config{Shared: Shared{Projections: p}}, queues: map[string]int{}}}
	addQueues(bundle, Config{Shared: Shared{Projections: p}, Processing: Processing{Process: 8}})
	served, err := bundle.served()
	require.NoError(t, err)
	require.Equal(t, []int{8, 3, 1}, []int{served["process"].MaxWorkers, served["weir_graph"].MaxWorkers, served["weir_rest"].MaxWorkers})

	write := func(collection string) schema.Write {
		return schema.Write{
			Key: schema.Key{Collection: "example.weir." + collection, DID: "did:plc:a", Rkey: "1"}, Rev: "1", CID: "c", CreatedAt: time.Unix(100, 0),
			Record: []byte(`{}`),
		}
	}
	a := newAuthorOf(t, pool)
	require.NoError(t, a.commit(p, schema.Batch{Writes: []schema.Write{
		write("corpus.corpus"), write("graph.graphEdge"), write("graph.graphNode"), write("media.media"), write("persona.other"),
		write("persona.persona"),
	}}))
	const all = `
		SELECT queue || ' ' || priority || ' ' || (SELECT string_agg(split_part(r, '/', 2), ',' ORDER BY r)
		    FROM jsonb_array_elements_text(args -> 'records') AS r) FROM river_job WHERE kind = 'count_words' ORDER BY id`
	want := []string{
		"process 1 example.weir.corpus.corpus,example.weir.persona.other",
		"weir_graph 2 example.weir.graph.graphEdge,example.weir.graph.graphNode",
		"weir_rest 4 example.weir.media.media,example.weir.persona.persona",
	}
	require.ElementsMatch(t, want, strs(t, pool, all))
	deepest, err := schema.DeepestQueue(t.Context(), pool, p.AllQueues(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, deepest)

	// A process that still runs with the old queues returns its job later.
	execute(t, pool, `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE queue = 'weir_graph'`)
	other := of(rest)
	require.Equal(t, []string{"process", "weir_rest"}, other.AllQueues())
	require.ErrorContains(t, p.Check(t.Context(), pool), "was changed")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM river_job WHERE queue = 'weir_graph'`), "it runs")
	execute(t, pool, `UPDATE river_job SET state = 'retryable' WHERE queue = 'weir_graph'`)
	moved, err := schema.MoveStranded(t.Context(), pool)
	require.NoError(t, err)
	require.EqualValues(t, 1, moved)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'count_words' AND queue = 'process'`))
	of()
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'count_words' AND queue = 'process'`),
		"registering the projections must move the job")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'run_projection'`), "the records are not judged again")
}
