package schema_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

var update = flag.Bool("update", false, "write schema.sql")

// TestDumpIsTrue checks that schema.sql, which people read, matches the migrations.
// `go generate ./schema` rewrites it.
func TestDumpIsTrue(t *testing.T) {
	t.Parallel()
	dump := dump(t, schematest.New(t))
	if *update {
		require.NoError(t, os.WriteFile("schema.sql", []byte(dump), 0o644))
	}
	committed, err := os.ReadFile("schema.sql")
	require.NoError(t, err)
	require.Equal(t, string(committed), dump, "run `go generate ./schema`")
}

// TestDumpLeavesNothingOut shows that everything that the catalog has in the schema, or attached to
// one of its tables, is named in schema.sql. It finds kinds of objects that dump does not handle,
// such as a domain or a policy.
func TestDumpLeavesNothingOut(t *testing.T) {
	t.Parallel()
	const objects = `
WITH objects AS (
    SELECT classid, objid FROM pg_depend
    WHERE refclassid = 'pg_namespace'::regclass AND refobjid = 'public'::regnamespace
    UNION SELECT classid, objid FROM pg_depend
    WHERE refclassid = 'pg_class'::regclass AND refobjid IN (SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace)
    UNION SELECT 'pg_event_trigger'::regclass, oid FROM pg_event_trigger
    UNION SELECT 'pg_publication'::regclass, oid FROM pg_publication
    UNION SELECT 'pg_extension'::regclass, oid FROM pg_extension WHERE extname <> 'plpgsql'
)
SELECT i.type || ': ' || regexp_replace(coalesce(i.name, i.identity), '^public\.|( on |\().*', '', 'g')
FROM objects AS o
CROSS JOIN LATERAL pg_identify_object(o.classid, o.objid, 0) AS i
WHERE i.type NOT IN ('default value', 'toast table') -- they have no names
  AND NOT (i.type = 'rule' AND i.identity LIKE '"_RETURN" on %') -- a view
  AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = o.classid AND d.objid = o.objid AND d.deptype = 'e') -- of an extension
  -- of rows and arrays
  AND NOT EXISTS (SELECT FROM pg_type AS p WHERE o.classid = 'pg_type'::regclass AND p.oid = o.objid AND (p.typrelid <> 0
      OR p.typelem <> 0))
  AND NOT EXISTS (SELECT FROM pg_sequence AS s JOIN pg_depend AS d ON d.objid = s.seqrelid AND d.deptype IN ('a', 'i') AND d.refobjsubid > 0
                  WHERE o.classid = 'pg_class'::regclass AND s.seqrelid = o.objid) -- of columns
  AND NOT EXISTS (SELECT FROM pg_constraint AS c
                  WHERE o.classid = 'pg_constraint'::regclass AND c.oid = o.objid AND (c.contype = 'n' OR c.conparentid <> 0))
  AND NOT EXISTS (SELECT FROM pg_inherits AS p WHERE o.classid = 'pg_class'::regclass AND p.inhrelid = o.objid AND i.type = 'index')
ORDER BY 1`
	pool := schematest.New(t)
	dump := dump(t, pool)
	found := column(t, pool, objects)
	require.Greater(t, len(found), 150)
	named := map[string]bool{}
	for _, word := range strings.FieldsFunc(dump, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		named[word] = true
	}
	var missing []string
	for _, object := range found {
		if _, name, _ := strings.Cut(object, ": "); !named[name] {
			missing = append(missing, object)
		}
	}
	require.Empty(t, missing)
}

// TestEverythingHasAComment shows that each of Weir's tables, views and functions has a comment.
func TestEverythingHasAComment(t *testing.T) {
	t.Parallel()
	const unexplained = `
SELECT oid::regclass::text FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v', 'm') AND relname NOT LIKE 'river\_%'
    AND obj_description(oid, 'pg_class') IS NULL
UNION ALL
SELECT oid::regprocedure::text FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND proname NOT LIKE 'river\_%' AND obj_description(oid, 'pg_proc') IS NULL
    AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = pg_proc.oid AND d.deptype = 'e')`
	require.Empty(t, column(t, schematest.New(t), unexplained))
}

