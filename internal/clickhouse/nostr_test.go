package clickhouse

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
)

// TestRowsOfNostr shows that an event has the date that its author claims, but at most that of its
// segment, because relays send no time. Notes and articles share links, with the same spelling as
// in posts.
func TestRowsOfNostr(t *testing.T) {
	t.Parallel()
	signed := func(kind int, at time.Time, content string, tags ...[]string) []byte {
		e := &protocol.Event{Kind: kind, CreatedAt: at.Unix(), Content: content, Tags: tags}
		require.NoError(t, e.Sign([32]byte{31: 9}))
		return e.AppendNotepack(nil)
	}
	claimed, later := main.LastAt.Add(-time.Hour), main.LastAt.Add(time.Hour)
	rows, err := Rows(main, sealed(t, [][]byte{
		signed(1, claimed, "see https://www.example.com/a/?utm_source=x"),
		signed(30023, claimed, "[a](https://example.com/a)", []string{"d", "x"}),
		signed(7, claimed, "https://example.com/a"), // a reaction
		signed(1, later, "from the future"),
		signed(1, claimed, "gone soon", []string{"expiration", strconv.FormatInt(main.LastAt.Unix()-1, 10)}),
		signed(5, claimed, "", []string{"e", strings.Repeat("ab", 32)}), // names the event, but not its date
	}), notes)
	require.NoError(t, err)
	type short struct {
		Collection, Operation string
		Links                 []string
		At                    time.Time
	}
	var got []short
	for _, r := range rows {
		got = append(got, short{r.Collection, r.Operation, r.Links, r.CreatedAt.UTC()})
	}
	links := []string{"example.com/a"}
	require.Equal(t, []short{
		{"nostr.1", "create", links, claimed},
		{"nostr.30023", "create", links, claimed},
		{"nostr.7", "create", nil, claimed},
		{"nostr.1", "create", nil, main.LastAt},
		{"nostr.1", "create", nil, claimed},
		{"nostr.*", "delete", nil, main.LastAt},
		{"nostr.5", "create", nil, claimed},
	}, got)
}

// notes returns the wire of Nostr.
func notes() (consumer.Wire, error) {
	return nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{Registerer: prometheus.NewRegistry()}), nil), nil
}

// FuzzRowsOfNostr checks that the rows of any record can be written, and that none is later than its segment or than
// the date that its author claims.
func FuzzRowsOfNostr(f *testing.F) {
	note := &protocol.Event{Kind: 1, CreatedAt: main.LastAt.Unix() - 60, Content: "https://example.com"}
	require.NoError(f, note.Sign([32]byte{31: 9}))
	f.Add(note.AppendNotepack(nil))
	wire, err := notes()
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, record []byte) {
		rows, err := rowsOf(func(yield func([]byte, error) bool) { yield(record, nil) }, main.LastAt, wire)
		require.NoError(t, err)
		require.NotEmpty(t, block(1, rows))
		e, err := protocol.DecodeNotepack(record)
		if err != nil {
			return
		}
		for _, r := range rows {
			at := main.LastAt
			if r.Operation == "create" && e.CreatedAt < at.Unix() {
				at = time.Unix(e.CreatedAt, 0)
			}
			require.True(t, at.Equal(r.CreatedAt), "%v: %s", r.CreatedAt, r.Operation)
		}
	})
}
