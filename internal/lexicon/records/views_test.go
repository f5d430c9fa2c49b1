package records

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// lexiconOf returns the schema of a collection with these properties, as JSON.
func lexiconOf(collection, properties string) []byte {
	return fmt.Appendf(nil, `{"lexicon":1,"id":%q,"defs":{"main":{"type":"record","key":"any","record":{"type":"object",`+
		`"properties":{%s}}}}}`, collection, properties)
}

func catalogOf(t *testing.T, documents ...[]byte) *lexicon.Catalog {
	t.Helper()
	catalog, err := lexicon.New(documents...)
	require.NoError(t, err)
	return catalog
}

func execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err, sql)
}

func one[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	v, err := schema.One(t.Context(), pool, sql, pgx.RowTo[T], sql, args...)
	require.NoError(t, err)
	return v
}

// store stores a record, in the version "cid-1".
func store(t testing.TB, pool *pgxpool.Pool, collection, did, rkey, record string) {
	t.Helper()
	execute(t, pool, `
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
VALUES ($1, $2, $3, '3jzfcijpj2z2a', 'cid-1', now(), $4)`, collection, did, rkey, record)
}

// refer stores a reference at a path of a record.
func refer(t testing.TB, pool *pgxpool.Pool, from schema.Key, path string, to schema.Key) {
	t.Helper()
	execute(t, pool, `
INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared)
VALUES ($1, $2, $3, $4, 'at-uri', $5, $6, $7, $8, true)`,
		from.Collection, from.DID, from.Rkey, path, to.URI(), to.Collection, to.DID, to.Rkey)
}

// TestRecordsHaveViews shows that each type of record has a view in the database schema of its
// namespace.
func TestRecordsHaveViews(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	catalog, err := lexicon.Load(os.DirFS("../testdata/lexicons"))
	require.NoError(t, err)
	made, err := MakeViews(t.Context(), pool, catalog)
	require.NoError(t, err)
	require.Equal(t, len(catalog.Collections()), made)

	store(t, pool, "example.weir.expression.expression", "did:plc:a", "3jzfcijpj2z2a",
		`{"text": "A heron returns", "kind": "sentence", "createdAt": "2026-05-04T12:00:00.5+02:00", "languages": ["en"]}`)
	store(t, pool, "example.weir.expression.expression", "did:plc:b", "3jzfcijpj2z2b",
		`{"text": ["no", "text"], "createdAt": "2026-02-30T12:00:00Z"}`)
	execute(t, pool, `
INSERT INTO verdicts (collection, did, rkey, cid, schema_hash, verdict, state)
VALUES ('example.weir.expression.expression', 'did:plc:a', '3jzfcijpj2z2a', 'cid-1', '', 'valid', 'projected'),
		('example.weir.expression.expression', 'did:plc:b', '3jzfcijpj2z2b', 'an older one', '', 'valid', 'projected')`)
	type row struct {
		URI, Text, Kind, Verdict, At string
	}
	rows, err := schema.All(t.Context(), pool, "read the view", pgx.RowToStructByPos[row], `
SELECT uri, text, coalesce(kind, ''), coalesce(verdict, ''), coalesce(created_at AT TIME ZONE 'UTC', 'infinity')::text
FROM example_weir.expression
ORDER BY did`)
	require.NoError(t, err)
	require.Equal(t, []row{
		{"at://did:plc:a/example.weir.expression.expression/3jzfcijpj2z2a", "A heron returns", "sentence", "valid", "2026-05-04 10:00:00.5"},
		{"at://did:plc:b/example.weir.expression.expression/3jzfcijpj2z2b", `["no", "text"]`, "", "", "infinity"},
	}, rows)
	require.Equal(t, "graph_edge", one[string](t, pool, `
SELECT view_name
FROM record_views
WHERE collection = 'example.weir.graph.graphEdge'`))

	made, err = MakeViews(t.Context(), pool, catalog)
	require.NoError(t, err)
	require.Zero(t, made, "nothing changed")
}

