package catalog_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// archivedBy returns the records of a stream that wait to be sealed, in order.
func archivedBy(t *testing.T, pool *pgxpool.Pool, stream string) (records [][]byte) {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT blob FROM archive_open WHERE stream = $1 ORDER BY number`, stream)
	require.NoError(t, err)
	blobs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(t, err)
	for _, blob := range blobs {
		raw, err := archive.UnpackRow(blob)
		require.NoError(t, err)
		for record, err := range archive.Records(raw) {
			require.NoError(t, err)
			records = append(records, record)
		}
	}
	return records
}

// fetches archives fetched records.
func fetches(t *testing.T, pool *pgxpool.Pool, f schema.Fetched) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return catalog.Hook("a wire").Fetched(t.Context(), tx, f) }))
}

// restores restores records and returns the keys that changed.
func restores(t *testing.T, pool *pgxpool.Pool, records [][]byte) (changed []schema.Key) {
	t.Helper()
	require.NoError(t, catalog.RestoreFetched(t.Context(), pool, nil, stores, time.Time{}, records,
		func(_ context.Context, _ pgx.Tx, keys []schema.Key) error {
			changed = append(changed, keys...)
			return nil
		}))
	return changed
}

func key(rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: "did:plc:a", Rkey: rkey}
}

func post(rkey, rev string) schema.Write {
	return schema.Write{Key: key(rkey), Rev: rev, CID: "c" + rev, CreatedAt: time.Unix(1, 0), Record: []byte(`{"rev": "` + rev + `"}`)}
}

func deletion(rkey, rev string) schema.Deletion {
	return schema.Deletion{Key: key(rkey), Rev: rev, At: time.Unix(2, 0)}
}

// stores reports whether a collection is stored: all but one.
func stores(collection string) bool { return collection != "com.example.other" }

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

// TestFetchedIsRestored restores fetched records as they were stored: a later version under the
// same revision wins, a repair removes a tombstone, a deletion stays, and an account stays deleted.
// Nothing is archived twice, and restored records are known as archived.
func TestFetchedIsRestored(t *testing.T) {
	t.Parallel()
	pool, second := schematest.New(t), schematest.New(t)
	listed := post("a", schema.ListedRev)
	edited := listed
	edited.CID, edited.Record = "other", []byte(`{"rev": "edited", "text": "<&>"}`)
	fetches(t, pool, schema.Fetched{Writes: []schema.Write{listed, post("b", "3222222222222")}})
	var wire string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT wire FROM archive_open`).Scan(&wire))
	require.Equal(t, "a wire", wire)
	fetches(t, pool, schema.Fetched{Writes: []schema.Write{listed}})
	fetches(t, pool, schema.Fetched{Deletions: []schema.Deletion{deletion("b", "3222222222223"), deletion("c", "3222222222223")}})
	between := edited
	between.CID = "between"
	fetches(t, pool, schema.Fetched{Writes: []schema.Write{between}})
	fetches(t, pool, schema.Fetched{Writes: []schema.Write{edited, post("c", "3222222222223")}})
	fetches(t, pool, schema.Fetched{Statuses: []schema.Status{{DID: "did:plc:gone", Status: "deleted", At: time.Unix(3, 0)}}})
	records := archivedBy(t, pool, catalog.StreamFetched)
	require.Len(t, records, 8, "%s", records)
	unwanted := post("d", "3222222222222")
	unwanted.Collection = "com.example.other"
	fetches(t, pool, schema.Fetched{Writes: []schema.Write{unwanted}})
	records = archivedBy(t, pool, catalog.StreamFetched)
	require.Contains(t, []string{"c"}, restores(t, second, records)[3].Rkey)
	want := held(t, second)
	require.Contains(t, want, "a 2222222222222 other 1970-01-01 00:00:01")
	require.Contains(t, want, `"text": "<&>"`)
	require.Contains(t, want, "c 3222222222223 c3222222222223")
	require.Contains(t, want, "b 3222222222223 1970-01-01 00:00:02")
	require.Contains(t, want, "did:plc:gone deleted")
	require.NotContains(t, want, "d 3222222222222")
	restores(t, second, records)
	require.Equal(t, want, held(t, second), "a second restore must change nothing")
	fetches(t, second, schema.Fetched{Writes: []schema.Write{edited}, Deletions: []schema.Deletion{deletion("b", "3222222222223")}})
	require.Empty(t, archivedBy(t, second, catalog.StreamFetched), "restored records must not be archived again")

	_, err := second.Exec(t.Context(), `DELETE FROM archived_ids`)
	require.NoError(t, err)
	units, err := catalog.FetchedUnits(t.Context(), second, records)
	require.NoError(t, err)
	require.NoError(t, catalog.RestoreIDs(t.Context(), second, units, nil))
	fetches(t, second, schema.Fetched{Writes: []schema.Write{edited}, Deletions: []schema.Deletion{deletion("b", "3222222222223")}})
	require.Empty(t, archivedBy(t, second, catalog.StreamFetched), "records known as archived must not be archived again")

	third := schematest.New(t)
	require.NoError(t, catalog.RestoreFetched(t.Context(), third, nil, stores, time.Now().Add(time.Hour), records,
		func(context.Context, pgx.Tx, []schema.Key) error { return nil }))
	require.Equal(t, want, held(t, third))
	known, err := schema.One(t.Context(), third, "count", pgx.RowTo[int], `SELECT count(*) FROM archived_ids`)
	require.NoError(t, err)
	require.Zero(t, known, "ids of fetched records must not be stored: no server sends them again")
}

