package web

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web/webtest"
)

// TestEveryTextExistsAndIsUsed shows that every text named in the code, the templates and the
// script exists, and that each text is used.
func TestEveryTextExistsAndIsUsed(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	named := map[string]*regexp.Regexp{
		"*.go":             regexp.MustCompile(`say\("([a-z0-9_]+)"`),
		"templates/*.html": regexp.MustCompile(`say "([a-z0-9_]+)"`),
		"static/*.js":      regexp.MustCompile(`(?:say\(|, )"([a-z]+_?[a-z]*)"`),
	}
	for pattern, uses := range named {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, found := range uses.FindAllStringSubmatch(string(content), -1) {
				key := found[1]
				if strings.HasSuffix(key, "_") {
					continue // the prefix of a key
				}
				if strings.HasSuffix(file, ".js") {
					if _, ours := texts()["js_"+key]; ours {
						key = "js_" + key
					} else if _, ours := texts()[key]; !ours && !strings.HasPrefix(found[0], "say(") {
						continue // another string
					}
				}
				require.Contains(t, texts(), key, file)
				used[key] = true
			}
		}
	}
	for _, prefix := range []string{"word_", "detail_", "way_", "sort_", "degree_", "how_", "why_", "active_degree_", "age_", "expected_", "error_heading_"} { // keys with these prefixes are composed
		for key := range texts() {
			used[key] = used[key] || strings.HasPrefix(key, prefix)
		}
	}
	for key, text := range texts() {
		require.True(t, used[key], "nothing uses %s", key)
		require.NotEmpty(t, text)
	}
	for _, why := range append(ranking.Reasons(), ranking.Waiting) {
		require.Contains(t, texts(), "why_"+string(why))
	}
	for _, way := range ranking.Ways() {
		require.Contains(t, texts(), "way_"+way)
		require.Contains(t, texts(), "how_"+way)
	}
}

func TestTextsHaveValuesAndForms(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 account", say("accounts_n", 1))
	require.Equal(t, "1,234 accounts", say("accounts_n", 1234))
	require.Equal(t, "with “{1} {0}”", say("active_text", "{1} {0}"), "placeholders in a value must not be replaced")
}

// TestTemplatesHaveNoTextOfTheirOwn shows that templates contain no literal text.
func TestTemplatesHaveNoTextOfTheirOwn(t *testing.T) {
	t.Parallel()
	webtest.RequireNoText(t)
}
