package weir_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryPointIsUsed reads the source: each point has a name of its own, and a test names it.
func TestEveryPointIsUsed(t *testing.T) {
	t.Parallel()
	point := regexp.MustCompile(`crashpoint\.At\(([^,]+), (.+)\)\n`)
	reached, tests := map[string]string{}, strings.Builder{}
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.HasSuffix(path, "_test.go") {
			tests.Write(text)
			return nil
		}
		for _, found := range point.FindAllStringSubmatch(string(text), -1) {
			name := found[2]
			require.Regexp(t, `^"[a-z ]+: [a-z' ]+"$`, name, path)
			require.Empty(t, reached[name], "%s is reached in %s too", name, path)
			reached[name] = path
		}
		return nil
	}))
	require.Greater(t, len(reached), 10)
	for name, path := range reached {
		require.Contains(t, tests.String(), name, "no test names the point of %s", path)
	}
}
