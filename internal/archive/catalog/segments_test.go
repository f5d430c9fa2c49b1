package catalog_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestNumbersOfTwoDatabases covers an archive with two segments of the same number, because two
// databases have archived to it. It can be read, and the next segment has another number.
func TestNumbersOfTwoDatabases(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Now()
	manifest := func(sha string) archive.Manifest {
		return archive.NewManifest(7, "s", "w", archive.Sum{
			Records: 1, SHA256: strings.Repeat(sha, 32), Content: strings.Repeat(sha, 8),
		}, now, now)
	}
	for range 2 {
		require.NoError(t, catalog.RestoreSegment(t.Context(), pool, manifest("aa"), "dir:/a", now))
		require.NoError(t, catalog.RestoreSegment(t.Context(), pool, manifest("bb"), "dir:/a", now))
	}
	all, err := catalog.Segments(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, all, 1)
	next, err := catalog.NextSegment(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, int64(8), next)
	require.ErrorContains(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return catalog.StoreSegment(t.Context(), tx, manifest("cc"), nil)
	}), "segment 7 exists", "no rows are assigned to the segment of another database")
}

// TestPositionsAreRestoredTogether kills a rebuild between two positions. With only one of them the
// rebuild would count as finished, and the other stream would begin at its tip without a gap.
func TestPositionsAreRestoredTogether(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	positions := map[string]json.RawMessage{}
	for _, name := range []string{"a", "b", "c"} {
		positions[name] = json.RawMessage(`{"wire":"jetstream","host":"h","cursor_kind":"time","cursor":7,"anchor":"","anchors":[],` +
			`"anchor_seqs":[],"filter_hash":"f"}`)
	}
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`CREATE FUNCTION killed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'killed'; END $$`)
	exec(`CREATE TRIGGER killed BEFORE INSERT ON streams FOR EACH ROW WHEN (NEW.name = 'b') EXECUTE FUNCTION killed()`)
	require.ErrorContains(t, catalog.RestorePositions(t.Context(), pool, positions), "killed")
	reason, err := catalog.Rebuildable(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, reason, "the rebuild must continue")
	exec(`DROP TRIGGER killed ON streams`)
	require.NoError(t, catalog.RestorePositions(t.Context(), pool, positions))
	restored, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT name || cursor FROM streams ORDER BY name`)
	require.NoError(t, err)
	require.Equal(t, []string{"a7", "b7", "c7"}, restored)
}

// TestInterruptedRebuildGoesOn covers a rebuild that left records, and a segment or the stream with
// which it read one. Records alone do not count as a rebuild's.
func TestInterruptedRebuildGoesOn(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`SELECT`: "it has records",
		`INSERT INTO streams (name, wire) VALUES ('x-rebuild', 'recording')`: "",
		`INSERT INTO streams (name, wire) VALUES ('x', 'jetstream')`:         "a stream has been read into it",
		`INSERT INTO segments
    (number, stream, wire, name, format, records, raw_bytes, stored_bytes, sha256, content, first_at, last_at, sealed_at)
		 VALUES (1, 's', 'w', 'n', 1, 1, 1, 1, 's', 'c', now(), now(), now())`: "",
	} {
		pool := schematest.New(t)
		_, err := pool.Exec(t.Context(), `
INSERT INTO records (collection, did, rkey, rev, cid, record, created_at)
VALUES ('a.b.c', 'did:plc:a', 'k', '3222222222222', '', '{}', now())`)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), sql)
		require.NoError(t, err)
		reason, err := catalog.Rebuildable(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, want, reason, sql)
	}
}