// TestViewsFollowTheirSchemas shows that columns are added, change their type and are dropped, and
// so are views. A column that something depends on is not dropped.
func TestViewsFollowTheirSchemas(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const name = "com.example.town.tree"
	columns := func() string {
		return one[string](t, pool, `
SELECT coalesce(string_agg(attname || ' ' || atttypid::regtype, ', ' ORDER BY attnum), '')
FROM pg_attribute
WHERE attrelid = to_regclass('example.tree') AND attnum > 8`)
	}
	for properties, want := range map[string]string{
		`"height":{"type":"integer"}`:                                                 "height bigint",
		`"height":{"type":"string"},"felled":{"type":"boolean"}`:                      "felled boolean, height text",
		`"planted":{"type":"string","format":"datetime"},"rings":{"type":"cid-link"}`: "planted timestamp with time zone, rings text",
		``: "",
	} {
		_, err := MakeViews(t.Context(), pool, catalogOf(t, lexiconOf(name, properties), lexiconOf("com.example.town.bird", "")))
		require.NoError(t, err)
		require.Equal(t, want, columns())
	}
	_, err := MakeViews(t.Context(), pool, catalogOf(t, lexiconOf(name, `"height":{"type":"integer"}`)))
	require.NoError(t, err)
	require.True(t, one[bool](t, pool, `SELECT to_regclass('example.bird') IS NULL`), "the view of a removed schema must be dropped")
	execute(t, pool, `CREATE VIEW tall AS SELECT uri FROM example.tree WHERE height > 30`)
	made, err := MakeViews(t.Context(), pool, catalogOf(t, lexiconOf(name, ``), lexiconOf("com.example.town.bird", "")))
	require.ErrorContains(t, err, "other objects depend on it")
	require.Equal(t, 1, made, "only the other view must be made")
	require.Equal(t, "height bigint", columns())
	execute(t, pool, `DROP VIEW tall`)
	_, err = MakeViews(t.Context(), pool, catalogOf(t))
	require.NoError(t, err)
	require.True(t, one[bool](t, pool, `SELECT to_regnamespace('example') IS NULL`), "the database schema must be dropped with its last view")
}

// TestHostileSchemasMakeViews shows that, whatever names strangers write into schemas, each
// collection gets its own view with distinct columns, and nothing else in the database changes.
func TestHostileSchemasMakeViews(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `CREATE SCHEMA mine; CREATE TABLE mine.thing (x int)`)
	long := strings.Repeat("a", 63)
	var wide strings.Builder
	for i := range 600 {
		fmt.Fprintf(&wide, `"p%d":{"type":"string"},`, i)
	}
	wide.WriteString(`"last":{"type":"string"}`)
	hostile := `"x\"; DROP TABLE records; --":{"type":"string"},"'quoted'":{"type":"integer"},` +
		`"` + strings.Repeat("é", 100) + `":{"type":"boolean"},"` + strings.Repeat("é", 100) + `2":{"type":"boolean"},
		"did":{"type":"string"},"record":{"type":"string"},"fieldDid":{"type":"string"},"field_did":{"type":"string"},
		"a-b":{"type":"integer"},"a_b":{"type":"integer"},"aB":{"type":"string","format":"datetime"},
		"%s %I %1$L":{"type":"unknown"},"$1":{"type":"string"},"":{"type":"string"},
		"` + strings.Repeat("n", 2000) + `":{"type":"string"}`
	hostile = strings.Replace(hostile, `"":{"type":"string"},`, "", 1) // the catalog refuses a property without a name
	documents := [][]byte{
		lexiconOf("com.public.records", `"x":{"type":"string"}`), lexiconOf("com.mine.thing", ""), lexiconOf("com.pg-catalog.pgClass", ""),
		lexiconOf("com.information-schema.tables", ""), lexiconOf("com.example.hostile", hostile), lexiconOf("com.example.wide", wide.String()),
		lexiconOf("com.example.a.item", ""), lexiconOf("com.example.b.item", ""), lexiconOf("com.example.aItem", ""),
		lexiconOf("org.example.item", ""),
		lexiconOf("com."+long+"."+long, ""), lexiconOf("org."+long+"."+long, ""), lexiconOf("com.x--y.select", ""),
		lexiconOf("com.0num.table", ""),
	}
	catalog := catalogOf(t, documents...)
	made, err := MakeViews(t.Context(), pool, catalog)
	require.NoError(t, err)
	require.Equal(t, len(documents), made)
	require.Equal(t, len(documents), one[int](t, pool, `
SELECT count(*)
FROM pg_class
WHERE relkind = 'v' AND relnamespace NOT IN ('public'::regnamespace, 'pg_catalog'::regnamespace, 'information_schema'::regnamespace)`))
	for _, v := range []struct{ collection, want string }{
		{"com.public.records", "com_public.records"}, {"com.mine.thing", "com_mine.thing"}, {
			"com.information-schema.tables", "com_information_schema.tables",
		},
		{"com.example.aItem", "com_example.a_item"}, {"com.example.b.item", "com_example.b_item"}, {"org.example.item", "org_example.item"},
	} {
		require.Equal(t, v.want, one[string](t, pool, `
SELECT schema_name || '.' || view_name
FROM record_views
WHERE collection = $1`, v.collection))
	}
	require.Equal(t, maxColumns, one[int](t, pool, `
SELECT jsonb_array_length(columns)
FROM record_views
WHERE collection = 'com.example.wide'`))

	require.Equal(t, "field_did", one[string](t, pool, `
SELECT c ->> 'column'
FROM record_views, jsonb_array_elements(columns) AS c
WHERE c ->> 'field' = 'did'`), "did is a common column")

	store(t, pool, "com.example.hostile", "did:plc:a", "1",
		`{"x\"; DROP TABLE records; --": "found", "'quoted'": 1e300, "a-b": 9223372036854775807, "a_b": 0.5,
			"aB": "99999-01-01T00:00:00Z", "did": {"deep": [1]}}`)
	var found int
	rows, err := pool.Query(t.Context(), `SELECT * FROM com_example.hostile`)
	require.NoError(t, err)
	require.NoError(t, func() error {
		defer rows.Close()
		for rows.Next() {
			values, err := rows.Values()
			require.NoError(t, err)
			require.Contains(t, values, "found")
			require.Contains(t, values, int64(9223372036854775807))
			found++
		}
		return rows.Err()
	}())
	require.Equal(t, 1, found)

	for _, name := range []string{"public", "mine", "pg_catalog", `x"; DROP TABLE records; --`} {
		_, err := pool.Exec(t.Context(), `SELECT make_record_view('com.example.other', $1, 'records', '[]')`, name)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, name)
		require.Contains(t, []string{"22023", "42939"}, refused.Code)
	}
}

