//go:build clickhouse

package clickhouse

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/clickhouse/clickhousetest"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// faults is a transport that makes inserts fail.
type faults struct {
	mu     sync.Mutex
	insert func(next http.RoundTripper, r *http.Request) (*http.Response, error) // nil: none
	fired  int
}

func (f *faults) set(fault func(http.RoundTripper, *http.Request) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.insert, f.fired = fault, 0
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	next := &http.Transport{DisableKeepAlives: true}
	f.mu.Lock()
	fault := f.insert
	if !strings.Contains(r.URL.RawQuery, "INSERT") {
		fault = nil
	}
	if fault != nil {
		f.fired++
	}
	f.mu.Unlock()
	if fault == nil {
		return next.RoundTrip(r)
	}
	return fault(next, r)
}

// world is a server with a view in which a duplicate would count twice.
type world struct {
	t      *testing.T
	server *clickhousetest.Server
	faults *faults
	index  *Index
	pool   *pgxpool.Pool
	marks  marks
}

func newWorld(t *testing.T) *world {
	t.Helper()
	pool := schematest.New(t)
	w := &world{t: t, server: clickhousetest.Start(t), faults: &faults{}, pool: pool, marks: marks{DB: pool}}
	w.index = w.connect(w.faults)
	require.NoError(t, w.index.Create(t.Context()))
	require.NoError(t, w.index.Create(t.Context()), "it exists")
	w.ask(`CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY segment AS SELECT segment, toUInt64(1) AS n FROM events`)
	return w
}

func (w *world) connect(transport http.RoundTripper) *Index {
	x, err := New(w.server.URL, transport)
	require.NoError(w.t, err)
	return x
}

// ask runs a statement without faults.
func (w *world) ask(sql string) string {
	w.t.Helper()
	answer, err := w.connect(nil).query(w.t.Context(), sql)
	require.NoError(w.t, err)
	return strings.TrimSpace(string(answer))
}

// once checks that a segment is stored once, in the table and in the view.
func (w *world) once(s Segment) {
	w.t.Helper()
	want := fmt.Sprintf("%d\t%d", len(s.Rows), len(s.Rows))
	require.Equal(w.t, want, w.ask(fmt.Sprintf(`SELECT count(), uniqExact(position) FROM events WHERE segment = %d`, s.Number)))
	require.Equal(w.t, fmt.Sprint(len(s.Rows)), w.ask(fmt.Sprintf(`SELECT sum(n) FROM sums WHERE segment = %d`, s.Number)), "the view")
}

func (w *world) put(s Segment) error { return w.putTo(w.index, s) }

// putTo stores a segment that the archive's store has.
func (w *world) putTo(x *Index, s Segment) error {
	ctx, now := w.t.Context(), time.Now()
	sum := archive.Sum{Records: int64(len(s.Rows)), SHA256: fmt.Sprintf("%064x", s.Number), Content: fmt.Sprintf("%016x", s.Number)}
	m := archive.NewManifest(s.Number, "main", "w", sum, now, now)
	if err := catalog.RestoreSegment(ctx, w.pool, m, "dir:/a", now); err != nil {
		return err
	}
	return x.Put(ctx, s, w.marks)
}

// settled moves the attempts into the past, until they are settled.
func (w *world) settled() {
	w.exec(`UPDATE segments SET index_begun_at = index_begun_at - interval '1 hour'`)
}

func (w *world) exec(sql string) {
	w.t.Helper()
	_, err := w.pool.Exec(w.t.Context(), sql)
	require.NoError(w.t, err)
}

// attempts returns how many attempts to insert a segment were begun, and whether it is indexed.
func (w *world) attempts(segment int64) (begun int, indexed bool) {
	w.t.Helper()
	const sql = `SELECT index_attempt, indexed_at IS NOT NULL FROM segments WHERE number = $1`
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), sql, segment).Scan(&begun, &indexed))
	return begun, indexed
}

// segment returns a segment of random rows.
func segment(number int64, n int) Segment {
	random := rand.New(rand.NewPCG(uint64(number), 1))
	s := Segment{Number: number, SHA256: fmt.Sprintf("%064x", number), Rows: make([]Row, n)}
	for i := range s.Rows {
		r := Row{ID: archive.NewID(fmt.Sprint(number, i)), Source: "main", Author: fmt.Sprintf("did:plc:%d", random.IntN(100)),
			Collection: "app.bsky.feed.post",
			Key:        fmt.Sprint(i), Operation: "create", CreatedAt: time.Unix(random.Int64N(math.MaxUint32), 0), Position: uint32(i)}
		body := make([]byte, random.IntN(400))
		for j := range body {
			body[j] = byte(random.Uint32())
		}
		r.Body = string(body)
		for range random.IntN(4) {
			r.Links = append(r.Links, strings.Repeat("é\t", random.IntN(200)))
		}
		s.Rows[i] = r
	}
	return s
}

