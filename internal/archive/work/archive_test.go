package work

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

var errKilled = errors.New("killed")

// faulty is a store that fails at its n-th call, before or after the call takes effect.
type faulty struct {
	archive.Store
	calls, failAt int
	after         bool
}

func (f *faulty) fails(after bool) bool {
	if !after {
		f.calls++
	}
	return f.calls == f.failAt && f.after == after
}

func (f *faulty) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	if f.fails(false) {
		return errKilled
	}
	err := f.Store.Put(ctx, name, content, size)
	if f.fails(true) {
		return errKilled
	}
	return err
}

func (f *faulty) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if f.fails(false) {
		return nil, errKilled
	}
	return f.Store.Get(ctx, name)
}

func (f *faulty) Delete(ctx context.Context, name string) error {
	if f.fails(false) {
		return errKilled
	}
	err := f.Store.Delete(ctx, name)
	if f.fails(true) {
		return errKilled
	}
	return err
}

func (f *faulty) List(ctx context.Context, prefix string) iter.Seq2[archive.Object, error] {
	return f.Store.List(ctx, prefix)
}

// archiveTest is an archive of a database in a directory.
type archiveTest struct {
	t       *testing.T
	pool    *pgxpool.Pool
	queue   *river.Client[pgx.Tx]
	store   *dir.Store
	archive Config
	records []string // all archived records
	ctx     context.Context
}

func newArchiveTest(t *testing.T) *archiveTest {
	t.Helper()
	store, err := dir.New(t.TempDir())
	require.NoError(t, err)
	pool := schematest.New(t)
	queue, err := workers.Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	a := Config{
		Store: store, Spool: filepath.Join(t.TempDir(), "spool"), Bytes: 10_000, Age: time.Hour, Remember: 8 * 24 * time.Hour,
		Forget: 30 * 24 * time.Hour,
	}
	return &archiveTest{t: t, pool: pool, queue: queue, store: store, archive: a, ctx: t.Context()}
}

// add adds rows of about a kilobyte.
func (a *archiveTest) add(rows int) {
	a.t.Helper()
	for range rows {
		var raw []byte
		for range 4 {
			record := fmt.Sprintf("record %d %s", len(a.records), strings.Repeat("x", 240))
			a.records = append(a.records, record)
			raw = archive.AppendRecord(raw, []byte(record))
		}
		_, err := a.pool.Exec(a.t.Context(), `
INSERT INTO archive_open (stream, wire, records, raw_bytes, blob)
VALUES ('s', 'w', 4, $1, $2)`, len(raw), archive.PackRow(raw))
		require.NoError(a.t, err)
	}
}

// runJob runs a worker as the client would.
func runJob[T river.JobArgs](a *archiveTest, w river.Worker[T], args T) error {
	return w.Work(rivertest.WorkContext(a.ctx, a.queue), &river.Job[T]{JobRow: &rivertype.JobRow{}, Args: args})
}

// killedAt runs a job whose process dies at a point.
func (a *archiveTest) killedAt(point string, run func() error) {
	a.t.Helper()
	a.ctx = crashpoint.Kill(a.t.Context(), 1, point)
	err := run()
	require.ErrorIs(a.t, a.ctx.Err(), context.Canceled, "the job does not reach %q: %v", point, err)
	a.ctx = a.t.Context()
}

// quiet returns a worker's common part. It logs nothing.
func quiet[T river.JobArgs](a *archiveTest, cfg Config) worker[T] {
	return workerOf[T](a.pool, slog.New(slog.DiscardHandler), cfg)
}

// sweepWorker returns a worker that sweeps as if this much time had passed.
func (a *archiveTest) sweepWorker(after time.Duration) *SweepArchive {
	now := func() time.Time { return time.Now().Add(after) }
	return &SweepArchive{quiet[SweepArchiveArgs](a, a.archive), now}
}

func (a *archiveTest) seal() error {
	return runJob(a, &SealSegment{quiet[SealSegmentArgs](a, a.archive)}, SealSegmentArgs{Stream: "s", Wire: "w"})
}

// sync syncs all segments, in order.
func (a *archiveTest) sync(store archive.Store) error {
	numbers, err := catalog.UnsyncedSegments(a.t.Context(), a.pool)
	require.NoError(a.t, err)
	in := a.archive
	in.Store = store
	for _, number := range numbers {
		if err := runJob(a, &SyncSegment{quiet[SyncSegmentArgs](a, in)}, SyncSegmentArgs{Segment: number}); err != nil {
			return err
		}
	}
	return nil
}

