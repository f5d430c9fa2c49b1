package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestStatementsInDocumentsAreValid shows that Postgres knows every table, column and function that
// a statement in a document names. The statements of analytics.md are for ClickHouse, and the views
// of records are created when their schemas are known.
func TestStatementsInDocumentsAreValid(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `
CREATE SCHEMA layers
    CREATE VIEW expression AS SELECT '' AS uri, '' AS text, now() AS created_at, '' AS verdict
    CREATE VIEW graph_edge AS SELECT '' AS edge_type`)
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	files, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	decisions, err := filepath.Glob("../docs/decisions/*.md")
	require.NoError(t, err)
	statements := 0
	for _, file := range slices.Concat(files, decisions) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if filepath.Base(file) == "analytics.md" {
			continue
		}
		for _, found := range regexp.MustCompile("(?s)```sql\n(.*?)```|`(SELECT [^`]*)`").FindAllStringSubmatch(string(text), -1) {
			text := regexp.MustCompile(`--.*`).ReplaceAllString(found[1]+found[2], "")
			text = strings.ReplaceAll(text, "…", "0") // the reader replaces this with a number
			for statement := range strings.SplitSeq(text, ";") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				statements++
				_, err := conn.Conn().PgConn().Prepare(t.Context(), "", statement, nil)
				require.NoError(t, err, "%s: %s", file, statement)
			}
		}
	}
	require.Greater(t, statements, 80)
}
