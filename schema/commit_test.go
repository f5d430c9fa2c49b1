package schema_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

const ttl = 10 * time.Second

func take(t *testing.T, pool *pgxpool.Pool, owner string) schema.Lease {
	t.Helper()
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", owner, ttl)
	require.NoError(t, err)
	require.True(t, ok)
	return lease
}

func apply(ctx context.Context, pool *pgxpool.Pool, lease schema.Lease, b schema.Batch) (written []schema.Key, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		b.Projections = madeProjection()
		written, err = b.Apply(ctx, tx, lease)
		return err
	})
	return written, err
}

func key(rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: "did:plc:a", Rkey: rkey}
}

func post(rkey, rev string) schema.Write {
	return schema.Write{Key: key(rkey), Rev: rev, CID: "c" + rev, CreatedAt: time.Unix(1, 0), Record: []byte(fmt.Sprintf(`{"rev":%q}`, rev))}
}

func deletion(rkey, rev string) schema.Deletion {
	return schema.Deletion{Key: key(rkey), Rev: rev, At: time.Unix(2, 0)}
}

// revs returns the revisions of the stored posts, by rkey.
func revs(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT rkey, rev FROM posts`)
	require.NoError(t, err)
	all := map[string]string{}
	var rkey, rev string
	_, err = pgx.ForEachRow(rows, []any{&rkey, &rev}, func() error { all[rkey] = rev; return nil })
	require.NoError(t, err)
	return all
}

func TestOnlyANewerRevisionIsWritten(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	for _, step := range []struct {
		writes  []schema.Write
		deletes []schema.Deletion
		written int
		want    map[string]string
	}{
		{writes: []schema.Write{post("a", "2"), post("b", "2")}, written: 2, want: map[string]string{"a": "2", "b": "2"}},
		{writes: []schema.Write{post("a", "1"), post("b", "2")}, written: 0, want: map[string]string{"a": "2", "b": "2"}},
		{writes: []schema.Write{post("a", "3")}, written: 1, want: map[string]string{"a": "3", "b": "2"}},
		{deletes: []schema.Deletion{deletion("a", "2")}, want: map[string]string{"a": "3", "b": "2"}},
		{deletes: []schema.Deletion{deletion("a", "4"), deletion("c", "5")}, want: map[string]string{"b": "2"}},
		{writes: []schema.Write{post("a", "4"), post("c", "1")}, written: 0, want: map[string]string{"b": "2"}},
		{writes: []schema.Write{post("a", "5"), post("c", "6")}, written: 2, want: map[string]string{"a": "5", "b": "2", "c": "6"}},
		{deletes: []schema.Deletion{deletion("b", "9")}, writes: []schema.Write{post("b", "10")}, written: 0, want: map[string]string{
			"a": "5", "c": "6",
		}},
	} {
		written, err := apply(t.Context(), pool, lease, schema.Batch{Writes: step.writes, Deletions: step.deletes})
		require.NoError(t, err)
		require.Len(t, written, step.written)
		require.Equal(t, step.want, revs(t, pool))
	}
}

// TestFenceRefusesThePreviousHolder shows that a process that resumes after it lost its
// lease commits nothing.
func TestFenceRefusesThePreviousHolder(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	old := take(t, pool, "first")
	_, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "second", ttl)
	require.NoError(t, err)
	require.False(t, ok, "the lease has not expired")

	_, err = pool.Exec(t.Context(), `UPDATE streams SET lease_expires_at = clock_timestamp() - interval '1 second'`)
	require.NoError(t, err)
	current := take(t, pool, "second")
	require.Greater(t, current.Epoch, old.Epoch)

	_, err = apply(t.Context(), pool, old, schema.Batch{Writes: []schema.Write{post("a", "1")}})
	require.ErrorIs(t, err, schema.ErrFenced)
	require.Equal(t, schema.Fenced, schema.Classify(err))
	require.ErrorIs(t, renew(t, pool, old), schema.ErrFenced)
	require.NoError(t, old.Release(t.Context(), pool))
	require.Empty(t, revs(t, pool))

	_, err = apply(t.Context(), pool, current, schema.Batch{Writes: []schema.Write{post("a", "1")}})
	require.NoError(t, err)
	require.Len(t, revs(t, pool), 1)
}

func renew(t *testing.T, pool *pgxpool.Pool, lease schema.Lease) error {
	t.Helper()
	_, err := lease.Renew(t.Context(), pool, schema.Heartbeat{State: schema.StateLive})
	return err
}

func TestReleasedLeaseIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	first := take(t, pool, "first")
	require.NoError(t, first.Release(t.Context(), pool))
	// A renewal that was sent earlier arrives later: the stream stays stopped.
	require.ErrorIs(t, renew(t, pool, first), schema.ErrFenced)
	second := take(t, pool, "second")
	require.Equal(t, first.Epoch+1, second.Epoch)
}

// TestWaitingForTheLeaseNeverBlocks covers a paused holder with an open transaction that locks the
// stream's row.
func TestWaitingForTheLeaseNeverBlocks(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "first")
	_, err := pool.Exec(t.Context(), `UPDATE streams SET lease_expires_at = clock_timestamp() - interval '1 second'`) // the lease must be free
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.WithoutCancel(t.Context())) // the test is over
	_, err = (&schema.Batch{}).Apply(t.Context(), tx, lease)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // without a timeout, a call that waits for tx would hang
	defer cancel()
	_, ok, err := schema.TakeLease(ctx, pool, "s", "wire", "second", ttl)
	require.NoError(t, err)
	require.False(t, ok)
}

// TestHolderThatStopsInsideACopyIsEnded covers a holder whose server waits for COPY data while the
// stream's row stays locked.
func TestHolderThatStopsInsideACopyIsEnded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "paused")
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `BEGIN; UPDATE streams SET lease_expires_at = clock_timestamp() - interval '1 second'`,
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	data, writer := io.Pipe()
	defer writer.Close() // the reading end may be closed
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Conn().PgConn().CopyFrom(context.WithoutCancel(t.Context()), data,
			`COPY records (collection, did, rkey, rev, cid, created_at, record) FROM STDIN`)
		ended <- err
	}()
	_, err = writer.Write([]byte("app.bsky.feed.post\tdid:plc:a\t"))
	require.NoError(t, err)
	eventually.True(t, func() bool {
		return ask[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND state = 'active' AND query LIKE 'COPY records%'`,
			conn.Conn().PgConn().PID()) == 1
	}, 10*time.Millisecond)
	free := func() bool {
		_, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "other", ttl)
		require.NoError(t, err)
		return ok
	}
	require.False(t, free(), "the row is locked")
	stalled, err := schema.EndStalled(t.Context(), pool, "s", 0)
	require.NoError(t, err)
	require.False(t, stalled, "the committed lease must not count as stalled")
	stalled, err = schema.EndStalled(t.Context(), pool, "s", -2*ttl)
	require.NoError(t, err)
	require.True(t, stalled)
	require.Error(t, <-ended)
	execute(t, pool, `UPDATE streams SET lease_expires_at = clock_timestamp() - interval '1 second'`)
	eventually.True(t, free, 20*time.Millisecond)
	require.ErrorIs(t, renew(t, pool, lease), schema.ErrFenced)
}

