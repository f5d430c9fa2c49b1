package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// cards writes a recording of posts, each with a card: lines of a page and the titles that accounts
// give it, the first account first.
func cards(t *testing.T, now time.Time, pages map[string][]string) (file string) {
	t.Helper()
	var lines []byte
	n := uint(0)
	for page, titles := range pages {
		for account, title := range titles {
			n++
			at := now.Add(-time.Hour + time.Duration(account)*time.Second)
			external := map[string]any{"uri": "https://" + page, "title": title, "description": ""}
			record := map[string]any{"$type": "app.bsky.feed.post", "text": "read", "createdAt": at.UTC().Format(time.RFC3339),
				"embed": map[string]any{"$type": "app.bsky.embed.external", "external": external}}
			tid := syntax.NewTID(at.UnixMicro(), n).String()
			commit := map[string]any{"rev": tid, "operation": "create", "collection": "app.bsky.feed.post", "rkey": tid,
				"cid": "bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa", "record": record}
			did := "did:plc:" + strings.Repeat(string(rune('a'+account)), 24)
			line, err := json.Marshal(map[string]any{"did": did, "time_us": at.UnixMicro() + int64(n), "kind": "commit", "commit": commit})
			require.NoError(t, err)
			lines = append(append(lines, line...), '\n')
		}
	}
	file = filepath.Join(t.TempDir(), "cards.jsonl")
	require.NoError(t, os.WriteFile(file, lines, 0o600))
	return file
}

// TestCardsOfWallsGiveNoHeadline ingests cards as clients make them.
func TestCardsOfWallsGiveNoHeadline(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + schematest.NewURL(t)}
	now := time.Now()
	wall, garbled := "Bank - Are you a robot?", "\uFFFD\uFFFD\u0265 - \uFFFD 7\uFFFD"
	pages := map[string][]string{
		"bank.example/2026/rates":     {wall, wall, wall, "Rates rise again", "Rates rise again | Bank"},
		"bank.example/2026/only":      {wall, wall},
		"magazine.example/story":      {"magazine.example", "www.magazine.example", "Magazine", "Herons return"},
		"paper.example/2026/entities": {"It wasn&#39;t me: Tom &amp; Jerry", "It wasn&amp;#39;t me: Tom &amp;amp; Jerry", "It wasn't me", "IT WASN’T ME"},
		"paper.example/2026/garbled":  {garbled, garbled},
		"mag.example/are-you-a-robot": {"Are you a robot?", "Are you a robot?"},
	}
	for n := range 3 {
		pages[fmt.Sprintf("club.example/2026/%d", n)] = []string{"Palun oodake", "Palun oodake", fmt.Sprint("Story ", n)}
		pages[fmt.Sprintf("daily.example/2026/%d", n)] = []string{"Palun oodake", "Palun oodake"}
	}
	t.Log(succeed(t, env, "ingest", cards(t, now, pages)))
	shown := map[string]string{}
	for _, l := range rankedLinks(t, env, "24h", now.Add(time.Minute).UTC().Format(time.RFC3339)) {
		shown[strings.TrimPrefix(l.URL, "https://")] = l.Title
		require.Equal(t, l.Title == "", l.CardFrom == "", l.URL)
	}
	require.Equal(t, map[string]string{
		"bank.example/2026/rates": "Rates rise again", "bank.example/2026/only": "", "magazine.example/story": "Herons return",
		"paper.example/2026/entities": "It wasn't me: Tom & Jerry", "paper.example/2026/garbled": "",
		"mag.example/are-you-a-robot": "Are you a robot?",
		"club.example/2026/0":         "Story 0", "club.example/2026/1": "Story 1", "club.example/2026/2": "Story 2",
		"daily.example/2026/0": "", "daily.example/2026/1": "", "daily.example/2026/2": "",
	}, shown)
}
