package schema_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestReleasedMigrationsNeverChange compares the migrations with those of each release.
func TestReleasedMigrationsNeverChange(t *testing.T) {
	t.Parallel()
	parts, err := schematest.Parts()
	require.NoError(t, err)
	sums, err := schema.Sums(parts...)
	require.NoError(t, err)
	files, err := filepath.Glob("testdata/releases/*/migrations.sha256")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		release := filepath.Base(filepath.Dir(file))
		for line := range strings.Lines(string(text)) {
			sum, migration, found := strings.Cut(strings.TrimSpace(line), "  ")
			require.True(t, found, line)
			require.Equal(t, sum, sums[migration], "databases of %[1]s have applied another %[2]s: restore that file, and add a new one "+
				"after the last of its part. Only until %[1]s is tagged: make fixture VERSION=%[1]s", release, migration)
		}
	}
}
