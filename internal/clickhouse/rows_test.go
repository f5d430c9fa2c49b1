package clickhouse

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// frame returns a Jetstream frame of a post.
func frame(operation, key, record string) []byte {
	if record != "" {
		record = `,"cid":"bafyreihtqkvx5ptvf2rmzhbyq7ak4tiwvfhqzbdfwqgkb5dpkxtgpvmkoy","record":` + record
	}
	return fmt.Appendf(nil, `{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","time_us":1725911162329308,"kind":"commit",`+
		`"commit":{"rev":"3l3qo2vutsw2b","operation":%q,"collection":"app.bsky.feed.post","rkey":%q%s}}`,
		operation, key, record)
}

// sealed returns a segment of records.
func sealed(t testing.TB, records [][]byte) *archive.Segment {
	t.Helper()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(t, err)
	for _, r := range records {
		require.NoError(t, w.Add(r))
	}
	_, err = w.Close()
	require.NoError(t, err)
	s, err := archive.Open(file.Bytes())
	require.NoError(t, err)
	return s
}

// main is the manifest of a stream's segment.
var main = archive.Manifest{Stream: "main", LastAt: time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)}

// wire returns the wire of Jetstream.
func wire() (consumer.Wire, error) { return jetstream.Wire(nil), nil }

func TestRowsOfFrames(t *testing.T) {
	t.Parallel()
	const did = "did:plc:eygmaihciaxprqvxpfvl6flk"
	server := time.UnixMicro(1725911162329308)
	post := func(created string) string {
		return `{"$type":"app.bsky.feed.post","text":"see https://www.example.com/a/?utm_source=x and https://example.com/a",` +
			`"createdAt":` + created + `}`
	}
	records := [][]byte{
		frame("create", "a", post(`"2024-09-09T10:00:00Z"`)),
		frame("update", "a", post(`"2124-09-09T10:00:00Z"`)), // later than the server's time
		frame("create", "b", post(`7`)),                      // an invalid date
		[]byte(`no event`),
		frame("delete", "a", ""),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"account","account":{"active":false,"did":"` + did +
			`","seq":1,"status":"deleted","time":"2024-09-09T10:00:00Z"}}`),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"identity","identity":{"did":"` + did +
			`","handle":"a.example.com","seq":1,"time":"2024-09-09T10:00:00Z"}}`),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"news"}`), // an unknown kind
	}
	rows, err := Rows(main, sealed(t, records), wire)
	require.NoError(t, err)
	type short struct {
		Operation, Key, Body string
		Links                []string
		At                   time.Time
		Position             uint32
	}
	var got []short
	for _, r := range rows {
		require.Equal(t, "main", r.Source)
		require.Equal(t, did, r.Author)
		got = append(got, short{r.Operation, r.Key, r.Body, r.Links, r.CreatedAt.UTC(), r.Position})
	}
	claimed, links := time.Date(2024, 9, 9, 10, 0, 0, 0, time.UTC), []string{"example.com/a"}
	require.Equal(t, []short{
		{"create", "a", post(`"2024-09-09T10:00:00Z"`), links, claimed, 0},
		{"update", "a", post(`"2124-09-09T10:00:00Z"`), links, server.UTC(), 1},
		{"create", "b", post(`7`), links, server.UTC(), 2},
		{"delete", "a", "", nil, server.UTC(), 3},
		{"account", "", `{"status":"deleted"}`, nil, server.UTC(), 4},
		{"identity", "", `{"handle":"a.example.com"}`, nil, server.UTC(), 5},
	}, got)
	ids := map[archive.ID]bool{}
	for _, r := range rows {
		ids[r.ID] = true
	}
	require.Len(t, ids, len(rows))
	again, err := Rows(main, sealed(t, records), wire)
	require.NoError(t, err)
	require.Equal(t, rows, again, "the same records must give the same rows")
}

// TestTokens shows that the same block has the same token and others have others, including those
// that are inserted again after weir archive index.
func TestTokens(t *testing.T) {
	t.Parallel()
	rows := []Row{{Position: 0}, {Position: 1}, {Position: 2}, {Position: 3}}
	s := Segment{Number: 1, SHA256: "a", Rows: rows}
	require.Equal(t, s.token(rows), s.token(rows))
	again := s
	again.Generation++
	for _, other := range []string{
		s.token(rows[2:]), again.token(rows), (Segment{Number: 1, SHA256: "b"}).token(rows), (Segment{Number: 2, SHA256: "a"}).token(rows),
	} {
		require.NotEqual(t, s.token(rows), other)
	}
	require.NotEqual(t, s.token(rows[:2]), s.token(rows[2:]))
}

// TestRowsOfManyFrames shows that the rows have the order of the records, however many goroutines
// decode them. A segment with a damaged frame has no rows, because a part of a segment would be
// counted as the whole.
func TestRowsOfManyFrames(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(t, err)
	const records = 20_000
	for i := range records {
		require.NoError(t, w.Add(frame("create", fmt.Sprint(i), `{"text":"`+strings.Repeat("word ", i%50)+`"}`)))
	}
	_, err = w.Close()
	require.NoError(t, err)
	s, err := archive.Open(file.Bytes())
	require.NoError(t, err)
	require.Greater(t, s.Frames(), 5)
	rows, err := Rows(main, s, wire)
	require.NoError(t, err)
	require.Len(t, rows, records)
	for i, r := range rows {
		require.Equal(t, fmt.Sprint(i), r.Key)
		require.Equal(t, i, int(r.Position))
	}
	file.Bytes()[file.Len()/2] ^= 4
	rows, err = Rows(main, s, wire)
	require.ErrorIs(t, err, archive.ErrCorrupt)
	require.Empty(t, rows)
	_, err = Rows(main, s, func() (consumer.Wire, error) { return consumer.Wire{}, io.EOF })
	require.ErrorIs(t, err, io.EOF)
}

// relayFrames returns frames of a relay, with and without events.
func relayFrames(f *testing.F) (frames [][]byte) {
	f.Helper()
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 20, History: 40, HistorySpan: time.Hour})
	require.NoError(f, err)
	require.NoError(f, n.Start("127.0.0.1:0"))
	defer n.Stop()
	conn, _, err := websocket.Dial(f.Context(), n.RelayURL()+"?cursor=0", nil)
	require.NoError(f, err)
	defer conn.CloseNow() // the connection is over
	for range 30 {
		_, frame, err := conn.Read(f.Context())
		require.NoError(f, err)
		frames = append(frames, frame)
	}
	return frames
}

// FuzzRows checks that the rows of any record can be written.
func FuzzRows(f *testing.F) {
	f.Add(frame("create", "a", `{"text":"https://example.com","createdAt":"2024-09-09T10:00:00Z"}`))
	f.Add([]byte(`{}`))
	relay, found := firehose.Wire(nil, nil), 0
	for _, frame := range relayFrames(f) {
		f.Add(frame)
		rows, err := rowsOf(func(yield func([]byte, error) bool) { yield(frame, nil) }, main.LastAt, relay)
		require.NoError(f, err)
		found += len(rows)
	}
	require.NotZero(f, found)
	f.Fuzz(func(t *testing.T, record []byte) {
		for _, w := range []consumer.Wire{jetstream.Wire(nil), relay} {
			rows, err := rowsOf(func(yield func([]byte, error) bool) { yield(record, nil) }, main.LastAt, w)
			require.NoError(t, err)
			require.NotEmpty(t, block(1, rows))
		}
	})
}