// dumpTables selects the tables and views: partitions after their table, River's last.
const dumpTables = `
SELECT c.oid::bigint AS oid,
       c.relname LIKE 'river\_%' AS river,
       coalesce(obj_description(c.oid, 'pg_class'), '') AS comment,
       CASE c.relkind WHEN 'v' THEN 'CREATE VIEW ' || c.relname || E' AS\n' || pg_get_viewdef(c.oid, true)
            ELSE 'CREATE ' || CASE c.relpersistence WHEN 'u' THEN 'UNLOGGED ' ELSE '' END || 'TABLE ' || c.relname END AS head,
       coalesce('PARTITION OF ' || i.inhparent::regclass || ' ' || pg_get_expr(c.relpartbound, c.oid), '') AS partition,
       coalesce(' PARTITION BY ' || pg_get_partkeydef(c.oid), '') || coalesce(' WITH (' || array_to_string(c.reloptions, ', ') || ')',
           '') || ';' AS tail,
       c.relkind = 'v' AS view
FROM pg_class AS c
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
ORDER BY river, coalesce(pg_partition_root(c.oid), c.oid::regclass)::text COLLATE "C",
         (SELECT count(*) FROM pg_partition_ancestors(c.oid)), c.relname COLLATE "C"`

// dumpColumns selects the text between a table's brackets: columns in order, then constraints. A
// partition's columns and constraints that come from its table are not repeated.
const dumpColumns = `
SELECT oid, text, comment, place FROM (
SELECT a.attrelid::bigint AS oid,
       quote_ident(a.attname) || ' ' || format_type(a.atttypid, a.atttypmod)
       || CASE WHEN co.collname <> 'default' THEN ' COLLATE ' || quote_ident(co.collname) ELSE '' END
       || CASE WHEN a.attcompression <> '' THEN ' COMPRESSION ' || a.attcompression::text ELSE '' END
       || CASE WHEN a.attstorage <> ty.typstorage THEN ' STORAGE ' || a.attstorage::text ELSE '' END
       || coalesce(' STATISTICS ' || nullif(a.attstattarget, -1), '')
       || CASE a.attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' WHEN 'd' THEN ' GENERATED BY DEFAULT AS IDENTITY' ELSE '' END
       || CASE WHEN a.attgenerated <> '' THEN ' GENERATED ALWAYS AS (' || pg_get_expr(d.adbin, d.adrelid, true) || ')'
               ELSE coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid, true), '') END
       || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END AS text,
       coalesce(col_description(a.attrelid, a.attnum), '') AS comment,
       a.attnum::int AS place
FROM pg_attribute AS a
JOIN pg_class AS c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace
JOIN pg_type AS ty ON ty.oid = a.atttypid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT conrelid::bigint, 'CONSTRAINT ' || quote_ident(conname) || ' ' || pg_get_constraintdef(oid, true),
    coalesce(obj_description(oid, 'pg_constraint'), ''),
       10000 + strpos('pufcx', contype::text)
FROM pg_constraint
WHERE contype IN ('p', 'u', 'c', 'f', 'x') AND connamespace = 'public'::regnamespace AND conrelid <> 0 AND conislocal AND conparentid = 0
) AS line
ORDER BY oid, place, text COLLATE "C"`

