// Package catalog has the queries on the archive's tables: the rows that are in no segment yet, the
// segments, and what the archive must forget. Hook and Row.Queue
// write in the transactions of the core.
package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// ErrSealed means that another job has sealed the rows meanwhile.
var ErrSealed = errors.New("the rows are in a segment already")

// OpenStream is a stream with rows that are in no segment.
type OpenStream struct{ Stream, Wire string }

// DueStreams lists the streams whose open rows have at least rawBytes bytes, or of which one
// is older than age.
func DueStreams(ctx context.Context, db schema.DB, rawBytes int64, age time.Duration) ([]OpenStream, error) {
	const sql = `
SELECT stream, wire
FROM archive_open
WHERE segment IS NULL
GROUP BY stream, wire
HAVING sum(raw_bytes) >= $1 OR min(arrived_at) <= clock_timestamp() - $2::interval
ORDER BY min(arrived_at)`
	return schema.All(ctx, db, "list the open rows of the archive", pgx.RowToStructByPos[OpenStream], sql, rawBytes, age)
}

// SegmentPlan describes the content of the next segment of a stream.
type SegmentPlan struct {
	Numbers  []int64 // numbers of the rows, ascending
	FirstAt  *time.Time
	LastAt   *time.Time
	Position json.RawMessage // position of the stream; nil: more rows are left
	Due      bool

	CreatedFrom *time.Time // of the records; nil: there is none
	CreatedTo   *time.Time
}

// Describe sets the fields of a manifest that describe the rows.
func (p *SegmentPlan) Describe(m *archive.Manifest) {
	m.FirstAt, m.LastAt, m.Position = p.FirstAt.UTC(), p.LastAt.UTC(), p.Position
	m.CreatedFrom, m.CreatedTo = inUTC(p.CreatedFrom), inUTC(p.CreatedTo)
}

func inUTC(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := t.UTC()
	return &at
}

// PlanSegment chooses the open rows of the next segment: the first ones, up to about one and a
// half times rawBytes. Due is defined as for DueStreams. The position is read in the same
// snapshot: if all rows of the stream are chosen, everything up to the position is in them or
// in earlier segments.
func PlanSegment(ctx context.Context, db schema.DB, of OpenStream, rawBytes int64, age time.Duration) (SegmentPlan, error) {
	const sql = `
WITH open AS (
    SELECT number, wire, arrived_at, created_from, created_to, raw_bytes,
        sum(raw_bytes) OVER (PARTITION BY wire ORDER BY number) - raw_bytes AS before
    FROM archive_open
    WHERE stream = $1 AND segment IS NULL
), chosen AS (
    SELECT * FROM open WHERE wire = $2 AND before < $3 * 3 / 2
)
SELECT coalesce((SELECT array_agg(number ORDER BY number) FROM chosen), '{}') AS numbers,
       (SELECT min(arrived_at) FROM chosen) AS first_at,
       (SELECT max(arrived_at) FROM chosen) AS last_at,
       (SELECT min(created_from) FROM chosen) AS created_from,
       (SELECT max(created_to) FROM chosen) AS created_to,
       (SELECT jsonb_build_object('wire', wire, 'host', host, 'cursor_kind', cursor_kind, 'cursor', cursor, 'anchor', anchor, 'anchors',
           anchors,
            'anchor_seqs', anchor_seqs, 'filter_hash', filter_hash, 'last_event_at', last_event_at, 'written_at', written_at,
            'caught_up_at', caught_up_at)
        FROM streams WHERE name = $1 AND cursor_kind <> '' AND (SELECT count(*) FROM chosen) = (SELECT count(*) FROM open)) AS position,
       coalesce((SELECT sum(raw_bytes) >= $3 OR min(arrived_at) <= clock_timestamp() - $4::interval FROM open WHERE wire = $2),
           false) AS due`
	return schema.One(ctx, db, "plan a segment of "+of.Stream, pgx.RowToStructByName[SegmentPlan], sql, of.Stream, of.Wire, rawBytes, age)
}

// ReadOpenRows calls use for the rows with these numbers, in order. It returns ErrSealed if
// one of them is gone.
func ReadOpenRows(ctx context.Context, db schema.DB, numbers []int64, use func(packed []byte) error) error {
	const sql = `SELECT blob FROM archive_open WHERE number = ANY ($1) ORDER BY number`
	const page = 100 // a few MiB
	for len(numbers) > 0 {
		n := min(page, len(numbers))
		blobs, err := schema.All(ctx, db, "read open rows of the archive", pgx.RowTo[[]byte], sql, numbers[:n])
		if err != nil {
			return err
		}
		if len(blobs) != n {
			return ErrSealed
		}
		for _, blob := range blobs {
			if err := use(blob); err != nil {
				return err
			}
		}
		numbers = numbers[n:]
	}
	return nil
}