// stored returns the records of the segments that manifests name. It reads the store without the
// code that wrote it.
func (a *archiveTest) stored() (records []string) {
	a.t.Helper()
	manifests, err := archive.Manifests(a.t.Context(), a.store)
	require.NoError(a.t, err)
	for _, m := range manifests {
		file, err := os.ReadFile(filepath.Join(strings.TrimPrefix(a.store.String(), "dir:"), m.Name))
		require.NoError(a.t, err)
		d, err := zstd.NewReader(bytes.NewReader(file))
		require.NoError(a.t, err)
		raw, err := io.ReadAll(d)
		require.NoError(a.t, err)
		d.Close()
		for len(raw) > 0 {
			n := binary.LittleEndian.Uint32(raw)
			records = append(records, string(raw[4:4+n]))
			raw = raw[4+n:]
		}
	}
	return records
}

func (a *archiveTest) count(sql string) (n int) {
	a.t.Helper()
	require.NoError(a.t, a.pool.QueryRow(a.t.Context(), sql).Scan(&n))
	return n
}

// complete finishes everything and checks that the store has each record once.
func (a *archiveTest) complete() {
	a.t.Helper()
	a.archive.Age = time.Nanosecond
	require.NoError(a.t, a.seal())
	require.NoError(a.t, a.sync(a.store))
	require.Equal(a.t, a.records, a.stored())
	require.Zero(a.t, a.count(`SELECT count(*) FROM archive_open`))
	require.Zero(a.t, a.count(`SELECT count(*) FROM segments WHERE synced_at IS NULL`))
	require.Equal(a.t, len(a.records), a.count(`SELECT coalesce(sum(records), 0) FROM segments`))
}

func TestSegmentsAreSealedWhenDue(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(5)
	require.NoError(t, a.seal())
	require.Zero(t, a.count(`SELECT count(*) FROM segments`), "the rows are neither large nor old enough to be sealed")
	a.add(60)
	require.NoError(t, a.seal())
	require.Greater(t, a.count(`SELECT count(*) FROM segments`), 2)
	require.NotZero(t, a.count(`SELECT count(*) FROM archive_open WHERE segment IS NOT NULL`), "the rows must stay until the store has them")
	due, err := catalog.DueStreams(t.Context(), a.pool, 1, time.Hour)
	require.NoError(t, err)
	require.LessOrEqual(t, len(due), 1)
	a.complete()
	files, err := os.ReadDir(a.archive.Spool)
	require.NoError(t, err)
	require.Empty(t, files)
}

// TestKilledInSync fails each call of the store, before and after it has taken effect, and the
// transaction at the end. Afterwards every record is in the store once.
func TestKilledInSync(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	for failAt := 1; ; failAt++ {
		failed := false
		for _, after := range []bool{false, true} {
			a.add(12)
			require.NoError(t, a.seal())
			if failAt%2 == 0 { // the spool may be lost too
				require.NoError(t, os.RemoveAll(a.archive.Spool))
			}
			err := a.sync(&faulty{Store: a.store, failAt: failAt, after: after})
			failed = failed || err != nil
			if err != nil {
				require.ErrorIs(t, err, errKilled)
			}
			require.NoError(t, a.sync(a.store))
		}
		if !failed {
			require.Greater(t, failAt, 4)
			break
		}
	}
	for _, point := range []string{"sync: manifest stored", "sync: rows deleted"} {
		a.add(12)
		require.NoError(t, a.seal())
		a.killedAt(point, func() error { return a.sync(a.store) })
		a.complete()
	}
}

func (a *archiveTest) exec(sql string, args ...any) {
	a.t.Helper()
	_, err := a.pool.Exec(a.t.Context(), sql, args...)
	require.NoError(a.t, err)
}

// TestKilledInSeal fails the spool, and kills the process after the file has got its name, and
// before the end of the transaction.
func TestKilledInSeal(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(12)
	spool := a.archive.Spool
	a.archive.Spool = filepath.Join(os.DevNull, "full")
	require.Error(t, a.seal())
	a.archive.Spool = spool
	for _, point := range []string{"seal: file written", "seal: before the end"} {
		a.killedAt(point, a.seal)
		require.Zero(t, a.count(`SELECT count(*) FROM segments`))
		require.Zero(t, a.count(`SELECT count(*) FROM river_job`))
	}
	files, err := os.ReadDir(spool)
	require.NoError(t, err)
	require.Len(t, files, 1, "an orphan")
	a.complete()
	require.NoError(t, runJob(a, a.sweepWorker(25*time.Hour), SweepArchiveArgs{}))
	files, err = os.ReadDir(spool)
	require.NoError(t, err)
	require.Empty(t, files)
}