// TestViewsDoNotComeBeforeTables shows that no view is in a schema in which Postgres would look for Weir's tables,
// and that those move that are.
func TestViewsDoNotComeBeforeTables(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `SELECT make_record_view('com.weir.records', 'weir', 'records', '[]')`)
	const found = `SELECT relnamespace::regnamespace || ' ' || current_schema() FROM pg_class WHERE oid = 'records'::regclass`
	require.Equal(t, "weir weir", one[string](t, pool, found), "the role's name is weir")
	catalog := catalogOf(t, lexiconOf("com.weir.records", ""), lexiconOf("com.later.records", ""))
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL search_path = "$user", "later", public`); err != nil {
			return err
		}
		_, err := MakeViews(t.Context(), tx, catalog)
		return err
	}))
	require.Equal(t, "public public", one[string](t, pool, found))
	require.Equal(t, "com_later.records, com_weir.records", one[string](t, pool, `
SELECT string_agg(schema_name || '.' || view_name, ', ' ORDER BY schema_name)
FROM record_views`))
}

// TestViewsBelongToTheOwner shows that a role that owns nothing can have views made, and can read
// them if it may read the records.
func TestViewsBelongToTheOwner(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	app := strings.ToLower("app_" + rand.Text())
	execute(t, pool, `CREATE ROLE `+app)
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+app+`; DROP ROLE `+app)
		require.NoError(t, err)
	})
	execute(t, pool, `GRANT SELECT ON records, record_views TO `+app+`; GRANT EXECUTE ON FUNCTION make_record_view, drop_record_view TO `+app)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+app); err != nil {
			return err
		}
		made, err := MakeViews(t.Context(), tx, catalogOf(t, lexiconOf("com.example.town.tree", `"height":{"type":"integer"}`)))
		require.Equal(t, 1, made)
		if err == nil {
			_, err = tx.Exec(t.Context(), `SELECT height FROM example.tree`)
		}
		return err
	}))
	require.False(t, one[bool](t, pool, `SELECT pg_has_role($1, relowner, 'MEMBER') FROM pg_class WHERE oid = 'example.tree'::regclass`, app))
	require.False(t, one[bool](t, pool, `
SELECT has_schema_privilege('public', 'example', 'USAGE')
    OR has_function_privilege('public', 'make_record_view(text, text, text, jsonb)', 'EXECUTE')`))
}

// TestTimesOfRecords shows that a datetime of the network becomes a time, and that other text
// becomes null without failing the query.
func TestTimesOfRecords(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for text, want := range map[string]bool{
		"2026-05-04T12:00:00Z": true, "2026-05-04T12:00:00.123456789+05:30": true, "2024-02-29T23:59:59-14:59": true,
		"0001-01-01T00:00:00Z": true, "9999-12-31T23:59:59.999Z": true,
		"2026-02-29T12:00:00Z": false, "2026-13-01T12:00:00Z": false, "2026-05-04T24:00:00Z": false, "2026-05-04T12:00:60Z": false,
		"0000-01-01T00:00:00Z": false, "2026-05-04": false,
		"2026-05-04T12:00:00": false, "now": false, "infinity": false, "": false, "2026-05-04T12:00:00Z\n": false, "2026-05-04T12:00:00.Z": false,
		"２026-05-04T12:00:00Z": false,
	} {
		require.Equal(t, want, one[bool](t, pool, `SELECT record_time($1) IS NOT NULL`, text), text)
	}
}