// members makes an account a member of the only watch.
func members(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// TestSnapshotsAreRestored checks that only changed tables are archived, that the last
// whole snapshot is restored, and that accounts which are no longer followed are purged.
func TestSnapshotsAreRestored(t *testing.T) {
	t.Parallel()
	pool, second := schematest.New(t), schematest.New(t)
	snap := func() int {
		t.Helper()
		changed, err := catalog.ArchiveSnapshots(t.Context(), pool)
		require.NoError(t, err)
		return changed
	}
	members(t, pool, `INSERT INTO watches (target) VALUES ('hub.example')`)
	members(t, pool, `INSERT INTO watch_members (watch_id, did) SELECT id, 'did:plc:' || n FROM watches, generate_series(1, 2500) AS n`)
	members(t, pool, `INSERT INTO accounts (did, handle, handle_at, display_name, status, status_at)
VALUES ('did:plc:1', 'one.example', '2026-01-01Z', 'One', 'hidden', '2026-01-01Z'),
    ('did:plc:none', 'none.example', '2026-01-01Z', NULL, 'active', NULL)`)
	require.Equal(t, 4, snap(), "empty tables are archived too: they may have had rows")
	require.Zero(t, snap())
	members(t, pool, `DELETE FROM watch_members WHERE did = 'did:plc:2'`)
	require.Equal(t, 2, snap(), "only the members and the purge queue have changed")
	members(t, pool, `UPDATE accounts SET display_name = 'Uno' WHERE did = 'did:plc:1'`)
	require.Equal(t, 1, snap())
	records := archivedBy(t, pool, catalog.StreamSnapshots)
	members(t, pool, `DELETE FROM watch_members`)
	require.Equal(t, 2, snap())
	for _, record := range archivedBy(t, pool, catalog.StreamSnapshots)[len(records):] {
		p, err := catalog.ParseSnapshotPart(record)
		require.NoError(t, err)
		p.Last = false // the archive ends within these snapshots
		cut, err := json.Marshal(p)
		require.NoError(t, err)
		if p.Part == 0 {
			records = append(records, cut)
		}
	}
	var s catalog.Snapshots
	for _, record := range records {
		require.NoError(t, s.Add(record))
	}
	require.Error(t, s.Add([]byte(`{"table": "watches", "part": 7}`)))
	require.False(t, s.FollowsEveryone())
	require.True(t, s.EverFollowed("did:plc:2"))
	require.False(t, s.EverFollowed("did:plc:none"))
	members(t, second, `
INSERT INTO accounts (did, handle, handle_at, status, status_at)
VALUES ('did:plc:1', 'newer.example', '2026-02-01Z', 'deactivated', '2025-01-01Z')`)
	for range 2 {
		require.NoError(t, s.Restore(t.Context(), second))
		var text string
		require.NoError(t, second.QueryRow(t.Context(), `
SELECT concat_ws(' ', (SELECT concat_ws(' ', target, kind) FROM watches), (SELECT count(*) FROM watch_members),
    (SELECT string_agg(did, ' ') FROM purge_queue),
    (SELECT concat_ws(' ', handle, display_name, status) FROM accounts))`).Scan(&text))
		require.Equal(t, "hub.example follows 2499 did:plc:2 newer.example Uno hidden", text)
	}
	members(t, second, `UPDATE accounts SET handle = NULL, handle_at = NULL, display_name = NULL, erased_rev = '1'`)
	require.NoError(t, s.Restore(t.Context(), second))
	var named int
	require.NoError(t, second.QueryRow(t.Context(), `SELECT num_nonnulls(handle, display_name, avatar) FROM accounts`).Scan(&named))
	require.Zero(t, named, "the author has demanded to vanish")
	members(t, second, `INSERT INTO watches (target) VALUES ('next.example')`) // the ids continue
}

// FuzzSnapshots checks that no record of an archive breaks its reader.
func FuzzSnapshots(f *testing.F) {
	f.Add([]byte(`{"table":"watch_members","part":0,"last":true,"rows":[{"did":"did:plc:a"}]}`))
	f.Add([]byte(`{"table":"watches","part":1}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		var s catalog.Snapshots
		if err := s.Add(record); err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
		}
	})
}

// FuzzFetched checks that every accepted event is identified, whatever it contains.
func FuzzFetched(f *testing.F) {
	f.Add([]byte(`{"did":"did:plc:a","time_us":1,"kind":"commit","commit":{"rev":"3222222222222","operation":"create",` +
		`"collection":"a.b.c","rkey":"r","record":{}}}`))
	f.Add([]byte(`{"did":"did:plc:a","time_us":1,"kind":"account","account":{"active":false,"did":"did:plc:a","status":"deleted",` +
		`"time":"2026-01-01T00:00:00Z"}}`))
	f.Add([]byte(`{"commit":{"operation":"update"}}`))
	f.Fuzz(func(t *testing.T, record []byte) {
		id, _, err := catalog.ParseFetched(record)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		require.NotZero(t, id)
	})
}
