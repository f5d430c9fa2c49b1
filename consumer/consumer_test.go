package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// base32 is the alphabet of a TID.
const base32 = "234567abcdefghijklmnopqrstuvwxyz"

// rev returns the n-th of a rising series of TIDs.
func rev(n int) string {
	return fmt.Sprintf("3mptbyqh%c%c%c22", base32[n/1024%32], base32[n/32%32], base32[n%32])
}

// line returns a post as a v1 server sends it. n sets its time, its rkey and its
// rev.
func line(n int, record string) string {
	return fmt.Sprintf(`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":%d,"kind":"commit","commit":{"rev":%q,"operation":"create",`+
		`"collection":"app.bsky.feed.post","rkey":"r%d","record":%s,"cid":"bafyreiapzyf65cmq55jklpnrihiygze2jmmdqvvkwqeiomd72pbp2iazuu"}}`,
		1783175888000000+n, rev(n), n, record)
}

const plainRecord = `{"$type":"app.bsky.feed.post","text":"hello","createdAt":"2026-07-04T12:00:00Z"}`

// addsNoJobs adds no jobs of projections.
func addsNoJobs(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }

// played returns a consumer that ingests these lines.
func played(t *testing.T, pool *pgxpool.Pool, lines []string, change func(*consumer.Config)) *consumer.Consumer {
	t.Helper()
	cfg := consumer.Config{
		Storage: consumer.Storage{Pool: pool, Enqueue: addsNoJobs,
			Wanted: func(collection string) bool { return collection == schema.PostCollection }, Logger: slog.New(slog.DiscardHandler)},
		Stream: "s", Wire: "recording", Leasing: consumer.Leasing{Owner: t.Name()}, Resuming: consumer.Resuming{IgnorePosition: true},
		Batching: consumer.Batching{BlockOnFullBuffer: true},
		Source:   &recording.Source{Name: "test", Lines: strings.NewReader(strings.Join(lines, "\n")), Wire: jetstream.Wire(nil)},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(cfg)
	require.NoError(t, err)
	return c
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// TestRejectedEventIsDeadLettered puts events that only the database rejects in the
// middle of a batch.
func TestRejectedEventIsDeadLettered(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	var lines []string
	const n = 300
	poison := map[int]bool{0: true, 57: true, 58: true, 200: true, n - 1: true}
	for i := range n {
		record := plainRecord
		if poison[i] {
			record = `{"text":"x","n":` + strings.Repeat("9", 131073) + `}` // valid JSON that jsonb cannot hold
		}
		lines = append(lines, line(i, record))
	}
	require.NoError(t, played(t, pool, lines, nil).Run(t.Context()))
	require.Equal(t, n-len(poison), count(t, pool, `SELECT count(*) FROM posts`))
	require.Equal(t, len(poison), count(t, pool, `SELECT count(*) FROM dead_letters WHERE stage = 'commit' AND cause LIKE '%numeric%'
		AND position = 1783175888000000 + substr(rkey, 2)::bigint`))
	require.Equal(t, 1783175888000000+n-1, count(t, pool, `SELECT cursor FROM streams`))
}

// TestBadInputNeverStopsTheStream sends many kinds of broken and hostile input,
// each between two good events.
func TestBadInputNeverStopsTheStream(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	bad := map[string]string{
		"not JSON":           `{"did":`,
		"not UTF-8":          "{\"did\":\"\xff\xfe\"}",
		"nested too deep":    line(1, `{"a":`+strings.Repeat(`[`, 10000)+strings.Repeat(`]`, 10000)+`}`),
		"nested without end": strings.Repeat(`[`, 100000),
		"no DID":             strings.Replace(line(2, plainRecord), `"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa",`, ``, 1),
		"bad DID":            strings.Replace(line(3, plainRecord), `did:plc:aaaa`, `did:PLC:aaaa`, 1),
		"bad rkey":           strings.Replace(line(4, plainRecord), `"rkey":"r4"`, `"rkey":"a/b"`, 1),
		"bad rev":            strings.Replace(line(5, plainRecord), rev(5), `now`, 1),
		"bad collection":     strings.Replace(line(6, plainRecord), `app.bsky.feed.post"`, `post"`, 1),
		"no record":          strings.Replace(line(7, plainRecord), `"record":`+plainRecord+`,`, ``, 1),
		"record no object":   line(8, `"text"`),
		"unknown operation":  strings.Replace(line(9, plainRecord), `"create"`, `"destroy"`, 1),
		"time is text":       strings.Replace(line(10, plainRecord), `"time_us":`, `"time_us":"x","y":`, 1),
		"sync without rev":   `{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783175888000001,"kind":"sync","sync":{}}`,
		"too large":          line(11, `{"text":"`+strings.Repeat("x", 10<<20)+`"}`),
	}
	ignored := []string{
		`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783175888000001,"kind":"surprise","surprise":{}}`,
		strings.Replace(line(12, plainRecord), `app.bsky.feed.post"`, `com.example.unheard.of"`, 1),
	}
	var lines []string
	good := 0
	next := func() {
		lines = append(lines, line(100+good, plainRecord))
		good++
	}
	next()
	for _, l := range bad {
		lines = append(lines, l)
		next()
	}
	for _, l := range ignored {
		lines = append(lines, l)
		next()
	}
	require.NoError(t, played(t, pool, lines, nil).Run(t.Context()))
	require.Equal(t, good, count(t, pool, `SELECT count(*) FROM posts`))
	rows, err := pool.Query(t.Context(), `SELECT stage || ': ' || cause || ' ' || path FROM dead_letters`)
	require.NoError(t, err)
	causes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, causes, len(bad), "%s", strings.Join(causes, "\n"))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE path = '/commit/rkey' AND position = 1783175888000004`))
}

// TestUnusualValidPostsAreStored checks that posts with unusual text or dates are
// stored.
func TestUnusualValidPostsAreStored(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	records := []string{
		`{"text":"no time"}`,
		`{"text":"absurd","createdAt":"-99999-99-99"}`,
		`{"text":"future","createdAt":"2999-01-01T00:00:00Z"}`,
		`{"text":"before Christ","createdAt":"-0100-01-01T00:00:00Z"}`,
		`{"text":"nul \u0000 and lone \ud800 surrogate","createdAt":"2026-07-04T12:00:00Z"}`,
		`{"text":"\\u0000 is no NUL","createdAt":"2026-07-04T12:00:00Z"}`,
		`{}`,
	}
	var lines []string
	for i, r := range records {
		lines = append(lines, line(i, r))
	}
	require.NoError(t, played(t, pool, lines, nil).Run(t.Context()))
	require.Equal(t, len(records), count(t, pool, `SELECT count(*) FROM posts`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Zero(t,
		count(t, pool, `SELECT count(*) FROM posts WHERE created_at > to_timestamp($1::bigint / 1e6)`, 1783175888000000+len(records)))
	var text, escaped string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT record->>'text' FROM posts WHERE rkey = 'r4'`).Scan(&text))
	require.Equal(t, "nul \uFFFD and lone \uFFFD surrogate", text)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT record->>'text' FROM posts WHERE rkey = 'r5'`).Scan(&escaped))
	require.Equal(t, `\u0000 is no NUL`, escaped)
}

// TestSecondIngestChangesNothing checks that a second ingest changes no rows
// and enqueues no jobs.
func TestSecondIngestChangesNothing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	var lines []string
	for i := range 50 {
		lines = append(lines, line(i, plainRecord))
	}
	lines = append(lines, strings.Replace(strings.Replace(line(60, plainRecord), `"create"`, `"delete"`, 1), `"r60"`, `"r7"`, 1))
	enqueued := 0
	counting := func(cfg *consumer.Config) {
		cfg.BatchEvents = 7
		cfg.Enqueue = func(_ context.Context, _ pgx.Tx, written []schema.Stored, _ time.Time) error {
			enqueued += len(written)
			return nil
		}
	}
	snapshot := func() (s string) {
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT string_agg(r::text, E'\n' ORDER BY r.rkey) || (SELECT string_agg(x::text, '') FROM tombstones x) FROM records r`).Scan(&s))
		return s
	}
	require.NoError(t, played(t, pool, lines, counting).Run(t.Context()))
	first := snapshot()
	require.Equal(t, 50, enqueued)
	require.NoError(t, played(t, pool, lines, counting).Run(t.Context()))
	require.Equal(t, first, snapshot())
	require.Equal(t, 50, enqueued)
}