// TestUnfinishedObjectsAreSwept kills a process while it puts an object.
func TestUnfinishedObjectsAreSwept(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	left := filepath.Join(strings.TrimPrefix(a.store.String(), "dir:"), ".tmp-1")
	require.NoError(t, os.WriteFile(left, []byte("text"), 0o600))
	sweep := func(after time.Duration) {
		require.NoError(t, runJob(a, a.sweepWorker(after), SweepArchiveArgs{}))
	}
	sweep(23 * time.Hour)
	require.FileExists(t, left, "an object that may still be written must not be swept")
	sweep(25 * time.Hour)
	require.NoFileExists(t, left)
}

// recompressed returns the file of a segment, compressed differently: the same records in other
// bytes.
func recompressed(t *testing.T, path string) ([]byte, archive.Sum) {
	t.Helper()
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	segment, err := archive.Open(file)
	require.NoError(t, err)
	sum, err := segment.Check()
	require.NoError(t, err)
	require.Equal(t, 1, segment.Frames())
	raw, err := segment.Frame(0)
	require.NoError(t, err)
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderCRC(false))
	require.NoError(t, err)
	packed := e.EncodeAll(raw, nil)
	table := bytes.Clone(file[len(file)-29:]) // a frame of 12 + 9 bytes
	binary.LittleEndian.PutUint32(table[8:], uint32(len(packed)))
	other := append(packed, table...)
	require.NotEqual(t, file, other)
	hash := sha256.Sum256(other)
	sum.SHA256, sum.StoredBytes = hex.EncodeToString(hash[:]), int64(len(other))
	return other, sum
}

// TestLateProcess has two processes sync one segment that they compressed differently. The first
// manifest counts, and the other file is swept.
func TestLateProcess(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(12)
	require.NoError(t, a.seal())
	var number int64
	require.NoError(t, a.pool.QueryRow(t.Context(), `SELECT number FROM segments`).Scan(&number))
	m, _, err := catalog.UnsyncedSegment(t.Context(), a.pool, number)
	require.NoError(t, err)
	// Another version of Weir has stored the same records, compressed differently.
	file, sum := recompressed(t, a.archive.spooled(m.SHA256))
	theirs := archive.NewManifest(number, m.Stream, m.Wire, sum, m.FirstAt, m.SealedAt)
	theirs.FirstAt, theirs.LastAt, theirs.Position = m.FirstAt, m.LastAt, m.Position
	require.NotEqual(t, m.Name, theirs.Name)
	require.Equal(t, m.ManifestName(), theirs.ManifestName())
	require.NoError(t, a.store.Put(t.Context(), theirs.Name, bytes.NewReader(file), int64(len(file))))
	_, err = archive.PutManifest(t.Context(), a.store, theirs)
	require.NoError(t, err)
	a.complete()
	require.Equal(t, 1, a.count(`SELECT count(*) FROM segments WHERE name = '`+theirs.Name+`'`))
	// The late process puts its file, too: an orphan.
	require.NoError(t, a.store.Put(t.Context(), m.Name, strings.NewReader("orphan"), 6))
	require.NoError(t, runJob(a, a.sweepWorker(0), SweepArchiveArgs{}))
	_, err = a.store.Stat(t.Context(), m.Name)
	require.NoError(t, err, "a file that may belong to a running job must not be swept")
	require.NoError(t, runJob(a, a.sweepWorker(25*time.Hour), SweepArchiveArgs{}))
	_, err = a.store.Stat(t.Context(), m.Name)
	require.ErrorIs(t, err, archive.ErrNotFound)
	require.Equal(t, a.records, a.stored())
}

// TestSweepWaitsForALock shows that a sweep waits for others that use the ids for a moment, as the consumer does at a first start.
func TestSweepWaitsForALock(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	tx, err := a.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // it has been rolled back already
	_, err = tx.Exec(t.Context(), `LOCK TABLE archived_ids_default IN ROW EXCLUSIVE MODE`)
	require.NoError(t, err)
	swept := make(chan error, 1)
	go func() {
		swept <- runJob(a, a.sweepWorker(0), SweepArchiveArgs{})
	}()
	for range 2 { // each attempt waits for 50 ms
		eventually.True(t, func() bool { return schematest.Blocks(t, a.pool, tx) }, time.Millisecond)
		eventually.True(t, func() bool { return !schematest.Blocks(t, a.pool, tx) }, time.Millisecond)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-swept)
}
