package schema_test

import (
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_migration (part, version, name, sha256) VALUES ('core', 9999, '9999_future', '')`)
	require.NoError(t, err)
	var tooNew *schema.TooNewError
	require.ErrorAs(t, schematest.Migrate(t.Context(), pool), &tooNew)
	require.Equal(t, 9999, tooNew.Database)
	require.ErrorContains(t, schematest.Check(t.Context(), pool), "run the newer binary")
	require.NoError(t, running(t, pool), "what runs goes on")

	_, err = pool.Exec(t.Context(), `DELETE FROM weir_migration WHERE version >= 2`)
	require.NoError(t, err)
	require.ErrorContains(t, schematest.Check(t.Context(), pool), "run `weir migrate`")
	require.ErrorContains(t, running(t, pool), "run `weir migrate`")

	_, err = pool.Exec(t.Context(), `INSERT INTO river_migration (line, version) VALUES ('main', 99)`)
	require.NoError(t, err)
	require.ErrorAs(t, schematest.Migrate(t.Context(), pool), &tooNew)
	require.Equal(t, "river", tooNew.What)
}

// running returns what a process learns that started before.
func running(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	parts, err := schematest.Parts()
	require.NoError(t, err)
	return schema.CheckRunning(t.Context(), pool, parts...)
}

// TestDatabaseOfAMissingFeatureIsRefused shows that the error names the feature, and that a part whose needs
// are not met is refused before anything is made.
func TestDatabaseOfAMissingFeatureIsRefused(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	part := func(sql string) fstest.MapFS { return fstest.MapFS{"migrations/0001_first.sql": {Data: []byte(sql)}} }
	parts, err := schematest.Parts()
	require.NoError(t, err)
	parts = append(parts, part("-- part trees\nCREATE TABLE trees (id bigint PRIMARY KEY)"))
	all := append(slices.Clip(parts), part("-- part birds, after trees\nCREATE TABLE birds (tree bigint REFERENCES trees)"))
	require.NoError(t, schema.Migrate(t.Context(), pool, all...))
	require.NoError(t, schema.Check(t.Context(), pool, all...))

	var missing *schema.MissingPartError
	require.ErrorAs(t, schema.Migrate(t.Context(), pool, parts...), &missing)
	require.ErrorAs(t, schema.Check(t.Context(), pool, parts...), &missing)
	require.Equal(t, "birds", missing.Part)
	require.NoError(t, schema.CheckRunning(t.Context(), pool, parts...), "what runs goes on")

	require.ErrorContains(t, schema.Migrate(t.Context(), pool, part("-- part birds, after hills\n")), "birds uses the tables of hills")
	require.ErrorContains(t, schema.Migrate(t.Context(), pool, part("CREATE TABLE birds ()")), "name of its part")
}

// TestMigrationsGoForward migrates the rows of a feature, in a transaction of its own. A migration that fails leaves
// everything as it was, and a migration that was applied may not change.
func TestMigrationsGoForward(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	parts, err := schematest.Parts()
	require.NoError(t, err)
	files := fstest.MapFS{}
	with := func(name, sql string) []fs.FS {
		files["migrations/"+name+".sql"] = &fstest.MapFile{Data: []byte(sql)}
		return append(slices.Clip(parts), files)
	}
	pending := func(all []fs.FS) (names []string) {
		steps, err := schema.Plan(t.Context(), pool, all...)
		require.NoError(t, err)
		for _, s := range steps {
			if !s.Applied {
				names = append(names, s.Name)
			}
		}
		return names
	}
	const first = "-- part trees\nCREATE TABLE trees (name text); INSERT INTO trees VALUES ('oak, 12'), ('elm, 7')"
	require.NoError(t, schema.Migrate(t.Context(), pool, with("0001_trees", first)...))

	second := with("0002_height", `ALTER TABLE trees ADD COLUMN height int;
		UPDATE trees SET name = split_part(name, ', ', 1), height = split_part(name, ', ', 2)::int`)
	require.Equal(t, []string{"trees/0002_height"}, pending(second))
	require.ErrorContains(t, schema.Check(t.Context(), pool, second...), "the first of them trees/0002_height: run `weir migrate`")
	require.NoError(t, schema.Migrate(t.Context(), pool, second...))
	require.Empty(t, pending(second))
	require.Equal(t, []string{"elm 7", "oak 12"}, column(t, pool, `SELECT name || ' ' || height FROM trees ORDER BY 1`))

	before := column(t, pool, everything)
	failing := with("0003_age", `ALTER TABLE trees ADD COLUMN age int;
		DELETE FROM trees WHERE name = 'oak'; UPDATE trees SET age = height / 0`)
	err = schema.Migrate(t.Context(), pool, failing...)
	require.ErrorContains(t, err, "apply migration trees/0003_age")
	require.ErrorContains(t, err, "Nothing of it was kept")
	require.Equal(t, before, column(t, pool, everything))
	require.Equal(t, []string{"trees/0003_age"}, pending(failing))

	var changed *schema.UnreleasedError
	require.ErrorAs(t, schema.Migrate(t.Context(), pool, with("0001_trees", first+" -- corrected")...), &changed)
	require.Equal(t, "trees/0001_trees", changed.Migration)
	require.Equal(t, before, column(t, pool, everything))
}

// TestMigrationsStayTogether shows that nothing is migrated if new tables would be in another schema than the others.
func TestMigrationsStayTogether(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `CREATE SCHEMA weir`) // the role's name
	require.NoError(t, err)
	parts, err := schematest.Parts()
	require.NoError(t, err)
	require.NoError(t, schema.Migrate(t.Context(), pool, parts...), "nothing is missing")
	before := column(t, pool, everything)
	trees := fstest.MapFS{"migrations/0001_trees.sql": {Data: []byte("-- part trees\nCREATE TABLE trees (name text PRIMARY KEY)")}}
	more := append(slices.Clip(parts), trees)
	_, err = schema.Plan(t.Context(), pool, more...)
	require.ErrorContains(t, err, "add search_path=public")
	require.ErrorContains(t, schema.Migrate(t.Context(), pool, more...), "tables are in the schema public, but new ones would be in weir")
	require.Equal(t, before, column(t, pool, everything))
}

// TestSchemaMayNeedQuotes shows that the name of Weir's schema may be one that SQL takes in quotes only, such as that of a
// role that is an address.
func TestSchemaMayNeedQuotes(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	const name = `Weir@example.iam`
	connect := func() *pgxpool.Pool {
		pool, err := pgxpool.New(t.Context(), url)
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	_, err := connect().Exec(t.Context(), `
DROP SCHEMA public CASCADE;
CREATE SCHEMA "`+name+`";
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = "`+name+`"', current_database()); END $$`)
	require.NoError(t, err)
	pool := connect()
	require.NoError(t, schematest.Migrate(t.Context(), pool))
	require.NoError(t, schematest.Check(t.Context(), pool))
	rights, err := schema.ReadRights(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, name, rights.Schema)
	require.Empty(t, rights.Missing)
	require.True(t, rights.Partitions)
	sizes, err := schema.TableSizes(t.Context(), pool)
	require.NoError(t, err)
	require.Greater(t, len(sizes), 30)
	invalid, err := schema.InvalidIndexes(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, invalid)
}