// TestJobsAndRecordsAreOneTransaction checks that if the jobs cannot be written,
// the records and the cursor are not written either.
func TestJobsAndRecordsAreOneTransaction(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	full := errors.New("no room in the queue")
	err := played(t, pool, []string{line(1, plainRecord)}, func(cfg *consumer.Config) {
		cfg.Enqueue = func(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return full }
	}).Run(t.Context())
	require.ErrorIs(t, err, full)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM posts`))
	require.Zero(t, count(t, pool, `SELECT cursor FROM streams`))
}

// TestDeadlockIsRetriedInOrder lets the first attempt of a commit fail as if by
// a deadlock.
func TestDeadlockIsRetriedInOrder(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	tries := 0
	require.NoError(t, played(t, pool, []string{line(1, plainRecord), line(2, plainRecord)}, func(cfg *consumer.Config) {
		cfg.BatchEvents = 1
		cfg.Enqueue = func(ctx context.Context, tx pgx.Tx, written []schema.Stored, _ time.Time) error {
			if tries++; tries == 1 {
				_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$`)
				return err
			}
			return nil
		}
	}).Run(t.Context()))
	require.Equal(t, 3, tries)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM posts`))
}

// TestStopCommitsReadEvents checks that a stop commits the events that were
// read and releases the lease.
func TestStopCommitsReadEvents(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	var lines []string
	for i := range 20000 {
		lines = append(lines, line(i, plainRecord))
	}
	stored := 0
	require.NoError(t, played(t, pool, lines, func(cfg *consumer.Config) {
		cfg.BlockOnFullBuffer, cfg.BufferBytes = true, 64<<10 // most lines are not read yet
		cfg.Enqueue = func(_ context.Context, _ pgx.Tx, written []schema.Stored, _ time.Time) error {
			stored += len(written)
			cancel() // during the first commit
			return nil
		}
	}).Run(ctx))
	require.Positive(t, stored)
	require.Less(t, stored, len(lines))
	require.Equal(t, stored, count(t, pool, `SELECT count(*) FROM posts`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL AND state = 'stopped'`))
}

