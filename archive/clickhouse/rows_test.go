package clickhouse

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
)

// frame returns a Jetstream frame of a post.
func frame(operation, key, record string) []byte {
	if record != "" {
		record = `,"cid":"bafyreihtqkvx5ptvf2rmzhbyq7ak4tiwvfhqzbdfwqgkb5dpkxtgpvmkoy","record":` + record
	}
	return fmt.Appendf(nil, `{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","time_us":1725911162329308,"kind":"commit","commit":{"rev":"3l3qo2vutsw2b","operation":%q,"collection":"app.bsky.feed.post","rkey":%q%s}}`,
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

// wire is that of Jetstream.
func wire() (consumer.Wire, error) { return jetstream.Wire(nil), nil }

func TestRowsOfFrames(t *testing.T) {
	t.Parallel()
	const did = "did:plc:eygmaihciaxprqvxpfvl6flk"
	server := time.UnixMicro(1725911162329308)
	post := func(created string) string {
		return `{"$type":"app.bsky.feed.post","text":"see https://www.example.com/a/?utm_source=x and https://example.com/a","createdAt":` + created + `}`
	}
	records := [][]byte{
		frame("create", "a", post(`"2024-09-09T10:00:00Z"`)),
		frame("update", "a", post(`"2124-09-09T10:00:00Z"`)), // later than the server's time
		frame("create", "b", post(`7`)),                      // no claim
		[]byte(`no event`),
		frame("delete", "a", ""),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"account","account":{"active":false,"did":"` + did + `","seq":1,"status":"deleted","time":"2024-09-09T10:00:00Z"}}`),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"identity","identity":{"did":"` + did + `","handle":"a.example.com","seq":1,"time":"2024-09-09T10:00:00Z"}}`),
		[]byte(`{"did":"` + did + `","time_us":1725911162329308,"kind":"news"}`), // unknown
	}
	rows, err := Rows(sealed(t, records), "main", wire)
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
	again, err := Rows(sealed(t, records), "main", wire)
	require.NoError(t, err)
	require.Equal(t, rows, again, "the same records give the same rows")
}

// TestRowsOfManyFrames: the rows are in the order of the records, however many goroutines
// decode them; and a segment with a damaged frame has none, because a part of a segment
// would be counted as the whole.
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
	rows, err := Rows(s, "main", wire)
	require.NoError(t, err)
	require.Len(t, rows, records)
	for i, r := range rows {
		require.Equal(t, fmt.Sprint(i), r.Key)
		require.Equal(t, i, int(r.Position))
	}
	file.Bytes()[file.Len()/2] ^= 4
	rows, err = Rows(s, "main", wire)
	require.ErrorIs(t, err, archive.ErrCorrupt)
	require.Empty(t, rows)
	_, err = Rows(s, "main", func() (consumer.Wire, error) { return consumer.Wire{}, io.EOF })
	require.ErrorIs(t, err, io.EOF)
}

// FuzzRows checks that whatever a record holds, its rows can be written.
func FuzzRows(f *testing.F) {
	f.Add(frame("create", "a", `{"text":"https://example.com","createdAt":"2024-09-09T10:00:00Z"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		rows, err := rowsOf(func(yield func([]byte, error) bool) { yield(record, nil) }, jetstream.Wire(nil))
		require.NoError(t, err)
		require.LessOrEqual(t, len(rows), 1)
		require.NotEmpty(t, block(1, rows))
	})
}