// dumpAttached selects the indexes, rules and triggers of tables, and settings that CREATE TABLE
// does not name.
const dumpAttached = `
SELECT oid, text, comment, place FROM (
SELECT i.indrelid::bigint AS oid, pg_get_indexdef(i.indexrelid, 0, true) || ';' AS text,
    coalesce(obj_description(i.indexrelid, 'pg_class'), '') AS comment, 1 AS place
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indrelid AND c.relnamespace = 'public'::regnamespace
WHERE NOT EXISTS (SELECT FROM pg_constraint AS k WHERE k.conindid = i.indexrelid AND k.conrelid = i.indrelid)
  AND NOT EXISTS (SELECT FROM pg_inherits AS p WHERE p.inhrelid = i.indexrelid)
UNION ALL
SELECT r.ev_class::bigint, pg_get_ruledef(r.oid, true), coalesce(obj_description(r.oid, 'pg_rewrite'), ''), 2
FROM pg_rewrite AS r
JOIN pg_class AS c ON c.oid = r.ev_class AND c.relnamespace = 'public'::regnamespace
WHERE r.rulename <> '_RETURN'
UNION ALL
SELECT g.tgrelid::bigint,
       pg_get_triggerdef(g.oid, true) || ';' || CASE g.tgenabled WHEN 'O' THEN '' ELSE ' -- enabled: ' || g.tgenabled::text END,
       coalesce(obj_description(g.oid, 'pg_trigger'), ''), 3
FROM pg_trigger AS g
JOIN pg_class AS c ON c.oid = g.tgrelid AND c.relnamespace = 'public'::regnamespace
WHERE NOT g.tgisinternal AND g.tgparentid = 0
UNION ALL
SELECT c.oid::bigint, t.text, '', 0
FROM pg_class AS c
CROSS JOIN LATERAL (
    SELECT 'COMMENT ON COLUMN ' || c.relname || '.' || a.attname || ' IS ' || quote_literal(col_description(c.oid, a.attnum)) || ';' AS text
    FROM pg_attribute AS a WHERE c.relkind = 'v' AND a.attrelid = c.oid AND a.attnum > 0
    UNION ALL SELECT 'ALTER TABLE ' || c.relname || ' ENABLE ROW LEVEL SECURITY;' WHERE c.relrowsecurity
    UNION ALL SELECT 'ALTER TABLE ' || c.relname || ' REPLICA IDENTITY ' || c.relreplident::text || ';'
    WHERE c.relkind IN ('r', 'p') AND c.relreplident <> 'd'
    UNION ALL SELECT 'GRANT ' || g.privilege_type || ' ON ' || c.relname || ' TO PUBLIC;' FROM aclexplode(c.relacl) AS g WHERE g.grantee = 0
) AS t
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND t.text IS NOT NULL
) AS line
ORDER BY oid, place, text COLLATE "C"`

// dumpTypes selects the enumerations.
const dumpTypes = `
SELECT y.typname LIKE 'river\_%' AS river, coalesce(obj_description(y.oid, 'pg_type'), '') AS comment,
       'CREATE TYPE ' || y.typname || ' AS ENUM (' || (SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder)
           FROM pg_enum AS e WHERE e.enumtypid = y.oid) || ');' AS text
FROM pg_type AS y
WHERE y.typnamespace = 'public'::regnamespace AND y.typtype = 'e'
ORDER BY y.typname COLLATE "C"`

// dumpFunctions selects the functions, with their settings and whether PUBLIC may execute them. It
// omits functions of extensions.
const dumpFunctions = `
SELECT f.proname LIKE 'river\_%' AS river, coalesce(obj_description(f.oid, 'pg_proc'), '') AS comment,
       trim(E'\n' FROM pg_get_functiondef(f.oid)) || ';'
       || CASE WHEN f.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(f.proacl) AS a WHERE a.grantee = 0) THEN ''
               ELSE E'\nREVOKE EXECUTE ON FUNCTION ' || f.oid::regprocedure || ' FROM PUBLIC;' END AS text
FROM pg_proc AS f
WHERE f.pronamespace = 'public'::regnamespace AND f.prokind IN ('f', 'p')
    AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e')
ORDER BY f.proname COLLATE "C", f.oid::regprocedure::text COLLATE "C"`

type dumpedTable struct {
	OID                            int64
	River, View                    bool
	Comment, Head, Partition, Tail string
}

type dumpedLine struct {
	OID           int64
	Text, Comment string
	Place         int
}