// TestStopWhileTheLeaseIsTaken checks that a stop leaves no unused lease
// behind.
func TestStopWhileTheLeaseIsTaken(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	before, ok, err := schema.TakeLease(t.Context(), pool, "s", "recording", "before", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, before.Release(t.Context(), pool))
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `LOCK TABLE streams IN SHARE MODE`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	c := played(t, pool, []string{line(1, plainRecord)}, nil)
	go func() { ended <- c.Run(ctx) }()
	eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 10*time.Millisecond)
	cancel()
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-ended)
	require.Equal(t, int(before.Epoch)+1, count(t, pool, `SELECT epoch FROM streams`), "the consumer must have taken the lease")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL AND state = 'stopped'`))
}

// TestSecondConsumerWaitsAndTakesOver checks that a lease has only one writer
// at a time.
func TestSecondConsumerWaitsAndTakesOver(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	dead, ok, err := schema.TakeLease(t.Context(), pool, "s", "recording", "dead", 2*time.Second)
	require.NoError(t, err)
	require.True(t, ok)
	var expires, ended time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT lease_expires_at FROM streams`).Scan(&expires))
	second := played(t, pool, []string{line(1, plainRecord)}, func(cfg *consumer.Config) { cfg.LeasePoll = 50 * time.Millisecond })
	require.NoError(t, second.Run(t.Context()))
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&ended))
	require.True(t, ended.After(expires), "the second consumer took over before the lease expired")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM posts`))
	_, err = dead.Renew(t.Context(), pool, schema.Heartbeat{State: schema.StateLive})
	require.ErrorIs(t, err, schema.ErrFenced)
}

// TestPostgresRestartIsTransient restarts the server abruptly, as a crash would,
// while a recording is ingested.
func TestPostgresRestartIsTransient(t *testing.T) {
	t.Parallel()
	server := schematest.Server(t)
	pool, err := pgxpool.New(t.Context(), server.URL("weir"))
	require.NoError(t, err)
	defer pool.Close()
	require.NoError(t, schematest.Migrate(t.Context(), pool))
	var lines bytes.Buffer
	const n = 3000
	for i := range n {
		lines.WriteString(line(i, plainRecord) + "\n")
	}
	commits := 0
	require.NoError(t, played(t, pool, []string{lines.String()}, func(cfg *consumer.Config) {
		cfg.BatchEvents = 50
		cfg.Enqueue = func(ctx context.Context, _ pgx.Tx, _ []schema.Stored, _ time.Time) error {
			if commits++; commits%20 == 10 {
				return server.RestartImmediate(context.WithoutCancel(ctx)) // inside the transaction
			}
			return nil
		}
	}).Run(t.Context()))
	require.Greater(t, commits, n/50, "commits that the restarts aborted must be retried")
	require.Equal(t, n, count(t, pool, `SELECT count(*) FROM posts`))
}

// TestDeadLettersAreCountedByStageAndCollection checks that the labels contain
// only stored collections, never names from the network.
func TestDeadLettersAreCountedByStageAndCollection(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	refused := line(2, `{"text":"x","n":`+strings.Repeat("9", 131073)+`}`)
	badRkey := strings.Replace(line(3, plainRecord), `"rkey":"r3"`, `"rkey":"a/b"`, 1)
	lines := []string{line(1, plainRecord), refused, badRkey, strings.Replace(badRkey, schema.PostCollection, "stranger.made.this", 1),
		strings.Replace(line(4, plainRecord), "did:plc:", "did:PLC:", 1) + "}", `{"did":`, line(5, plainRecord)}
	require.NoError(t, played(t, schematest.New(t), lines, func(cfg *consumer.Config) { cfg.Registerer = registry }).Run(t.Context()))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "weir_consumer_dead_lettered_total" {
				got[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"decode app.bsky.feed.post": 2, "commit app.bsky.feed.post": 1, "decode other": 2, "commit other": 0,
		"verify app.bsky.feed.post": 0, "verify other": 0}, got)
}

// TestRecordSizeIsMeasuredInCBOR checks that a control character counts as one
// byte, and not as the six bytes of its JSON escape. A record that is too large
// leaves a small dead letter.
func TestRecordSizeIsMeasuredInCBOR(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	text := func(n int, character string) string { return `{"text":"` + strings.Repeat(character, n) + `"}` }
	const most = 1<<20 - 11 // the rest is the field's name and the CBOR headers
	require.NoError(t, played(t, pool, []string{
		line(1, text(most, `\u0001`)),
		line(2, text(most, `\u0000`)),
		line(3, text(most+1, `\u0001`)),
		line(4, text(most+1, `x`)),
	}, nil).Run(t.Context()))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM posts WHERE length(record ->> 'text') = $1 AND rkey IN ('r1', 'r2')`, most))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM posts`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM dead_letters WHERE cause LIKE 'the record is larger%' AND received = $1
		AND octet_length(raw) = 16384 AND raw_bytes > 1048576`, fmt.Sprintf("%d bytes", 1<<20+1)))
}

