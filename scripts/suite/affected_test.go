package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAffectedPackages changes files of a small module, and names the packages whose tests can see it.
func TestAffectedPackages(t *testing.T) {
	t.Parallel()
	module := map[string]string{
		"go.mod":            "module m\n\ngo 1.26\n",
		"root_test.go":      "package m_test\n",
		"README.md":         "",
		"notes/page.md":     "",
		"low/low.go":        "package low\n",
		"low/low_test.go":   "package low\n",
		"low/sql/one.sql":   "",
		"mid/mid.go":        "package mid\n\nimport _ \"m/low\"\n",
		"high/high.go":      "package high\n\nimport _ \"m/mid\"\n",
		"beside/b.go":       "package beside\n",
		"beside/b_test.go":  "package beside\n\nimport _ \"m/mid\"\n",
		"above/above.go":    "package above\n\nimport _ \"m/beside\"\n",
		"cmd/run/main.go":   "package main\n\nimport _ \"m/high\"\n\nfunc main() {}\n",
		"whole/w_test.go":   "package whole\n\nconst program = \"../cmd/run\"\n",
		"reader/r_test.go":  "package reader\n\nconst page = \"../notes/page.md\"\n",
		"testing/helper.go": "package testing\n",
	}
	dir := t.TempDir()
	for file, text := range module {
		write(t, filepath.Join(dir, file), text)
	}
	git(t, dir, "init", "-q")
	git(t, dir, "add", ".")
	git(t, dir, "commit", "-qm", "one")

	all := []string{"m", "m/above", "m/beside", "m/cmd/run", "m/high", "m/low", "m/mid", "m/reader", "m/testing", "m/whole"}
	for file, want := range map[string][]string{
		"low/low.go":      {"m", "m/beside", "m/cmd/run", "m/high", "m/low", "m/mid", "m/whole"}, // not above: it imports no test
		"low/sql/one.sql": {"m", "m/beside", "m/cmd/run", "m/high", "m/low", "m/mid", "m/whole"},
		"low/low_test.go": {"m", "m/low"},
		"high/new.go":     {"m", "m/cmd/run", "m/high", "m/whole"},
		"beside/b.go":     {"m", "m/above", "m/beside"},
		"cmd/run/main.go": {"m", "m/cmd/run", "m/whole"},
		"notes/page.md":   {"m", "m/reader"},
		"notes/new.md":    {"m", "m/reader"}, // its test may read the folder
		"README.md":       {"m"},
		"go.mod":          all,
	} {
		text := "package " + filepath.Base(filepath.Dir(file)) + "\n\nconst changed = 1\n"
		switch {
		case file == "go.mod":
			text = module[file] + "// changed\n"
		case file == "cmd/run/main.go":
			text = module[file] + "// changed\n"
		case filepath.Ext(file) != ".go":
			text = "changed"
		}
		write(t, filepath.Join(dir, file), text)
		got, err := affected(t.Context(), dir, "HEAD")
		require.NoError(t, err)
		require.Equal(t, want, got, file)
		git(t, dir, "add", ".")
		git(t, dir, "reset", "-q", "--hard", "HEAD")
	}

	t.Run("a commit without an upstream branch", func(t *testing.T) {
		write(t, filepath.Join(dir, "beside/b.go"), "package beside\n\nconst changed = 1\n")
		git(t, dir, "commit", "-qam", "two")
		got, err := affected(t.Context(), dir, "")
		require.NoError(t, err)
		require.Equal(t, []string{"m", "m/above", "m/beside"}, got)
		_, err = affected(t.Context(), dir, "nothing")
		require.ErrorContains(t, err, "nothing")
	})
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git",
		append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
}