type dumpedObject struct {
	River         bool
	Comment, Text string
}

// dump writes the catalog with the server's own functions. The output of pg_dump differs between
// versions, and a server may come without it.
func dump(t *testing.T, db schema.DB) string {
	t.Helper()
	lines := func(sql string) map[int64][]dumpedLine {
		of := map[int64][]dumpedLine{}
		for _, l := range collect[dumpedLine](t, db, sql) {
			of[l.OID] = append(of[l.OID], l)
		}
		return of
	}
	columns, attached := lines(dumpColumns), lines(dumpAttached)
	types, functions := collect[dumpedObject](t, db, dumpTypes), collect[dumpedObject](t, db, dumpFunctions)
	tables := collect[dumpedTable](t, db, dumpTables)
	parts := []string{"-- Everything that the migrations make, as the catalog has it: Weir's tables and views, " +
		"with their indexes and triggers, and functions; then\n" +
		"-- River's, with what Weir adds to them. Written by `go generate ./schema`."}
	for _, river := range []bool{false, true} {
		title := map[bool]string{false: "Weir", true: "River"}[river]
		parts = append(parts, "-- "+title+": tables")
		if !river {
			parts = append(parts, column(t, db, `
				SELECT 'CREATE EXTENSION ' || extname || ';' FROM pg_extension WHERE extname <> 'plpgsql' ORDER BY extname`)...)
		}
		objects := func(of []dumpedObject) {
			for _, o := range of {
				if o.River == river {
					parts = append(parts, explained(o.Comment, o.Text))
				}
			}
		}
		objects(types)
		for _, table := range tables {
			if table.River == river {
				parts = append(parts, table.text(columns[table.OID], attached[table.OID]))
			}
		}
		parts = append(parts, "-- "+title+": functions")
		objects(functions)
	}
	return strings.Join(parts, "\n\n") + "\n"
}

func (d *dumpedTable) text(columns, attached []dumpedLine) string {
	var b strings.Builder
	switch {
	case d.View:
		b.WriteString(unqualified(d.Head))
	case d.Partition != "":
		b.WriteString(d.Head + " " + d.Partition)
		columns = constraints(columns)
	default:
		b.WriteString(d.Head)
	}
	if !d.View && len(columns) > 0 {
		b.WriteString(" (\n")
		for i, c := range columns {
			b.WriteString("    " + c.Text)
			if i < len(columns)-1 {
				b.WriteString(",")
			}
			if c.Comment != "" {
				b.WriteString(" -- " + c.Comment)
			}
			b.WriteString("\n")
		}
		b.WriteString(")")
	}
	if !d.View {
		b.WriteString(d.Tail)
	}
	for _, a := range attached {
		b.WriteString("\n" + explained(a.Comment, a.Text))
	}
	return explained(d.Comment, b.String())
}

// simpleView is a view of one table, which may have an alias.
var simpleView = regexp.MustCompile(`^CREATE VIEW \w+ AS\n SELECT [^;]*\n   FROM (?:\w+ )?(\w+)(?:\n  WHERE [^;]*)?;$`)

// unqualified removes the table from the columns of such a view, because only Postgres 15 names it
// there.
func unqualified(view string) string {
	if m := simpleView.FindStringSubmatch(view); m != nil {
		return regexp.MustCompile(`\b`+m[1]+`\.`).ReplaceAllString(view, "")
	}
	return view
}

// constraints returns the lines of a partition that its table does not have. Its columns are those
// of the table.
func constraints(lines []dumpedLine) []dumpedLine {
	var own []dumpedLine
	for _, l := range lines {
		if l.Place > 10000 {
			own = append(own, l)
		}
	}
	return own
}

func explained(comment, text string) string {
	if comment == "" {
		return text
	}
	return "-- " + comment + "\n" + text
}

func collect[T any](t *testing.T, db schema.DB, sql string) []T {
	t.Helper()
	rows, err := db.Query(t.Context(), sql)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	require.NoError(t, err)
	return found
}
