package catalog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// StreamRetried is the stream name under which retried dead letters are archived: they belong
// to no stream.
const StreamRetried = "dead-letters"

// archivedAs returns the stream name under which commits with this lease are archived.
func archivedAs(l schema.Lease) string { return cmp.Or(l.Stream, StreamRetried) }

// Row is the row that a commit adds to the archive: those of its units that are not
// archived yet.
type Row struct {
	Wire  string
	Units []Unit
	// Excerpt returns a record with a single event of a unit; nil: a unit with a new event is
	// kept whole.
	Excerpt func(raw []byte, part int) []byte
	// IDsOnly: the units are already in the archive, and only the ids of their events are recorded.
	IDsOnly bool

	blob     []byte // all units; set by Pack
	raw      int
	from, to *time.Time // set by Date
}

// Unit is a frame of a stream, as it was received.
type Unit struct {
	Raw    []byte
	Events []Event
	Day    int32 // the day of the events' revision, in days since 1970; 0: the revision names none
}

// Event is an event of a unit.
type Event struct {
	ID   archive.ID
	Part int // its index in the frame
}

// Pack compresses the units before the commit, on the assumption that all of them are new.
// That is nearly always true.
func (r *Row) Pack() {
	if r.IDsOnly {
		return
	}
	records := make([][]byte, len(r.Units))
	for i := range r.Units {
		records[i] = r.Units[i].Raw
	}
	r.blob, r.raw = packRecords(records)
}

// Date sets the range in which the commit's records were created.
func (r *Row) Date(writes []schema.Write) {
	for i := range writes {
		at := &writes[i].CreatedAt
		if r.from == nil || at.Before(*r.from) {
			r.from = at
		}
		if r.to == nil || at.After(*r.to) {
			r.to = at
		}
	}
}

func packRecords(records [][]byte) (blob []byte, raw int) {
	size := 0
	for _, r := range records {
		size += len(r) + 4
	}
	plain := make([]byte, 0, size)
	for _, r := range records {
		plain = archive.AppendRecord(plain, r)
	}
	return archive.PackRow(plain), size
}

// insertIDs records events as known, and returns those that were not known before.
const insertIDs = `
INSERT INTO archived_ids (id, day)
SELECT id, day FROM unnest($1::uuid[], $2::int[]) AS e (id, day)
ON CONFLICT DO NOTHING
RETURNING id`

// Queue is a schema.CommitHook.
func (r *Row) Queue(q *pgx.Batch, lease schema.Lease) (then func(context.Context, pgx.Tx) error) {
	var fresh []pgtype.UUID
	r.queue(q, lease, &fresh)
	return func(ctx context.Context, tx pgx.Tx) error {
		if len(fresh) == 0 {
			return nil
		}
		return r.storeFresh(ctx, tx, lease, fresh)
	}
}

// queue adds the statement that records the events as known and, if all of them are new,
// stores the row. If some are not new, it sets fresh to the new ones, and storeFresh stores
// them.
func (r *Row) queue(q *pgx.Batch, lease schema.Lease, fresh *[]pgtype.UUID) {
	const sql = `
WITH fresh AS (` + insertIDs + `
), stored AS (
    INSERT INTO archive_open (stream, wire, records, raw_bytes, blob, created_from, created_to)
    SELECT $3, $4, $5, $6, $7, $8, $9 WHERE (SELECT count(*) FROM fresh) = cardinality($1::uuid[])
    RETURNING number
)
SELECT (SELECT array_agg(id) FROM fresh) WHERE NOT EXISTS (SELECT FROM stored)`
	ids, days := r.ids()
	if r.IDsOnly {
		q.Queue(insertIDs, ids, days)
		return
	}
	q.Queue(sql, ids, days, archivedAs(lease), r.Wire, len(r.Units), r.raw, r.blob, r.from, r.to).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowTo[[]pgtype.UUID])
		if len(found) > 0 {
			*fresh = found[0]
		}
		return err
	})
}

