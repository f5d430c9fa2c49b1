package ranking_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/compare"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestEveryTableAndColumnIsNamed shows that each is named as compared, or as omitted with the
// reason.
func TestEveryTableAndColumnIsNamed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const tables = `
SELECT c.relname::text FROM pg_class AS c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname !~ '^river_'
ORDER BY 1`
	rows, err := pool.Query(t.Context(), tables)
	require.NoError(t, err)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	left, err := compare.LeftOut(t.Context(), pool)
	require.NoError(t, err)
	named := slices.Concat(slices.Collect(maps.Values(left))...)
	for _, table := range compare.Tables(ranking.Compared()) {
		named = append(named, table.Name)
		const columns = `SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
			ORDER BY 1`
		rows, err := pool.Query(t.Context(), columns, table.Name)
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, column := range all {
			_, out := table.Without[column]
			require.True(t, out != slices.Contains(slices.Concat(table.Key, table.Columns), column),
				"%s.%s: compare it, or say why not", table.Name, column)
		}
		for column := range table.Without {
			require.Contains(t, all, column, table.Name)
		}
	}
	slices.Sort(named)
	require.Equal(t, want, named, "compare each table, or say why not")
}

// TestEveryDifferenceIsFound makes one change after another in one of two databases.
func TestEveryDifferenceIsFound(t *testing.T) {
	t.Parallel()
	first, second := schematest.New(t), schematest.New(t)
	out := compare.Rows{Table: "tombstones", Where: `(k.did = 'did:plc:gone')`, Why: "they are gone"}
	differences := func() (found []string) {
		t.Helper()
		results, err := compare.Databases(t.Context(), first, second, compare.Tables(ranking.Compared(), out), func(d compare.Difference) {
			found = append(found, d.String())
		})
		require.NoError(t, err)
		require.Len(t, results, len(compare.Tables(ranking.Compared())))
		return found
	}
	const same = `
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
SELECT 'app.bsky.feed.like', 'did:plc:' || n, 'r', '3', 'c', '2026-01-01Z', '{"a": 1}' FROM generate_series(1, 30) AS n;
INSERT INTO watches (target, kind, added_at) VALUES ('a.example', 'follows', '2026-01-01Z');
INSERT INTO watch_members (watch_id, did, added_at) SELECT id, 'did:plc:1', '2026-01-01Z' FROM watches;
INSERT INTO accounts (did, handle) VALUES ('did:plc:1', 'a.example');
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ('app.bsky.feed.like', 'did:plc:1', 'gone', '3', '2026-01-01Z');
INSERT INTO links (identity, url, site, first_seen)
VALUES ('a', 'https://a.example/', 'a.example', now()), ('b', 'https://b.example/', 'b.example', now());
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
SELECT 'did:plc:1', 'app.bsky.feed.like', 'r', id, id, 'post', '2026-01-01Z' FROM links;
INSERT INTO link_merges (link_id, into_id, why, merged_at, split_at)
SELECT min(id), max(id), 'by hand', '2026-01-01Z', '2026-01-02Z' FROM links`
	execute(t, first, same)
	execute(t, second, `SELECT setval(pg_get_serial_sequence('links', 'id'), 1000), setval(pg_get_serial_sequence('watches', 'id'), 1000)`)
	execute(t, second, same)
	require.Empty(t, differences())
	execute(t, first, `
INSERT INTO accounts (did, handle, status) VALUES ('did:plc:away', 'then.example', 'deactivated'), ('did:plc:gone', NULL, 'active');
INSERT INTO watch_members (watch_id, did, added_at) SELECT id, 'did:plc:away', '2026-01-01Z' FROM watches;
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) VALUES ('app.bsky.feed.like', 'did:plc:gone', 'gone', '3', '2026-01-01Z')`)
	execute(t, second, `
INSERT INTO accounts (did, handle, status) VALUES ('did:plc:away', 'now.example', 'deactivated');
INSERT INTO watch_members (watch_id, did, added_at) SELECT id, 'did:plc:away', '2026-01-01Z' FROM watches`)
	require.Empty(t, differences(), "the archive does not have these")
	for _, c := range []struct{ change, back, want string }{
		{`UPDATE records SET record = '{"a": 2}' WHERE did = 'did:plc:7'`, `UPDATE records
			SET record = '{"a": 1}'`, `records app.bsky.feed.like did:plc:7 r: differs in record`},
		{`UPDATE records SET rkey = 's' WHERE did = 'did:plc:9'`, `UPDATE records
			SET rkey = 'r'`, `records app.bsky.feed.like did:plc:9 r: only in the first database`},
		{`UPDATE watch_members SET added_at = '2026-01-03Z'`, `UPDATE watch_members
			SET added_at = '2026-01-01Z'`, `watch_members a.example follows did:plc:1: differs in added_at`},
		{`UPDATE watches SET at_least = 9`, `UPDATE watches SET at_least = 5`, `watches a.example follows: differs in at_least`},
		{`UPDATE accounts SET handle = NULL`, `UPDATE accounts SET handle = 'a.example'`, `accounts did:plc:1: differs in handle`},
		{`UPDATE tombstones SET rev = '4'`, `UPDATE tombstones SET rev = '3'`, `tombstones app.bsky.feed.like did:plc:1 gone: differs in rev`},
		{`UPDATE shares SET how = 'quote'`, `UPDATE shares SET how = 'post'`, `shares app.bsky.feed.like did:plc:1 r a: differs in how`},
		{`UPDATE links SET site = 'c.example' WHERE identity = 'b'`, `UPDATE links SET site = 'b.example'
			WHERE identity = 'b'`, `links b: differs in site`},
		{`UPDATE link_merges SET split_at = NULL`, `UPDATE link_merges SET split_at = '2026-01-02Z'`, `link_merges a: differs in split_at`},
	} {
		execute(t, second, c.change)
		require.Contains(t, differences(), c.want)
		execute(t, second, c.back)
		require.Empty(t, differences(), c.want)
	}
}
