package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// sharing writes a recording of posts, in the order in which they are shared, and then of identities.
// A post is an address, which a facet has, or "ADDRESS | TITLE", which a card has. Each post of a kind
// is by another account.
type sharing struct {
	t     *testing.T
	at    time.Time
	lines []byte
	n     int
}

func accountOf(i int) string { return "did:plc:" + strings.Repeat(string(rune('a'+i)), 24) }

func (s *sharing) line(account int, kind string, fields map[string]any) {
	s.n++
	at := s.at.Add(time.Duration(s.n) * time.Second)
	line, err := json.Marshal(map[string]any{"did": accountOf(account), "time_us": at.UnixMicro(), "kind": kind, kind: fields})
	require.NoError(s.t, err)
	s.lines = append(append(s.lines, line...), '\n')
}

func (s *sharing) post(account int, shared string) {
	at := s.at.Add(time.Duration(s.n) * time.Second)
	record := map[string]any{"$type": "app.bsky.feed.post", "text": "read this", "createdAt": at.UTC().Format(time.RFC3339)}
	if uri, title, ok := strings.Cut(shared, " | "); ok {
		record["embed"] = map[string]any{
			"$type": "app.bsky.embed.external", "external": map[string]any{"uri": uri, "title": title, "description": ""},
		}
	} else {
		record["facets"] = []any{map[string]any{
			"index":    map[string]any{"byteStart": 0, "byteEnd": 4},
			"features": []any{map[string]any{"$type": "app.bsky.richtext.facet#link", "uri": shared}},
		}}
	}
	tid := syntax.NewTID(at.UnixMicro(), uint(s.n)).String() // small
	s.line(account, "commit", map[string]any{"rev": tid, "operation": "create", "collection": "app.bsky.feed.post", "rkey": tid,
		"cid": "bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa", "record": record})
}

func (s *sharing) identity(account int, handle string) {
	fields := map[string]any{"did": accountOf(account), "seq": s.n, "time": s.at.UTC().Format(time.RFC3339)}
	if handle != "" {
		fields["handle"] = handle
	}
	s.line(account, "identity", fields)
}

func (s *sharing) file() string {
	file := filepath.Join(s.t.TempDir(), "shared.jsonl")
	require.NoError(s.t, os.WriteFile(file, s.lines, 0o600))
	return file
}

// TestKindsOfLinks ingests links as people share them, of every kind that is known to go wrong: their
// rows, their headlines, their gifts, the links to resolve, and the handles of those who share them.
func TestKindsOfLinks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &sharing{t: t, at: now.Add(-time.Hour)}
	kinds, err := os.ReadFile(filepath.Join("testdata", "links.txt"))
	require.NoError(t, err)
	var want []string
	account := 0
	for line := range strings.Lines(string(kinds)) {
		line, err := strconv.Unquote(`"` + strings.TrimSpace(line) + `"`)
		require.NoError(t, err)
		if shared, ok := strings.CutPrefix(line, "> "); ok {
			s.post(account, shared)
			account++
		} else if row, ok := strings.CutPrefix(line, "= "); ok {
			want = append(want, row)
		} else {
			account = 0
		}
	}
	s.identity(0, "Ada.Writes.EXAMPLE")
	s.identity(1, "bo.example")
	s.identity(1, "") // in the same batch
	s.identity(2, "no handle")
	url := schematest.NewURL(t)
	env := []string{"DATABASE_URL=" + url, "WEIR_RESOLVE_LINKS=false", "WEIR_FETCH_CARDS=false"}
	t.Log(succeed(t, env, "ingest", s.file()))

	var rows []string
	for _, l := range rankedLinks(t, env, "24h", now.Add(time.Minute).UTC().Format(time.RFC3339)) {
		require.Equal(t, l.Title == "", l.CardFrom == "", l.URL)
		row := fmt.Sprint(l.Sharers, " ", l.URL)
		if l.Title != "" {
			row += " | " + l.Title
		}
		if l.Gift != "" {
			row += " gift " + l.Gift
		}
		rows = append(rows, row)
	}
	slices.Sort(rows)
	slices.Sort(want)
	require.Equal(t, strings.Join(want, "\n"), strings.Join(rows, "\n"))
	pool := open(t, url)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM short_links WHERE NOT guess`))
	var handles string
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT string_agg(handle || CASE WHEN handle <> '' AND handle_unverified THEN ' unverified' ELSE '' END, ', ' ORDER BY did)
		FROM accounts WHERE did IN ($1, $2, $3)`,
		accountOf(0), accountOf(1), accountOf(2)).Scan(&handles))
	require.Equal(t, "ada.writes.example unverified, bo.example unverified, ", handles)
}