func TestPositionSurvives(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	at := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	want := schema.Position{Host: "h:1", CursorKind: "seq", Cursor: 42, FilterHash: "f", LastEvent: at, CaughtUp: at.Add(time.Second),
		Anchor: &schema.Anchor{
			Seq: 42, TimeUS: at.UnixMicro(), Kind: "commit", DID: "did:plc:a", Operation: "create", Collection: "c", Rkey: "r", Rev: "v",
		},
		Anchors: schema.Anchors{{Hash: 1, Seq: 42}, {Hash: -1 << 63}, {Hash: 3, Seq: 40}}, WrittenAt: at.Add(-time.Minute)}
	_, err := apply(t.Context(), pool, lease, schema.Batch{Position: want})
	require.NoError(t, err)
	require.NoError(t, lease.Release(t.Context(), pool))
	got := take(t, pool, "other").Position
	require.True(t, got.LastEvent.Equal(want.LastEvent) && got.CaughtUp.Equal(want.CaughtUp) && got.WrittenAt.Equal(want.WrittenAt))
	got.LastEvent, got.CaughtUp, got.WrittenAt = want.LastEvent, want.CaughtUp, want.WrittenAt
	require.Equal(t, want, got)
	require.Equal(t, time.Minute, got.Lag())
}

// TestQuietIsKnownOnlySinceTheLastCommit shows that an earlier catch-up proves nothing about later
// events.
func TestQuietIsKnownOnlySinceTheLastCommit(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	quiet := func() bool {
		lease = take(t, pool, "me")
		return lease.Position.Quiet
	}
	commit := func(host string) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Position: schema.Position{Host: host, CursorKind: "seq", Cursor: 1}})
		require.NoError(t, err)
	}
	require.False(t, quiet())
	commit("h")
	require.False(t, quiet())
	_, err := lease.Renew(t.Context(), pool, schema.Heartbeat{State: schema.StateQuiet, CaughtUp: time.Now().Add(-time.Hour)})
	require.NoError(t, err)
	require.False(t, quiet(), "before the commit")
	now := ask[time.Time](t, pool, `SELECT clock_timestamp()`)
	_, err = lease.Renew(t.Context(), pool, schema.Heartbeat{State: schema.StateQuiet, CaughtUp: now})
	require.NoError(t, err)
	require.True(t, quiet())
	commit("h")
	require.False(t, quiet())
	require.True(t, ask[bool](t, pool, `SELECT caught_up_at IS NOT NULL FROM streams`))
	commit("another")
	require.False(t, ask[bool](t, pool, `SELECT caught_up_at IS NOT NULL FROM streams`), "the catch-up was that of the previous host")
}

