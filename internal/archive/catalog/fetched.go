package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// StreamFetched is the stream name under which Weir archives what it fetched from servers, as
// far as that has changed the tables. A stream may bring the same records, before or after.
const StreamFetched = "fetched"

// fetchedEvent is an archived event.
type fetchedEvent struct {
	DID       string          `json:"did"`
	TimeUS    int64           `json:"time_us"`
	Kind      string          `json:"kind"`
	Commit    *fetchedCommit  `json:"commit,omitempty"`
	Account   *fetchedAccount `json:"account,omitempty"`
	CreatedAt *time.Time      `json:"created_at,omitempty"` // as stored; not part of Jetstream's format
}

type fetchedCommit struct {
	Rev        string          `json:"rev"`
	Operation  string          `json:"operation"`
	Collection string          `json:"collection"`
	Rkey       string          `json:"rkey"`
	Record     json.RawMessage `json:"record,omitempty"`
	CID        string          `json:"cid,omitempty"`
}

type fetchedAccount struct {
	Active bool      `json:"active"`
	DID    string    `json:"did"`
	Seq    int64     `json:"seq"`
	Status string    `json:"status,omitempty"`
	Time   time.Time `json:"time"`
}

// The operations of fetched events.
const (
	fetchedWrite    = "create"
	fetchedDeletion = "delete"
)

// fetchedEvents returns what was fetched as events. now is the date of the writes.
func fetchedEvents(f schema.Fetched, now time.Time) []fetchedEvent {
	events := make([]fetchedEvent, 0, len(f.Writes)+len(f.Deletions)+len(f.Statuses))
	for _, w := range f.Writes {
		created := w.CreatedAt.UTC()
		events = append(events, fetchedEvent{DID: w.DID, TimeUS: now.UnixMicro(), Kind: "commit", CreatedAt: &created,
			Commit: &fetchedCommit{Rev: w.Rev, Operation: fetchedWrite, Collection: w.Collection, Rkey: w.Rkey, Record: w.Record, CID: w.CID}})
	}
	for _, d := range f.Deletions {
		events = append(events, fetchedEvent{DID: d.DID, TimeUS: d.At.UnixMicro(), Kind: "commit",
			Commit: &fetchedCommit{Rev: d.Rev, Operation: fetchedDeletion, Collection: d.Collection, Rkey: d.Rkey}})
	}
	for _, s := range f.Statuses {
		events = append(events, fetchedEvent{DID: s.DID, TimeUS: s.At.UnixMicro(), Kind: "account",
			Account: &fetchedAccount{DID: s.DID, Active: s.Status == "active", Status: s.Status, Time: s.At.UTC()}})
	}
	return events
}

// id returns the event's ID. A server may list two versions of a record under one revision.
// What was fetched before the account was forgotten gets another ID, because the archive no
// longer has it.
func (e *fetchedEvent) id(forgotten map[string]time.Time) archive.ID {
	if c := e.Commit; c != nil {
		parts := []string{"fetched", e.DID, c.Collection, c.Rkey, c.Rev, c.Operation, c.CID}
		if until, ok := forgotten[e.DID]; ok {
			parts = append(parts, until.UTC().Format(time.RFC3339Nano))
		}
		return archive.NewID(parts...)
	}
	return archive.NewID("fetched account", e.DID, e.Account.Status, e.Account.Time.Format(time.RFC3339Nano))
}

// day returns the day of the event's revision, in days since 1970, or 0 if the revision names
// none.
func (e *fetchedEvent) day() int32 {
	if e.Commit == nil || e.Commit.Rev == schema.ListedRev {
		return 0
	}
	at, ok := schema.TIDTime(e.Commit.Rev)
	if !ok {
		return 0
	}
	return daysSince1970(at)
}

// archiveRow returns the row that events add to the archive.
func archiveRow(ctx context.Context, db schema.DB, events []fetchedEvent) (*Row, error) {
	dids := make([]string, len(events))
	for i := range events {
		dids[i] = events[i].DID
	}
	const sql = `SELECT did, until FROM forgotten WHERE did = ANY ($1)`
	type account struct {
		DID   string
		Until time.Time
	}
	found, err := schema.All(ctx, db, "look up forgotten accounts", pgx.RowToStructByPos[account], sql, dids)
	if err != nil {
		return nil, err
	}
	forgotten := make(map[string]time.Time, len(found))
	for _, f := range found {
		forgotten[f.DID] = f.Until
	}
	r := &Row{Units: make([]Unit, len(events))}
	for i := range events {
		raw, err := json.Marshal(&events[i])
		if err != nil {
			return nil, fmt.Errorf("archive what was fetched: %w", err)
		}
		r.Units[i] = Unit{Raw: raw, Events: []Event{{ID: events[i].id(forgotten)}}, Day: events[i].day()}
	}
	return r, nil
}

// archiveFetched adds fetched events to the archive.
func archiveFetched(ctx context.Context, tx pgx.Tx, wire string, f schema.Fetched) error {
	now, err := schema.Now(ctx, tx)
	if err != nil {
		return err
	}
	row, err := archiveRow(ctx, tx, fetchedEvents(f, now))
	if err != nil || len(row.Units) == 0 {
		return err
	}
	row.Wire = wire
	row.Date(f.Writes)
	row.Pack()
	return row.store(ctx, tx, schema.Lease{Stream: StreamFetched})
}