// NextSegment returns the number of a new segment.
func NextSegment(ctx context.Context, db schema.DB) (int64, error) {
	const sql = `SELECT nextval(pg_get_serial_sequence('segments', 'number'))`
	return schema.One(ctx, db, "number a segment", pgx.RowTo[int64], sql)
}

// StoreSegment stores a segment's manifest and assigns the rows to it. It returns
// ErrSealed if one of them is in a segment already.
func StoreSegment(ctx context.Context, tx pgx.Tx, m archive.Manifest, rows []int64) error {
	inserted, err := insertSegment(ctx, tx, m, nil, "")
	if err == nil && !inserted {
		err = fmt.Errorf("segment %d exists", m.Number)
	}
	if err != nil {
		return err
	}
	const assign = `UPDATE archive_open SET segment = $1 WHERE number = ANY ($2) AND segment IS NULL`
	tag, err := tx.Exec(ctx, assign, m.Number, rows)
	if err != nil {
		return fmt.Errorf("seal segment %d: %w", m.Number, err)
	}
	if tag.RowsAffected() != int64(len(rows)) {
		return ErrSealed
	}
	return nil
}

// insertSegment inserts a segment, and reports whether there was none with the same number or
// name.
func insertSegment(ctx context.Context, db schema.DB, m archive.Manifest, synced *time.Time, store string) (inserted bool, err error) {
	const sql = `
INSERT INTO segments (number, stream, wire, name, format, records, raw_bytes, stored_bytes, sha256, content, first_at, last_at, position,
    sealed_at, synced_at, store,
    created_from, created_to, rewritten, origin, forgotten_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT DO NOTHING`
	n, err := schema.Change(ctx, db, fmt.Sprintf("store the manifest of segment %d", m.Number), sql, m.Number, m.Stream, m.Wire, m.Name,
		m.Format, m.Records, m.RawBytes, m.StoredBytes, m.SHA256, m.Content,
		m.FirstAt, m.LastAt, m.Position, m.SealedAt, synced, store, m.CreatedFrom, m.CreatedTo, m.Rewritten, m.Origin, m.ForgottenAt)
	return n == 1, err
}

const segmentColumns = `
    number, stream, wire, name, format, records, raw_bytes, stored_bytes, sha256, content, first_at, last_at, sealed_at, position,
    created_from, created_to, rewritten, origin, CASE WHEN rewritten > 0 AND isfinite(forgotten_at) THEN forgotten_at END`

func scanManifest(row pgx.CollectableRow) (m archive.Manifest, err error) {
	err = row.Scan(&m.Number, &m.Stream, &m.Wire, &m.Name, &m.Format, &m.Records, &m.RawBytes, &m.StoredBytes, &m.SHA256, &m.Content,
		&m.FirstAt, &m.LastAt, &m.SealedAt, &m.Position, &m.CreatedFrom, &m.CreatedTo, &m.Rewritten, &m.Origin, &m.ForgottenAt)
	m.ForgottenAt, m.CreatedFrom, m.CreatedTo = inUTC(m.ForgottenAt), inUTC(m.CreatedFrom), inUTC(m.CreatedTo)
	m.FirstAt, m.LastAt, m.SealedAt = m.FirstAt.UTC(), m.LastAt.UTC(), m.SealedAt.UTC()
	return m, err
}

// UnsyncedSegment reads a segment that is not in the store yet. It returns ErrNoRows if the
// segment is there. after reports whether an earlier segment of its stream is not there
// either.
func UnsyncedSegment(ctx context.Context, db schema.DB, number int64) (m archive.Manifest, after bool, err error) {
	const sql = `
SELECT ` + segmentColumns + `
FROM segments
WHERE number = $1 AND synced_at IS NULL`
	if m, err = schema.One(ctx, db, "read a segment", scanManifest, sql, number); err != nil {
		return m, false, err
	}
	const earlier = `SELECT EXISTS (SELECT FROM segments WHERE synced_at IS NULL AND number < $1 AND stream = $2)`
	after, err = schema.One(ctx, db, "look for earlier segments", pgx.RowTo[bool], earlier, number, m.Stream)
	return m, after, err
}