func TestNewestStatusOfAnAccountStays(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	say := func(status string, at int64, handle string) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{
			Statuses: []schema.Status{{DID: "did:plc:a", Status: status, At: time.Unix(at, 0)}},
			Handles:  []schema.Handle{{DID: "did:plc:a", Handle: handle, At: time.Unix(at, 0)}},
		})
		require.NoError(t, err)
	}
	now := func() (status, handle string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT status, handle FROM accounts`).Scan(&status, &handle))
		return status, handle
	}
	say("takendown", 10, "a.example")
	say("active", 5, "old.example") // an older event that is sent again
	status, handle := now()
	require.Equal(t, "takendown", status)
	require.Equal(t, "a.example", handle)
	say("active", 11, "")
	status, handle = now()
	require.Equal(t, "active", status)
	require.Equal(t, "a.example", handle, "an event without a handle must not remove the handle")
}

func TestInvalidInputIsADataError(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	for _, record := range []string{`{"a":"\u0000"}`, `{"a":1e999999}`, `{"a"`} {
		bad := post("a", "1")
		bad.Record = []byte(record)
		_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{bad}})
		require.Error(t, err)
		require.Equal(t, schema.Data, schema.Classify(err), "%s: %v", record, err)
	}
}

func TestLossOfTheConnectionIsTransient(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SELECT pg_terminate_backend(pg_backend_pid())`)
	require.Error(t, err)
	require.Equal(t, schema.Transient, schema.Classify(err))
	_, err = conn.Exec(t.Context(), `SELECT 1`)
	require.Error(t, err)
	require.Equal(t, schema.Transient, schema.Classify(err), "the pool may hand out a connection that has just died: %v", err)
	_, err = pool.Exec(t.Context(), `SELECT * FROM nowhere`)
	require.Equal(t, schema.Fatal, schema.Classify(err))
}

func TestDeadLetterIsOneRowHoweverOftenItIsSeen(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	letter := schema.DeadLetter{Stage: schema.StageDecode, Cause: "bad\x00cause\xff", Raw: []byte("\x00\xffraw")}
	require.NoError(t, letter.Store(t.Context(), pool, "s"))
	execute(t, pool, `UPDATE dead_letters SET first_seen = to_timestamp(5), last_seen = to_timestamp(5)`)
	require.NoError(t, letter.Store(t.Context(), pool, "s"))
	huge := schema.DeadLetter{Stage: schema.StageDecode, Cause: "big", Raw: make([]byte, 3<<20)}
	require.NoError(t, huge.Store(t.Context(), pool, "s"))
	var count, kept, size int
	var first, last time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count, first_seen, last_seen FROM dead_letters WHERE raw = $1`,
		letter.Raw).Scan(&count, &first, &last))
	require.Equal(t, 2, count)
	require.True(t, first.Equal(time.Unix(5, 0)) && last.After(first))
	require.NoError(t,
		pool.QueryRow(t.Context(), `SELECT octet_length(raw), raw_bytes FROM dead_letters WHERE cause = 'big'`).Scan(&kept, &size))
	require.Equal(t, 1<<20, kept)
	require.Equal(t, 3<<20, size)
}

// TestStoredRecordsAreFreshUnlessTheyWereStored stores records by COPY and by INSERT, edits some,
// and repeats others.
func TestStoredRecordsAreFreshUnlessTheyWereStored(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	stored := func(careful bool, writes ...schema.Write) (all []string) {
		t.Helper()
		b := schema.Batch{Writes: writes, Committer: schema.Committer{Careful: careful}}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			written, err := b.Apply(t.Context(), tx, lease)
			for _, s := range b.Stored(written) {
				all = append(all, fmt.Sprintf("%s %t %s", s.Rkey, s.Fresh, s.Record))
			}
			return err
		}))
		return all
	}
	var many []schema.Write
	var fresh []string
	for i := range 100 { // by COPY
		w := post(fmt.Sprintf("k%02d", i), "1")
		many, fresh = append(many, w), append(fresh, fmt.Sprintf("%s true %s", w.Rkey, w.Record))
	}
	require.Equal(t, fresh, stored(false, many...))
	edit := post("n", "1")
	edit.Edit = true
	require.ElementsMatch(t, []string{`k07 false `, `k09 false `, `m true {"rev":"1"}`, `n false `, `o true {"rev":"1"}`},
		stored(true, post("k07", "2"), post("k08", "1"), post("k09", "2"), post("m", "1"), edit, post("o", "1")))
}
