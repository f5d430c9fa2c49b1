package weir_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const longestLine = 120

var (
	fileName      = regexp.MustCompile("`([a-z][a-z0-9_./]*\\.(?:go|sql|yml|sh)|[a-z0-9_./]+/[a-z0-9_]+\\.txt)`|`((?:[a-z0-9]+/)+)`")
	heading       = regexp.MustCompile(`(?m)^#+ (.+)$`)
	markdownLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	namedDocument = regexp.MustCompile(`\bdocs/[a-z0-9_/-]+\.md`)
	notInAnchor   = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	testFunction  = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	testName      = regexp.MustCompile("`(Test[A-Z]\\w*)(…?)`")
)

// documents returns the text of every document, by its path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found[path] = string(text)
	}
	for _, path := range []string{"README.md", "ARCHITECTURE.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		add(path)
	}
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			add(path)
		}
		return err
	}))
	return found
}

// TestLinesOfDocuments checks that lines have at most 120 characters, unless
// the line is a single URL, and that their relative links lead to a file and to
// a heading in it.
func TestLinesOfDocuments(t *testing.T) {
	t.Parallel()
	for path, text := range documents(t) {
		number := 0
		for line := range strings.Lines(text) {
			number++
			line = strings.TrimRight(line, "\n")
			words := strings.Fields(strings.TrimLeft(line, " -*"))
			if utf8.RuneCountInString(line) > longestLine && !(len(words) == 1 && strings.Contains(words[0], "://")) {
				t.Errorf("%s:%d has more than %d characters: %s", path, number, longestLine, line)
			}
		}
		for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
			if target := m[1]; !strings.Contains(target, ":") && !leadsSomewhere(path, target) {
				t.Errorf("%s links to %s, which does not exist", path, target)
			}
		}
	}
}

// leadsSomewhere reports whether a relative link in a document leads to a file,
// and to a heading in it if the link names one.
func leadsSomewhere(document, target string) bool {
	path, anchor, named := strings.Cut(target, "#")
	if path == "" {
		path = document
	} else {
		path = filepath.Join(filepath.Dir(document), path)
	}
	if _, err := os.Stat(path); err != nil {
		return false
	}
	if !named || !strings.HasSuffix(path, ".md") {
		return true
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		if strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// TestDocumentsNameFilesThatExist checks that the files that documents name in code type exist. A
// path may leave out the folders at its beginning.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	t.Parallel()
	var files []string
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if path == ".git" && entry.IsDir() {
			return fs.SkipDir
		}
		files = append(files, "/"+path)
		return err
	}))
	for path, text := range documents(t) {
		for _, m := range fileName.FindAllStringSubmatch(text, -1) {
			name := strings.TrimSuffix(m[1]+m[2], "/")
			if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix(file, "/"+name) }) {
				t.Errorf("%s names %s, which does not exist", path, name)
			}
		}
	}
}

// TestCodeNamesDocumentsThatExist checks the documents that code, migrations and rules name.
func TestCodeNamesDocumentsThatExist(t *testing.T) {
	t.Parallel()
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if path == ".git" && entry.IsDir() {
			return fs.SkipDir
		}
		if err != nil || !slices.Contains([]string{".go", ".sql", ".txt", ".yml", ".sh"}, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		for _, document := range namedDocument.FindAllString(string(text), -1) {
			if _, err := os.Stat(document); err != nil {
				t.Errorf("%s names %s, which does not exist", path, document)
			}
		}
		return err
	}))
}

// TestDocumentsNameTestsThatExist checks that a test that is renamed is renamed
// in the documents too. `TestX…` names every test that begins with TestX.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	t.Parallel()
	var tests []string
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range testFunction.FindAllStringSubmatch(string(source), -1) {
			tests = append(tests, m[1])
		}
		return err
	}))
	for path, text := range documents(t) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			exists := false
			for _, name := range tests {
				exists = exists || name == m[1] || m[2] != "" && strings.HasPrefix(name, m[1])
			}
			if !exists {
				t.Errorf("%s names %s, which is no test", path, m[1])
			}
		}
	}
}

// TestEveryRuleHasACondition checks that each alert of Prometheus is a condition of the core or of a feature.
func TestEveryRuleHasACondition(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile("deploy/prometheus/weir.rules.yml")
	require.NoError(t, err)
	var source strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	}))
	alerts := regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	require.NotEmpty(t, alerts)
	for _, alert := range alerts {
		require.Contains(t, source.String(), `"`+alert[1]+`"`)
	}
}

// TestDemoSaysFirstWhatItDoes runs make demo with a Go that only says that it builds: what comes is said before.
func TestDemoSaysFirstWhatItDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\necho the build: failed\nexit 1\n"), 0o700))
	cmd := exec.Command("make", "--no-print-directory", "demo")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", // the flags are not those of the make that runs the test
		"PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "the build failed")
	require.Regexp(t, `(?s)^This installs PostgreSQL.*takes minutes the first time.*Building Weir:\nthe build: failed\n`, string(out))
	require.NotContains(t, string(out), "bin/weir demo")
}
