//go:build clickhouse

package clickhouse

import (
	"os"
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
		r := Row{Author: author, Collection: "app.bsky.feed.post", Key: key, Operation: operation, Body: body, CreatedAt: today.Add(-ago), Links: links, Position: uint32(len(s.Rows))}
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
	top, err := w.index.TopLinks(t.Context(), 30, 2)
	require.NoError(t, err)
	require.Equal(t, []SharedLink{{"x", 3, 3}, {hostile, 1, 1}}, top)
	days, err := w.index.LinksByDay(t.Context(), 30)
	require.NoError(t, err)
	require.Equal(t, []DayOfLinks{{today.Add(-time.Hour).Format(time.DateOnly), 3, 3, 3}}, days)
	first, err := w.index.FirstSharers(t.Context(), "x", 2)
	require.NoError(t, err)
	require.Equal(t, []Sharer{
		{"a", today.Add(-40 * 24 * time.Hour).Format(time.DateTime)},
		{"b", today.Add(-time.Hour).Format(time.DateTime)},
	}, first)
	first, err = w.index.FirstSharers(t.Context(), hostile, 9)
	require.NoError(t, err)
	require.Len(t, first, 1)
}

// TestAnalyticsAreDocumented compares the documented queries with those of the commands.
func TestAnalyticsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/analytics.md")
	require.NoError(t, err)
	for _, sql := range []string{TopLinksSQL(30, 20), LinksByDaySQL(30), FirstSharersSQL("news.example/article", 20)} {
		require.Contains(t, string(page), "\n"+sql+"\n")
	}
}