// RestoreFetched stores archived fetched events in order, as they were first stored, if stores
// returns true for their collection. Events fetched before reach are not recorded as known. In
// each transaction it calls also with the records that have changed. Restoring twice changes
// nothing the second time.
func RestoreFetched(
	ctx context.Context, pool *pgxpool.Pool, projections schema.Projections, stores func(collection string) bool, reach time.Time,
	records [][]byte, also func(context.Context, pgx.Tx, []schema.Key) error,
) error {
	events := make([]fetchedEvent, 0, len(records))
	for _, record := range records {
		e, err := parseFetched(record)
		if err != nil {
			return err
		}
		if e.Commit == nil || stores(e.Commit.Collection) {
			events = append(events, e)
		}
	}
	for len(events) > 0 {
		run := 1
		for run < len(events) && events[run].sort() == events[0].sort() {
			run++
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			changed, err := restoreRun(ctx, tx, projections, events[:run], reach)
			if err == nil && len(changed) > 0 {
				err = also(ctx, tx, changed)
			}
			return err
		}); err != nil {
			return err
		}
		events = events[run:]
	}
	return nil
}

// FetchedUnits returns the units that make archived fetched events known.
func FetchedUnits(ctx context.Context, db schema.DB, records [][]byte) ([]Unit, error) {
	events := make([]fetchedEvent, len(records))
	for i, record := range records {
		var err error
		if events[i], err = parseFetched(record); err != nil {
			return nil, err
		}
	}
	row, err := archiveRow(ctx, db, events)
	if err != nil {
		return nil, err
	}
	return row.Units, nil
}

// parseFetched reads an archived event.
func parseFetched(record []byte) (fetchedEvent, error) {
	var e fetchedEvent
	if err := json.Unmarshal(record, &e); err != nil {
		return e, errors.Join(archive.ErrCorrupt, err)
	}
	if (e.Commit == nil) == (e.Account == nil) || e.Commit != nil && e.Commit.Operation != fetchedWrite &&
		e.Commit.Operation != fetchedDeletion {
		return e, fmt.Errorf("%w: an event of the kind %q cannot have been fetched", archive.ErrCorrupt, e.Kind)
	}
	return e, nil
}

// sort returns the group in which the event is restored: writes, deletions or statuses.
func (e *fetchedEvent) sort() string {
	if e.Commit != nil {
		return e.Commit.Operation
	}
	return e.Kind
}

// restoreRun restores events of one sort, and records those fetched since reach as known.
func restoreRun(
	ctx context.Context, tx pgx.Tx, projections schema.Projections, events []fetchedEvent, reach time.Time,
) (changed []schema.Key, err error) {
	var writes []schema.Write
	var deletions []schema.Deletion
	b := schema.Batch{Committer: schema.Committer{Hooks: []schema.Hook{Hook("")}}}
	for i := range events {
		e := &events[i]
		if e.Commit == nil {
			b.Statuses = append(b.Statuses, schema.Status{DID: e.DID, Status: e.Account.Status, At: e.Account.Time, Sent: e.Account.Time})
			continue
		}
		key := schema.Key{Collection: e.Commit.Collection, DID: e.DID, Rkey: e.Commit.Rkey}
		if e.Commit.Operation == fetchedDeletion {
			deletions = append(deletions, schema.Deletion{Key: key, Rev: e.Commit.Rev, At: time.UnixMicro(e.TimeUS).UTC()})
			continue
		}
		w := schema.Write{Key: key, Rev: e.Commit.Rev, CID: e.Commit.CID, Record: e.Commit.Record}
		if e.CreatedAt != nil {
			w.CreatedAt = *e.CreatedAt
		}
		writes = append(writes, w)
	}
	switch {
	case len(writes) > 0:
		changed, err = schema.RepairRecords(ctx, tx, lastOf(writes, func(w schema.Write) schema.Key { return w.Key }))
	case len(deletions) > 0:
		deletions = lastOf(deletions, func(d schema.Deletion) schema.Key { return d.Key })
		slices.SortFunc(deletions, func(a, b schema.Deletion) int { return a.Compare(b.Key) })
		if err = schema.DeleteRecords(ctx, tx, deletions, projections, Hook("")); err == nil {
			changed, err = projections.Deleted(deletions), projections.Lock(ctx, tx) // the projections of other programs would keep their rows
		}
	default:
		b.Statuses = lastOf(b.Statuses, func(s schema.Status) schema.Key { return schema.Key{DID: s.DID} })
		slices.SortFunc(b.Statuses, func(a, b schema.Status) int { return schema.Key{DID: a.DID}.Compare(schema.Key{DID: b.DID}) })
		_, err = b.Apply(ctx, tx, schema.Lease{})
	}
	if err != nil {
		return nil, err
	}
	events = slices.DeleteFunc(events, func(e fetchedEvent) bool { return time.UnixMicro(e.TimeUS).Before(reach) })
	row, err := archiveRow(ctx, tx, events)
	if err != nil || len(events) == 0 {
		return changed, err
	}
	row.IDsOnly = true
	return changed, row.store(ctx, tx, schema.Lease{})
}

// lastOf returns the last element of each key, in the order in which the keys first appear.
func lastOf[T any](all []T, key func(T) schema.Key) []T {
	at := make(map[schema.Key]int, len(all))
	last := all[:0:0]
	for _, v := range all {
		if i, ok := at[key(v)]; ok {
			last[i] = v
			continue
		}
		at[key(v)] = len(last)
		last = append(last, v)
	}
	return last
}

// store records the events as known and stores the row, outside a batch of statements.
func (r *Row) store(ctx context.Context, tx pgx.Tx, lease schema.Lease) error {
	var fresh []pgtype.UUID
	q := &pgx.Batch{}
	r.queue(q, lease, &fresh)
	err := tx.SendBatch(ctx, q).Close()
	if err == nil && len(fresh) > 0 {
		err = r.storeFresh(ctx, tx, lease, fresh)
	}
	if err != nil {
		return fmt.Errorf("archive to %s: %w", archivedAs(lease), err)
	}
	return nil
}