// TestServerReadsWhatWasWritten compares every value with the server's output, in a format that
// shares no code with the writer.
func TestServerReadsWhatWasWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, n := range []int{0, 1, 2, 127, 128, 3000} {
		s := segment(int64(i)*1000+1, n)
		if n > 1 {
			s.Rows[0].CreatedAt, s.Rows[1].CreatedAt = time.Unix(-1, 0), time.Unix(math.MaxUint32+1, 0)
		}
		require.NoError(t, w.put(s))
		w.once(s)
		got := w.ask(fmt.Sprintf(`SELECT hex(id), source, author, collection, rkey, operation, toUInt32(created_at), hex(body),
			       length(links), hex(arrayStringConcat(links, '|')), position
			FROM events WHERE segment = %d ORDER BY position FORMAT TabSeparated`, s.Number))
		var want []string
		for _, r := range s.Rows {
			want = append(want, fmt.Sprintf("%X\t%s\t%s\t%s\t%s\t%s\t%d\t%X\t%d\t%X\t%d", r.ID[:], r.Source, r.Author, r.Collection, r.Key,
				r.Operation,
				min(max(r.CreatedAt.Unix(), 0), math.MaxUint32), r.Body, len(r.Links), strings.Join(r.Links, "|"), r.Position))
		}
		require.Equal(t, strings.Join(want, "\n"), got)
	}
	require.Equal(t, "1", w.ask(`
SELECT count()
FROM system.parts
WHERE table = 'events' AND active AND partition = '5'`), "a segment must be one part")
}

// TestCutBody cuts a block at many bytes, including the ends of columns, while the full length is
// announced. Nothing of it is stored, and the segment is stored once afterwards.
func TestCutBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := segment(1, 50)
	whole := block(1, s.Rows)
	for cut := 0; cut < len(whole); cut += 1 + len(whole)/40 {
		w.faults.set(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			r.Body = io.NopCloser(strings.NewReader(string(whole[:cut])))
			return next.RoundTrip(r)
		})
		err := w.put(s)
		require.Error(t, err)
		require.Equal(t, 1, w.faults.fired)
		unsettled := &Unsettled{}
		require.ErrorAs(t, w.put(s), &unsettled, "nothing may be sent before the attempt has settled")
		w.settled()
	}
	w.faults.set(nil)
	require.Equal(t, "0", w.ask(`SELECT count() FROM events`))
	require.NoError(t, w.put(s))
	w.once(s)
}

// TestLostResponse loses the response to an insert that the server stored, and then the mark that
// the segment is indexed.
func TestLostResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := segment(1, 500)
	w.faults.set(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err == nil {
			response.Body.Close() // the response is lost
		}
		return nil, errors.Join(errors.New("connection reset"), err)
	})
	require.ErrorIs(t, w.put(s), ErrAmbiguous)
	w.settled()
	w.exec(`ALTER TABLE segments ADD CONSTRAINT no_mark CHECK (indexed_at IS NULL)`)
	require.ErrorContains(t, w.put(s), "no_mark", "the stored rows must be found by their count")
	w.exec(`ALTER TABLE segments DROP CONSTRAINT no_mark`)
	require.NoError(t, w.put(s))
	require.Equal(t, 1, w.faults.fired, "one insert")
	begun, _ := w.attempts(1)
	require.Equal(t, 1, begun)
	w.once(s)
}

// TestSeveralBlocks stores a segment with more rows than a server stores at once, because one
// deletion request can make a frame that large. It continues after a lost response.
func TestSeveralBlocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.index.blockRows = 100
	s := segment(1, 250)
	inserts := 0
	w.faults.set(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		inserts++
		response, err := next.RoundTrip(r)
		if inserts == 2 && err == nil {
			response.Body.Close() // the response is lost
			return nil, errors.New("connection reset")
		}
		return response, err
	})
	require.ErrorIs(t, w.put(s), ErrAmbiguous)
	require.Equal(t, "200", w.ask(`SELECT count() FROM events`))
	_, indexed := w.attempts(1)
	require.False(t, indexed)
	w.settled()
	require.NoError(t, w.put(s))
	begun, indexed := w.attempts(1)
	require.True(t, indexed)
	require.Equal(t, []int{3, 3}, []int{inserts, begun})
	w.once(s)
}

