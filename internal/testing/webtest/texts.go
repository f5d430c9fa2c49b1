package webtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RequireTexts shows that every text that a part of the page names in its code and templates exists, and
// that each of its own is used, in its script too. Keys with the composed prefixes are used.
func RequireTexts(t *testing.T, own map[string]string, say func(string, ...any) string, composed ...string) {
	t.Helper()
	used := map[string]bool{}
	for _, file := range slices.Concat(glob(t, "*.go"), glob(t, "templates/*.html"), glob(t, "static/*.js")) {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		if strings.HasSuffix(file, ".js") {
			for _, found := range regexp.MustCompile(`(say\(|, )"([a-z_]+)"`).FindAllStringSubmatch(string(content), -1) {
				key := found[2]
				if own["js_"+key] != "" {
					used["js_"+key] = true
				} else if found[1] == "say(" {
					require.NotEmpty(t, say(key), "%s in %s", key, file)
				}
			}
			continue
		}
		for _, found := range regexp.MustCompile(`say(?:\(| )"([a-z0-9_]+)"`).FindAllStringSubmatch(string(content), -1) {
			if key := found[1]; !strings.HasSuffix(key, "_") { // otherwise the prefix of a key
				require.NotEmpty(t, say(key), "%s in %s", key, file)
				used[key] = true
			}
		}
	}
	for key, text := range own {
		for _, prefix := range composed {
			used[key] = used[key] || strings.HasPrefix(key, prefix)
		}
		require.True(t, used[key], "nothing uses %s", key)
		require.NotEmpty(t, text)
	}
}

// RequireNoText shows that the templates of a part contain no literal text.
func RequireNoText(t *testing.T) {
	t.Helper()
	files := glob(t, "templates/*.html")
	require.NotEmpty(t, files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		rest := regexp.MustCompile(`<([a-z0-9]+)[^>]*\{\{.*?\}\}[^>]*>`).ReplaceAllString(string(content), "")
		rest = regexp.MustCompile(`(?s)\{\{.*?\}\}|<[^>]*>`).ReplaceAllString(rest, "")
		require.NotRegexp(t, `[A-Za-z]{3,}`, rest, file)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return files
}
