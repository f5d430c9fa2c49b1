package schema_test

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestDumpIsTrue keeps schema.sql, which people read, equal to what the
// migrations make. `go generate ./schema` rewrites it.
func TestDumpIsTrue(t *testing.T) {
	t.Parallel()
	dump := dump(t, schematest.New(t))
	if os.Getenv("WEIR_WRITE_SCHEMA") != "" {
		require.NoError(t, os.WriteFile("schema.sql", []byte(dump), 0o644))
	}
	committed, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	require.Equal(t, string(committed), dump, "run `go generate ./schema`")
}

// dump writes down the catalog. What pg_dump writes differs with its version,
// and a server may come without it.
func dump(t *testing.T, db schema.DB) string {
	t.Helper()
	const sql = `
WITH tables AS (
    SELECT c.oid, c.relname, c.relkind, pg_get_partkeydef(c.oid) AS key, pg_get_expr(c.relpartbound, c.oid) AS bound,
           (SELECT i.inhparent::regclass FROM pg_inherits AS i WHERE i.inhrelid = c.oid) AS parent, c.reloptions
    FROM pg_class AS c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
      AND c.relname NOT LIKE 'river\_%' AND c.relname <> 'weir_migration'
), items AS (
    SELECT a.attrelid AS oid, 'a' || lpad(a.attnum::text, 4, '0') AS place,
           quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod)
           || CASE WHEN co.collname <> 'default' THEN ' COLLATE ' || quote_ident(co.collname) ELSE '' END
           || CASE WHEN a.attidentity = 'a' THEN ' GENERATED ALWAYS AS IDENTITY' ELSE '' END
           || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
           || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS text,
           coalesce(' -- ' || col_description(a.attrelid, a.attnum), '') AS comment
    FROM pg_attribute AS a
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
    WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT conrelid, 'c' || CASE contype WHEN 'p' THEN '1' WHEN 'u' THEN '2' ELSE '3' END || pg_get_constraintdef(oid), pg_get_constraintdef(oid), ''
    FROM pg_constraint
    WHERE contype IN ('p', 'u', 'c', 'f', 'x')
), bodies AS (
    SELECT oid, string_agg('    ' || text || CASE WHEN last THEN '' ELSE ',' END || comment, E'\n' ORDER BY place) AS text
    FROM (SELECT *, lead(oid) OVER (PARTITION BY oid ORDER BY place) IS NULL AS last FROM items) AS i
    GROUP BY 1
), indexes AS (
    SELECT indrelid AS oid, string_agg(pg_get_indexdef(indexrelid) || ';', E'\n' ORDER BY indexrelid::regclass::text) AS text
    FROM pg_index AS i
    WHERE NOT EXISTS (SELECT FROM pg_constraint AS c WHERE c.conindid = i.indexrelid)
    GROUP BY 1
)
SELECT '-- ' || coalesce(obj_description(t.oid, 'pg_class'), '') || E'\nCREATE TABLE ' || t.relname
       || coalesce(' PARTITION OF ' || t.parent || ' ' || t.bound, E' (\n' || b.text || E'\n)')
       || coalesce(' PARTITION BY ' || t.key, '') || coalesce(' WITH (' || array_to_string(t.reloptions, ', ') || ')', '') || ';'
       || CASE WHEN t.parent IS NULL THEN coalesce(E'\n' || i.text, '') ELSE '' END
FROM tables AS t
LEFT JOIN bodies AS b USING (oid)
LEFT JOIN indexes AS i USING (oid)
ORDER BY CASE WHEN t.parent IS NULL THEN t.relname ELSE coalesce((SELECT i.inhparent::regclass FROM pg_inherits AS i WHERE i.inhrelid = t.parent), t.parent)::text END,
         t.parent IS NOT NULL, t.parent::text DESC, t.relname`
	const functions = `
SELECT '-- ' || coalesce(obj_description(oid, 'pg_proc'), '') || E'\n' || trim(E'\n' FROM pg_get_functiondef(oid)) || ';'
FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname NOT LIKE 'river\_%'
ORDER BY proname`
	parts := []string{"-- What the migrations make, as the catalog has it; River's own tables are left out. Written by `go generate ./schema`."}
	for _, query := range []string{sql, functions} {
		rows, err := db.Query(t.Context(), query)
		require.NoError(t, err)
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotEmpty(t, found)
		parts = append(parts, found...)
	}
	return strings.Join(parts, "\n\n") + "\n"
}
