package schema_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestDeletionsInAnyOrderLeaveTheSameTombstone tells of deletions in every order, such as a stream
// that is read again and a repository.
func TestDeletionsInAnyOrderLeaveTheSameTombstone(t *testing.T) {
	t.Parallel()
	early, late, lasting, older := deletion("a", "2"), deletion("a", "2"), deletion("a", "2"), deletion("a", "1")
	late.At, older.At = early.At.Add(time.Hour), early.At.Add(2*time.Hour)
	lasting.Lasting = true
	for _, c := range []struct {
		told []schema.Deletion
		want string
	}{{[]schema.Deletion{early, late, older}, held(t, pooled(t, late))}, {[]schema.Deletion{late, lasting}, held(t, pooled(t, lasting))}} {
		for range c.told {
			c.told = append(c.told[1:], c.told[0])
			require.Equal(t, c.want, held(t, pooled(t, c.told...)))
			back := slices.Clone(c.told)
			slices.Reverse(back)
			require.Equal(t, c.want, held(t, pooled(t, back...)))
		}
	}
}

// pooled returns a database that was told of deletions, each in a transaction.
func pooled(t *testing.T, told ...schema.Deletion) *pgxpool.Pool {
	t.Helper()
	pool := schematest.New(t)
	for _, d := range told {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return schema.DeleteRecords(t.Context(), tx, []schema.Deletion{d}, nil)
		}))
	}
	return pool
}

// TestFewDeletionsArePlannedOnce also shows that each plan looks up the keys in an index, although
// it is made while the tables are empty and not analyzed.
func TestFewDeletionsArePlannedOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `SELECT ensure_partition('posts', now(), '1 day')`) // Postgres 18 forgets that a plan for the only partition is not allowed
	do(t, pool, `CREATE TABLE things (did text, collection text, rkey text, part int, PRIMARY KEY (did, collection, rkey, part))`)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // nothing is left to roll back
	b := schema.Batch{Deletions: []schema.Deletion{deletion("a", "1"), deletion("b", "1")},
		Committer: schema.Committer{Projections: schema.Projections{
			{Name: "made", Collections: []string{schema.PostCollection}, Tables: []string{"things", "waiting"}}}}}
	var deletes int
	for i, queued := range schema.QueuedDeletions(&b, tx) {
		if !strings.Contains(queued.SQL, "DELETE") {
			_, err := tx.Exec(t.Context(), queued.SQL, queued.Arguments...)
			require.NoError(t, err)
			continue
		}
		deletes++
		_, err := tx.Exec(t.Context(), fmt.Sprintf(`PREPARE p%d AS %s`, i, queued.SQL))
		require.NoError(t, err)
		keys := strings.TrimSuffix(strings.Repeat(`'{x}', `, len(queued.Arguments)), ", ")
		rows, err := tx.Query(t.Context(), fmt.Sprintf(`EXPLAIN (COSTS OFF) EXECUTE p%d (%s)`, i, keys), pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		for _, line := range plan {
			require.NotRegexp(t, `Seq Scan|Hash|Merge`, line, strings.Join(plan, "\n"))
			if strings.Contains(line, "Index Cond") {
				require.Contains(t, line, "d.did", strings.Join(plan, "\n"))
			}
		}
		require.Regexp(t, `rkey = \(?d\.rkey`, strings.Join(plan, "\n"))
		require.NotContains(t, strings.Join(plan, "\n"), "'{x}'", "the plan must be a generic one")
	}
	require.Equal(t, 3, deletes)
	settings := make([]string, 4)
	require.NoError(t, tx.QueryRow(t.Context(), `
		SELECT current_setting('plan_cache_mode'), current_setting('enable_seqscan'), current_setting('enable_indexscan'),
		    current_setting('enable_indexonlyscan')`).
		Scan(&settings[0], &settings[1], &settings[2], &settings[3]))
	require.Equal(t, []string{"auto", "on", "on", "on"}, settings, "the settings must be restored for later statements")
}

// held returns the rows of posts and accounts in the tables.
func held(t *testing.T, pool *pgxpool.Pool) (text string) {
	t.Helper()
	const sql = `
SELECT concat_ws(E'\n', (SELECT string_agg(concat_ws(' ', rkey, rev, cid, created_at, record), E'\n' ORDER BY rkey) FROM records),
    (SELECT string_agg(concat_ws(' ', rkey, rev, deleted_at), E'\n' ORDER BY rkey) FROM tombstones),
    (SELECT string_agg(concat_ws(' ', did, status, status_at), E'\n' ORDER BY did) FROM accounts))`
	require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&text))
	return text
}