// TestDeadLetterNamesItsAccount checks that the dead letter of a malformed
// frame has the account that the frame names.
func TestDeadLetterNamesItsAccount(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, played(t, pool, []string{
		line(1, `{"a":`+strings.Repeat(`[`, 1000)+strings.Repeat(`]`, 1000)+`}`),
		strings.Replace(line(2, plainRecord), `"rkey":"r2"`, `"rkey":"a/b"`, 1),
		strings.Replace(line(3, plainRecord), `did:plc:aaaa`, `did:PLC:aaaa`, 1),
		`{"did":`,
	}, nil).Run(t.Context()))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM dead_letters WHERE did = 'did:plc:aaaaaaaaaaaaaaaaaaaaaaaa'`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM dead_letters WHERE did IS NULL`))
}

// TestDeletionErasesDeadLetterInput checks that the deletion of an unreadable
// record erases its dead letter's input.
func TestDeletionErasesDeadLetterInput(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	bad := strings.Replace(line(1, plainRecord), `"cid":"`, `"cid":"!`, 1)
	deletion := `{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1700000009000000,"kind":"commit",` +
		`"commit":{"rev":"` + rev(9) + `","operation":"delete","collection":"app.bsky.feed.post","rkey":"r1"}}`
	require.NoError(t, played(t, pool, []string{bad}, nil).Run(t.Context()))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE stage = 'decode' AND rkey = 'r1' AND raw_bytes > 0`))
	require.NoError(t, played(t, pool, []string{deletion, bad}, nil).Run(t.Context()))
	require.Equal(t, 1,
		count(t, pool, `SELECT count(*) FROM dead_letters WHERE stage = 'decode' AND rkey = 'r1' AND raw_bytes = 0 AND raw = ''`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters`))
}