// LockUnsyncedSegment reads a segment that is not in the store yet, and makes FinishSegment
// wait for the transaction. It returns ErrNoRows if the segment is there.
func LockUnsyncedSegment(ctx context.Context, tx pgx.Tx, number int64) (archive.Manifest, error) {
	const sql = `SELECT ` + segmentColumns + ` FROM segments WHERE number = $1 AND synced_at IS NULL FOR UPDATE`
	return schema.One(ctx, tx, "lock a segment", scanManifest, sql, number)
}

// SyncedSegment reads a segment that is in the store. It returns ErrNoRows if it is not.
func SyncedSegment(ctx context.Context, db schema.DB, number int64) (archive.Manifest, error) {
	const sql = `SELECT ` + segmentColumns + ` FROM segments WHERE number = $1 AND synced_at IS NOT NULL`
	return schema.One(ctx, db, "read a segment", scanManifest, sql, number)
}

// UnsyncedSegments lists the numbers of the segments that are not in the store.
func UnsyncedSegments(ctx context.Context, db schema.DB) ([]int64, error) {
	const sql = `SELECT number FROM segments WHERE synced_at IS NULL ORDER BY number`
	return schema.All(ctx, db, "list the segments", pgx.RowTo[int64], sql)
}

// Segments reads the manifests of all segments that are in the store.
func Segments(ctx context.Context, db schema.DB) ([]archive.Manifest, error) {
	const sql = `SELECT ` + segmentColumns + ` FROM segments WHERE synced_at IS NOT NULL ORDER BY number`
	return schema.All(ctx, db, "list the segments", scanManifest, sql)
}

// LastSegments reads the manifests of the last segments in a store, latest first.
func LastSegments(ctx context.Context, db schema.DB, store string, limit int) ([]archive.Manifest, error) {
	const sql = `SELECT ` + segmentColumns + ` FROM segments WHERE synced_at IS NOT NULL AND store = $1 ORDER BY number DESC LIMIT $2`
	return schema.All(ctx, db, "list the last segments", scanManifest, sql, store, limit)
}

// SegmentRows lists the open rows that are sealed in a segment.
func SegmentRows(ctx context.Context, db schema.DB, number int64) ([]int64, error) {
	const sql = `SELECT number FROM archive_open WHERE segment = $1 ORDER BY number`
	return schema.All(ctx, db, "list the rows of a segment", pgx.RowTo[int64], sql, number)
}

// FinishSegment records that the store has a segment, and deletes its rows. The manifest
// may name another file than before, with the same records.
func FinishSegment(ctx context.Context, tx pgx.Tx, m archive.Manifest, store string) error {
	const finish = `
UPDATE segments
SET name = $2, stored_bytes = $3, sha256 = $4, sealed_at = $5, synced_at = clock_timestamp(), store = $6
WHERE number = $1 AND content = $7`
	tag, err := tx.Exec(ctx, finish, m.Number, m.Name, m.StoredBytes, m.SHA256, m.SealedAt, store, m.Content)
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("it has other records")
	}
	if err == nil {
		_, err = tx.Exec(ctx, `DELETE FROM archive_open WHERE segment = $1`, m.Number)
	}
	if err != nil {
		return fmt.Errorf("finish segment %d: %w", m.Number, err)
	}
	return nil
}

// Backlog counts what waits for the archive's store.
type Backlog struct {
	Rows     int64   // archived commits that are in no segment
	Bytes    int64   // of their records, decompressed
	Oldest   float64 // since the oldest of the rows; 0: there are none
	Unsynced int64   // sealed segments that are not in the store
	SyncAge  float64 // since the oldest of these was sealed
	Segments int64   // in the store
	Stored   int64   // of Segments
	Records  int64   // in Segments
}

// ForgetBacklog counts what the archive must forget and has not forgotten yet.
type ForgetBacklog struct {
	Overdue    float64 // since the segment that has waited longest was due to be compared with the data to forget
	Failing    int64   // segments whose last comparison failed
	Unlisted   float64 // since the oldest forgotten account that is on no list in the store
	Unreadable int64   // lists in the store that could not be read
}