// unreleased creates a database like that of a commit before the first release,
// with the table of migrations and the watches of that time.
func unreleased(t *testing.T, migrations ...string) *pgxpool.Pool {
	t.Helper()
	pool := schematest.New(t)
	const then = `
DROP SCHEMA public CASCADE;
CREATE SCHEMA public;
CREATE TABLE weir_migration (version int PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE watches (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target    text        NOT NULL CHECK (target <> ''),
    kind      text        NOT NULL DEFAULT 'follows' CHECK (kind IN ('follows', 'account', 'list', 'starterpack', 'second-degree')),
    at_least  int         NOT NULL DEFAULT 5 CHECK (at_least > 0),
    added_at  timestamptz NOT NULL DEFAULT now(),
    synced_at timestamptz,
    problem   text        NOT NULL DEFAULT '',
    UNIQUE (target, kind)
);
INSERT INTO watches (target, kind, at_least, synced_at) 
VALUES ('alice.example', 'follows', 5, now()), ('bob.example', 'second-degree', 3, NULL)`
	_, err := pool.Exec(t.Context(), then)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO weir_migration (version, name) SELECT left(m, 4)::int, m FROM unnest($1::text[]) AS m`,
		migrations)
	require.NoError(t, err)
	return pool
}

// thirtySeven are the migrations of 0896e65, the last commit before each domain had
// one file.
const thirtySeven = `
0001_queue 0002_streams 0003_records 0004_accounts 0005_links 0006_ops 0007_projections 0008_counts 0009_reposts
0010_votes 0011_output 0012_words 0013_merges 0014_cards 0015_feeds 0016_history 0017_lexicons 0018_reading
0019_archive 0020_nostr 0021_networks 0022_network_counts 0023_npub 0024_namespaces 0025_forgotten 0026_relay_audits
0027_forget_health 0028_views_of_late_schemas 0029_trending_network 0030_segment_days 0031_index_generation
0032_nostr_relays 0033_dated_events 0036_original_counts 0037_partition_locks 0038_judged_accounts 0039_merged_links`

// TestUnreleasedDatabaseIsRefused shows that the error names the section to
// read, and that nothing in the database is changed.
func TestUnreleasedDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	const next = "0006_next"
	for name, migrations := range map[string][]string{
		"17 of 4222550":      {"0001_stream", "0002_links", "0017_queues"},
		"the last before":    {"0001_stream", "0002_links", "0023_growth", next},
		"a later one":        {"0001_queue", "0002_streams", "0003_other"},
		"37 of 0896e65":      strings.Fields(thirtySeven),
		"its first":          {"0001_queue"}, // the next four have the names of current files
		"its first and last": {"0001_queue", "0039_merged_links"},
		"another number":     {"0000_before"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := unreleased(t, migrations...)
			before := column(t, pool, everything)
			var refused *schema.UnreleasedError
			require.ErrorAs(t, schematest.Migrate(t.Context(), pool), &refused)
			require.ErrorAs(t, schematest.Check(t.Context(), pool), &refused)
			require.Contains(t, migrations, refused.Migration)
			_, section, found := strings.Cut(refused.Error(), `see "`)
			require.True(t, found)
			section, file, found := strings.Cut(section, `" in `)
			require.True(t, found)
			text, err := os.ReadFile("../" + file)
			require.NoError(t, err)
			require.True(t, strings.Contains(string(text), "\n## "+section+"\n"), "%s has no section %q", file, section)
			require.Equal(t, before, column(t, pool, everything))
		})
	}
}

// everything selects what a database has, and when its rows were written.
const everything = `
SELECT c.relname || ' ' || coalesce(query_to_xml(format('SELECT xmin, * FROM %I', c.relname), true, false, '')::text, '')
FROM pg_class AS c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
ORDER BY 1`

// TestPostsFindTheirPartition shows that the bounds of a partition's hours are
// TIDs, and that a post that arrived before its partition moves into it.
func TestPostsFindTheirPartition(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{
		post("3mptbyqhi7s2f", "1"), // a TID of 2026-07-04
		post("self", "1"),          // no TID
		post("3jzfcijpj2z2a", "1"), // a TID of 2023
	}})
	require.NoError(t, err)
	in := func(rkey string) (partition string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT tableoid::regclass::text FROM posts WHERE rkey = $1`, rkey).Scan(&partition))
		return partition
	}
	require.Equal(t, "posts_default", in("3mptbyqhi7s2f"))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	require.Equal(t, "posts_20260704_12", in("3mptbyqhi7s2f"))
	require.Equal(t, "posts_default", in("self"))
	require.Equal(t, "posts_default", in("3jzfcijpj2z2a"))
}
