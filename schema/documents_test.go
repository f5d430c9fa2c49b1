package schema_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema/schematest"
)

// TestStatementsInDocumentsAreValid: Postgres knows every table, column and function that a
// statement in a document names. Those of analytics.md are for ClickHouse, and the views
// of records are made when their schemas are known.
func TestStatementsInDocumentsAreValid(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
CREATE SCHEMA layers
    CREATE VIEW expression AS SELECT '' AS uri, '' AS text, now() AS created_at, '' AS verdict
    CREATE VIEW graph_edge AS SELECT '' AS edge_type`)
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
		for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			block := regexp.MustCompile(`--.*`).ReplaceAllString(block[1], "")
			for statement := range strings.SplitSeq(block, ";") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				statements++
				_, err := conn.Conn().PgConn().Prepare(t.Context(), "", statement, nil)
				require.NoError(t, err, "%s: %s", file, statement)
			}
		}
	}
	require.Greater(t, statements, 50)
}
