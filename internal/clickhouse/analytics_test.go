//go:build clickhouse

package clickhouse

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
)

// TestAnalytics covers deleted posts, accounts that left, and a link that tries to end its string
// literal.
func TestAnalytics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	today := time.Now().UTC().Truncate(24 * time.Hour)
	s := Segment{Number: 1}
	add := func(author, key, operation, body string, ago time.Duration, links ...string) {
		r := Row{
			Author: author, Collection: "app.bsky.feed.post", Key: key, Operation: operation, Body: body, CreatedAt: today.Add(-ago), Links: links,
			Position: uint32(len(s.Rows)),
		}
		if key == "" {
			r.Collection = ""
		}
		r.ID = archive.NewID(author, key, operation, body)
		s.Rows = append(s.Rows, r)
	}
	const hostile = `a\' OR 1 -- `
	add("a", "1", "create", "{}", 3*time.Hour, "x", hostile)
	add("a", "1", "update", "{}", 2*time.Hour, "x")
	add("b", "1", "create", "{}", time.Hour, "x", "y")
	add("b", "2", "create", "{}", time.Hour, "z")
	add("b", "2", "delete", "", 0)
	add("c", "1", "create", "{}", 4*time.Hour, "x")
	add("c", "", "account", "{}", 0)
	add("d", "1", "create", "{}", time.Hour, "x")
	add("d", "", "account", "{}", 0)
	add("d", "", "account", "", 0) // the account is back
	add("a", "0", "create", "{}", 40*24*time.Hour, "x")
	require.NoError(t, w.put(s))
	read := func(sql string) []map[string]any {
		rows, err := w.index.read(t.Context(), sql)
		require.NoError(t, err)
		return rows
	}
	number := func(n int) json.Number { return json.Number(strconv.Itoa(n)) }
	require.Equal(t, []map[string]any{
		{"link": "x", "sharers": number(3), "posts": number(3)},
		{"link": hostile, "sharers": number(1), "posts": number(1)},
	}, read(topLinks(30, 2)))
	yesterday := today.Add(-time.Hour).Format(time.DateOnly)
	require.Equal(t, []map[string]any{{"day": yesterday, "links": number(3), "sharers": number(3), "posts": number(3)}}, read(linksByDay(30)))
	require.Equal(t, []map[string]any{
		{"author": "a", "first_at": today.Add(-40 * 24 * time.Hour).Format(time.DateTime)},
		{"author": "b", "first_at": today.Add(-time.Hour).Format(time.DateTime)},
	}, read(firstSharers("x", 2)))
	require.Len(t, read(firstSharers(hostile, 9)), 1)
}

// TestAnalyticsAreDocumented compares the documented queries with those of the commands.
func TestAnalyticsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/analytics.md")
	require.NoError(t, err)
	for _, sql := range []string{topLinks(30, 20), linksByDay(30), firstSharers("news.example/article", 20)} {
		require.Contains(t, string(page), "\n"+sql+"\n")
	}
}
