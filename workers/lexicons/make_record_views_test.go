package lexicons

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/workers"
)

// TestViewsAreMadeWhenSchemasChange shows that the views of records follow the stored schemas,
// whatever stores them. A transaction that stores many schemas adds one job.
func TestViewsAreMadeWhenSchemasChange(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const add = `
INSERT INTO lexicons (nsid, document, hash, source)
SELECT n, jsonb_build_object('lexicon', 1, 'id', n, 'defs',
    jsonb_build_object('main', jsonb_build_object('type', 'record', 'key', 'tid', 'record',
       jsonb_build_object('type', 'object', 'properties', jsonb_build_object('text', jsonb_build_object('type', 'string')))))), n, 'folder'
FROM unnest(ARRAY['com.example.town.bird', 'com.example.town.tree']) AS n`
	execute(t, pool, add)
	require.Equal(t, []string{"lexicon"}, strs(t, pool, `SELECT array_to_string(tags, ' ') FROM river_job WHERE kind = 'make_record_views'`))
	made := settings{Config: workers.Config{Shared: workers.Shared{Pool: pool, Logger: slog.New(slog.DiscardHandler)},
		ID: t.Name(), Processing: workers.Processing{Queues: []string{jobs.QueueMaintenance}}}}
	made.start(context.Background(), t, &workers.Bundle{})
	becomes(t, pool, []string{"example.bird", "example.tree"}, `SELECT schema_name || '.' || view_name FROM record_views ORDER BY 1`)
	require.Empty(t, strs(t, pool, `SELECT text FROM example.tree`))
	execute(t, pool, `DELETE FROM lexicons WHERE nsid = 'com.example.town.bird'`)
	becomes(t, pool, []string{"example.tree"}, `SELECT schema_name || '.' || view_name FROM record_views ORDER BY 1`)
	execute(t, pool, `UPDATE lexicons SET document = jsonb_set(document, '{defs,main,record,properties}', '{"height": {"type": "integer"}}')`)
	becomes(t, pool, []string{"height"}, `SELECT columns -> 0 ->> 'column' FROM record_views`)
}

// TestLateSchemaHasItsView shows that a job that would make the view of a schema waits until the
// transaction that stores the schema has ended.
func TestLateSchemaHasItsView(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const add = `
INSERT INTO lexicons (nsid, document, hash, source)
SELECT n, jsonb_build_object('lexicon', 1, 'id', n, 'defs',
    jsonb_build_object('main', jsonb_build_object('type', 'record', 'key', 'tid', 'record',
       jsonb_build_object('type', 'object', 'properties', '{}'::jsonb)))), n, 'folder' FROM unnest(ARRAY[$1]) AS n`
	_, err := pool.Exec(t.Context(), add, "com.example.town.bird")
	require.NoError(t, err)
	late, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer late.Rollback(t.Context()) // finished, or the test has failed
	_, err = late.Exec(t.Context(), add, "com.example.town.tree")
	require.NoError(t, err)

	queue, err := workers.Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	_, err = queue.Insert(t.Context(), jobs.RunProjection{Name: "nothing"}, nil) // queued after the one that waits
	require.NoError(t, err)
	made := settings{Config: workers.Config{Shared: workers.Shared{Pool: pool, Logger: slog.New(slog.DiscardHandler)},
		ID: t.Name(), Processing: workers.Processing{Queues: []string{jobs.QueueMaintenance}}}}
	made.start(context.Background(), t, &workers.Bundle{})
	becomes(t, pool, []string{"0"}, `SELECT count(*)::text FROM river_job WHERE kind = 'run_projection' AND finalized_at IS NULL`)
	require.NoError(t, late.Commit(t.Context()))
	becomes(t, pool, []string{"example.bird", "example.tree"}, `SELECT schema_name || '.' || view_name FROM record_views ORDER BY 1`)
}
