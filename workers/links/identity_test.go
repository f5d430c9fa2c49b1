package links

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestOneArticleIsOneRow shows that all spellings of an article share one link, and that articles
// that only look alike are separate links.
func TestOneArticleIsOneRow(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	a, w := newAuthor(t, pool), worker(pool)
	spellings := []string{
		"https://news.example/2026/07/04/a-story", "http://news.example/2026/07/04/a-story", "https://www.news.example/2026/07/04/a-story",
		"http://www.news.example/2026/07/04/a-story", "https://news.example/2026/07/04/a-story/", "https://NEWS.example/2026/07/04/a-story",
		"https://news.example:443/2026/07/04/a-story", "https://news.example/2026/07/04/a-story?",
		"https://news.example/2026/07/04/a-story?utm_source=b",
		"https://m.news.example/2026/07/04/a-story", "https://news.example/2026/07/04//a-story",
		"https://news.example/2026/07/04/a-story#top", "https://news.example/2026/07/04/a-story/amp",
		"https://web.archive.org/web/20260704000000/https://news.example/2026/07/04/a-story",
	}
	alike := []string{
		"https://news.example/2026/07/04/A-story", "https://news.example/2026/07/04/a-story-2",
		"https://news.example/2026/07/a-story", "https://news.example/a-story",
		"https://news.example/2026/07/04/a-story?page=2", "https://news.example:8443/2026/07/04/a-story",
		"https://news.example/2026/07/04/a-story#!/2", "https://other.example/2026/07/04/a-story",
		"https://news.example/2026/07/04/a-story.html", "https://news.example/2026/07/04/a%20story",
	}
	var names []string
	for i, url := range append(spellings, alike...) {
		name := fmt.Sprintf("p%02d", i)
		a.post(name, "1", url)
		names = append(names, name)
	}
	require.NoError(t, work(t.Context(), w, names...))
	rows, err := pool.Query(t.Context(), `SELECT l.identity || ' ' || count(*) FROM links AS l JOIN shares AS s ON s.link_id = l.id
		GROUP BY l.id ORDER BY count(*) DESC, 1`)
	require.NoError(t, err)
	counts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, counts, 1+len(alike), "%v", counts)
	require.Equal(t, "news.example/2026/07/04/a-story 14", counts[0])
}