// ReadForgetBacklog reads what the archive must forget and has not forgotten yet, if segments
// are compared once per interval. Segments from a rebuild become overdue only after that
// interval.
func ReadForgetBacklog(ctx context.Context, db schema.DB, every time.Duration) (ForgetBacklog, error) {
	const sql = `
SELECT (SELECT coalesce(greatest(extract(epoch FROM clock_timestamp() - min(greatest(coalesce(forgotten_at, sealed_at) + $1::interval,
    synced_at))), 0), 0)::float8
        FROM segments WHERE synced_at IS NOT NULL),
       (SELECT count(*) FROM segments WHERE forget_failing_since IS NOT NULL),
       (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 FROM forgotten WHERE listed_at IS NULL),
       (SELECT count(*) FROM unreadable_lists)`
	return schema.One(ctx, db, "read what the archive must forget", pgx.RowToStructByPos[ForgetBacklog], sql, every)
}

// ReadBacklog reads the backlog of the archive's store.
func ReadBacklog(ctx context.Context, db schema.DB) (Backlog, error) {
	const sql = `
SELECT o.rows, o.bytes, o.oldest, s.unsynced, s.sync_age, s.segments, s.stored, s.records
FROM (SELECT count(*) AS rows, coalesce(sum(raw_bytes), 0)::bigint AS bytes,
             coalesce(extract(epoch FROM clock_timestamp() - min(arrived_at)), 0)::float8 AS oldest FROM archive_open) AS o,
     (SELECT count(*) FILTER (WHERE synced_at IS NULL) AS unsynced,
             coalesce(extract(epoch FROM clock_timestamp() - min(sealed_at) FILTER (WHERE synced_at IS NULL)), 0)::float8 AS sync_age,
             count(*) FILTER (WHERE synced_at IS NOT NULL) AS segments,
             coalesce(sum(stored_bytes) FILTER (WHERE synced_at IS NOT NULL), 0)::bigint AS stored,
             coalesce(sum(records) FILTER (WHERE synced_at IS NOT NULL), 0)::bigint AS records FROM segments) AS s`
	return schema.One(ctx, db, "read the backlog of the archive", pgx.RowToStructByPos[Backlog], sql)
}

// Rebuildable returns why the archive must not be read into a database, or "" if it may be
// read. An interrupted rebuild may continue. It is recognised by its segments or the stream
// that it reads.
func Rebuildable(ctx context.Context, db schema.DB) (reason string, err error) {
	const sql = `
SELECT CASE
    WHEN EXISTS (SELECT FROM streams WHERE wire <> $1) THEN 'a stream has been read into it'
    WHEN EXISTS (SELECT FROM archive_open) THEN 'it archives events itself'
    WHEN EXISTS (SELECT FROM records) AND NOT EXISTS (SELECT FROM segments) AND NOT EXISTS (SELECT FROM streams) THEN 'it has records'
    ELSE '' END`
	return schema.One(ctx, db, "look into the database", pgx.RowTo[string], sql, schema.WireRecording)
}

// RestoreSegment records that a segment of the store has been read into this database. If two
// databases have archived to one place, some numbers exist twice. Then the first segment of a
// number is recorded, and an interrupted rebuild reads the other one again.
func RestoreSegment(ctx context.Context, db schema.DB, m archive.Manifest, store string, now time.Time) error {
	inserted, err := insertSegment(ctx, db, m, &now, store)
	if err == nil && !inserted && m.Rewritten > 0 {
		err = ReplaceSegment(ctx, db, m) // an interrupted rebuild read an earlier version
	}
	if err != nil {
		return err
	}
	const next = `SELECT setval(pg_get_serial_sequence('segments', 'number'), greatest((SELECT max(number) FROM segments), 1))`
	return schema.Exec(ctx, db, "number the next segment", next)
}

// RestorePositions makes the rows of streams with the positions in manifests, unless some of
// the rows exist. It makes all or none, because a rebuild with one of them is finished. A
// resume verifies the positions.
func RestorePositions(ctx context.Context, db schema.DB, positions map[string]json.RawMessage) error {
	const sql = `
INSERT INTO streams (name, wire, host, cursor_kind, cursor, anchor, anchors, anchor_seqs, filter_hash, last_event_at, written_at,
    caught_up_at)
SELECT s.name, p.wire, p.host, p.cursor_kind, p.cursor, p.anchor, p.anchors, p.anchor_seqs, p.filter_hash, p.last_event_at, p.written_at,
    p.caught_up_at
FROM unnest($1::text[], $2::jsonb[]) AS s (name, position), jsonb_populate_record(NULL::streams, s.position) AS p
ON CONFLICT (name) DO NOTHING`
	names := slices.Sorted(maps.Keys(positions))
	of := make([]json.RawMessage, len(names))
	for i, name := range names {
		of[i] = positions[name]
	}
	return schema.Exec(ctx, db, "restore the positions of the streams", sql, names, of)
}