// TestFalseSuccess checks that a status of 200 is not enough: a proxy may send it without the
// server.
func TestFalseSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := segment(1, 10)
	w.faults.set(func(_ http.RoundTripper, r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	require.ErrorIs(t, w.put(s), ErrAmbiguous)
	_, indexed := w.attempts(1)
	require.False(t, indexed)
	w.faults.set(nil)
	w.settled()
	require.NoError(t, w.put(s))
	_, indexed = w.attempts(1)
	require.True(t, indexed)
	w.once(s)
}

// TestLateInsert delays an insert until another attempt is made. The second attempt waits until the
// first has settled.
func TestLateInsert(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := segment(1, 500)
	reached, release := make(chan bool), make(chan bool)
	w.faults.set(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		close(reached)
		<-release
		return next.RoundTrip(r)
	})
	first := make(chan error)
	go func() { first <- w.put(s) }()
	<-reached
	other := w.connect(nil)
	unsettled := &Unsettled{}
	require.ErrorAs(t, w.putTo(other, s), &unsettled)
	require.InDelta(t, Settle, unsettled.Wait, float64(time.Minute))
	close(release)
	require.NoError(t, <-first)
	w.settled()
	require.NoError(t, w.putTo(other, s))
	w.once(s)
}

// TestSecondWorker has many workers index the same segments at once.
func TestSecondWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for number := int64(1); number <= 5; number++ {
		s := segment(number, 200)
		var stored atomic.Int32
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() {
				if w.putTo(w.connect(nil), s) == nil {
					stored.Add(1)
				}
			})
		}
		all.Wait()
		require.Positive(t, stored.Load())
		begun, _ := w.attempts(number)
		require.Equal(t, 1, begun)
		w.once(s)
	}
}

// TestKilledServer kills the server before, during and after inserts, and starts it again.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for number := int64(1); number <= 9; number++ {
		s := segment(number, 2000)
		w.faults.set(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
			switch number % 3 {
			case 0: // before the insert
				w.server.Kill(t)
				return next.RoundTrip(r)
			case 1: // during the insert
				killed := make(chan bool)
				r.Body = &tripwire{ReadCloser: r.Body, left: int(r.ContentLength) / 2, trip: func() { w.server.Kill(t); close(killed) }}
				response, err := next.RoundTrip(r)
				<-killed
				return response, err
			}
			response, err := next.RoundTrip(r) // after the insert
			w.server.Kill(t)
			if err == nil {
				response.Body.Close() // the response is lost
			}
			return nil, errors.Join(errors.New("connection reset"), err)
		})
		require.Error(t, w.put(s))
		require.Equal(t, 1, w.faults.fired)
		w.settled()
		require.ErrorIs(t, w.put(s), ErrAway)
		w.faults.set(nil)
		w.server.Start(t)
		require.NoError(t, w.put(s))
		w.once(s)
	}
}

// tripwire calls trip once half of the body has been read.
type tripwire struct {
	io.ReadCloser
	left int
	trip func()
}

func (w *tripwire) Read(b []byte) (int, error) {
	n, err := w.ReadCloser.Read(b[:min(len(b), 4096)])
	if w.left -= n; w.left <= 0 && w.trip != nil {
		w.trip()
		w.trip = nil
	}
	return n, err
}

// TestPartialSegment completes a segment of which something else stored a part, and refuses one
// that has other rows.
func TestPartialSegment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := segment(1, 100)
	var half []Row
	for i, r := range s.Rows {
		if i%3 == 0 {
			half = append(half, r)
		}
	}
	require.NoError(t, w.index.insert(t.Context(), "other", block(1, half)))
	require.NoError(t, w.put(s))
	w.once(s)
	w.settled()
	require.ErrorIs(t, w.put(Segment{Number: 1, Rows: s.Rows[:99]}), ErrRefused)
	moved := segment(3, 100)
	require.NoError(t, w.index.insert(t.Context(), "moved", block(3, moved.Rows[:50])))
	for n := range moved.Rows { // as after another collection was added
		moved.Rows[n].Position++
	}
	moved.Rows = append([]Row{{ID: archive.NewID("new")}}, moved.Rows...)
	require.ErrorIs(t, w.put(moved), ErrRefused)
	require.Equal(t, "50", w.ask(`SELECT count() FROM events WHERE segment = 3`))
	require.NoError(t, w.index.insert(t.Context(), "again", block(2, []Row{s.Rows[0], s.Rows[0]})))
	require.ErrorIs(t, w.put(Segment{Number: 2, Rows: s.Rows}), ErrRefused)
}

// TestErrorClasses checks that errors distinguish a server that is down from one without the table.
func TestErrorClasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ask(`DROP TABLE events`)
	err := w.put(segment(1, 1))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "Code: 60")
	w.server.Kill(t)
	require.ErrorIs(t, w.put(segment(1, 1)), ErrAway)
	begun, _ := w.attempts(1)
	require.Zero(t, begun, "no attempt may be begun that would have to settle")
	_, err = New("http://user:secret@host:1/a/b", nil)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}