// ids returns the events in the order in which their rows are locked.
func (r *Row) ids() (pgtype.FlatArray[pgtype.UUID], pgtype.FlatArray[int32]) {
	type event struct {
		id  archive.ID
		day int32
	}
	all := make([]event, 0, len(r.Units))
	for i := range r.Units {
		for _, e := range r.Units[i].Events {
			all = append(all, event{e.ID, r.Units[i].Day})
		}
	}
	slices.SortFunc(all, func(a, b event) int { return slices.Compare(a.id[:], b.id[:]) })
	ids, days := make(pgtype.FlatArray[pgtype.UUID], len(all)), make(pgtype.FlatArray[int32], len(all))
	for i, e := range all {
		ids[i], days[i] = pgtype.UUID{Bytes: e.id, Valid: true}, e.day
	}
	return ids, days
}

// storeFresh stores the units that contain new events.
func (r *Row) storeFresh(ctx context.Context, tx pgx.Tx, lease schema.Lease, fresh []pgtype.UUID) error {
	isNew := make(map[archive.ID]bool, len(fresh))
	for _, id := range fresh {
		isNew[id.Bytes] = true
	}
	var records [][]byte
	for i := range r.Units {
		u := &r.Units[i]
		var parts []int
		for _, e := range u.Events {
			if isNew[e.ID] {
				parts = append(parts, e.Part)
				delete(isNew, e.ID) // the batch may contain the same event twice
			}
		}
		switch {
		case len(parts) == 0:
		case len(parts) == len(u.Events) || r.Excerpt == nil:
			records = append(records, u.Raw)
		default:
			for _, part := range parts {
				records = append(records, r.Excerpt(u.Raw, part))
			}
		}
	}
	if len(records) == 0 {
		return nil
	}
	blob, raw := packRecords(records)
	return insertOpenRow(ctx, tx, archivedAs(lease), len(records), &Row{Wire: r.Wire, blob: blob, raw: raw, from: r.from, to: r.to})
}

// insertOpenRow stores a packed row with a number of records.
func insertOpenRow(ctx context.Context, tx pgx.Tx, stream string, records int, r *Row) error {
	const sql = `
INSERT INTO archive_open (stream, wire, records, raw_bytes, blob, created_from, created_to)
VALUES ($1, $2, $3, $4, $5, $6, $7)`
	return schema.Exec(ctx, tx, "store a row of the archive", sql, stream, r.Wire, records, r.raw, r.blob, r.from, r.to)
}

// RestoreIDs records the ids of archived events: those of units, and of those that
// several streams bring.
func RestoreIDs(ctx context.Context, pool *pgxpool.Pool, units []Unit, seen [][16]byte) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		q := &pgx.Batch{}
		schema.QueueSeen(q, seen)
		(&Row{IDsOnly: true, Units: units}).queue(q, schema.Lease{}, nil)
		return tx.SendBatch(ctx, q).Close()
	})
	if err != nil {
		return fmt.Errorf("restore what is archived: %w", err)
	}
	return nil
}

// OpenRow is an open row of the archive.
type OpenRow struct {
	Number       int64
	Stream, Wire string
	Blob         []byte
}

// EachOpenRow calls use for the rows that are in no segment of the store, in order.
func EachOpenRow(ctx context.Context, db schema.DB, use func(OpenRow) error) error {
	const sql = `SELECT number, stream, wire, blob FROM archive_open WHERE number > $1 ORDER BY number LIMIT 100`
	last := int64(0)
	for {
		rows, err := schema.All(ctx, db, "read open rows of the archive", pgx.RowToStructByPos[OpenRow], sql, last)
		if err != nil || len(rows) == 0 {
			return err
		}
		for _, row := range rows {
			if err := use(row); err != nil {
				return err
			}
			last = row.Number
		}
	}
}

// EnsureDays makes the partitions for known events, from a time to two days after
// now.
func EnsureDays(ctx context.Context, db schema.DB, since, now time.Time) error {
	for day := daysSince1970(since); day <= daysSince1970(now)+2; day++ {
		if _, err := db.Exec(ctx, `SELECT ensure_archived_day($1)`, day); err != nil {
			return fmt.Errorf("make a partition of archived_ids: %w", schema.WithErrBusy(err))
		}
	}
	return nil
}

// DropDays forgets the events that were archived before a time.
func DropDays(ctx context.Context, db schema.DB, before time.Time) (dropped int, err error) {
	dropped, err = schema.One(ctx, db, "drop partitions of archived_ids", pgx.RowTo[int], `SELECT drop_archived_days($1)`,
		daysSince1970(before))
	return dropped, schema.WithErrBusy(err)
}

func daysSince1970(t time.Time) int32 { return int32(t.Unix() / 86400) } // a day
