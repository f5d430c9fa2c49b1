package schema

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Key identifies a record.
type Key struct {
	Collection string
	DID        string
	Rkey       string
}

// URI returns the AT-URI of the record.
func (k Key) URI() string { return "at://" + k.DID + "/" + k.Collection + "/" + k.Rkey }

// Write is a record to store if it is newer than the stored revision.
type Write struct {
	Key
	Rev       string
	CID       string
	CreatedAt time.Time
	Record    []byte    // JSON
	Edit      bool      // the author says that the record existed before; the earlier version may have expired
	Expires   time.Time // when the record is deleted, see Expirations; zero: never
}

// Stored is a record that a transaction stored.
type Stored struct {
	Key
	Fresh  bool   // nothing was stored under the key, and the event is no edit: no projection has rows of it
	Record []byte // JSON; nil unless Fresh
}

// NotFresh returns records of which a projection may have rows.
func NotFresh(keys []Key) []Stored {
	all := make([]Stored, len(keys))
	for i := range keys {
		all[i].Key = keys[i]
	}
	return all
}

// Deletion removes a record and leaves a tombstone.
type Deletion struct {
	Key
	Rev     string
	At      time.Time
	Lasting bool // the tombstone never expires
}

// Newer reports whether a deletion of the same record replaces another one: it has a later
// revision, or the same one and a tombstone that stays longer.
func (d Deletion) Newer(other Deletion) bool {
	if d.Rev != other.Rev {
		return d.Rev > other.Rev
	}
	return !other.Lasting && (d.Lasting || d.At.After(other.At))
}

// Status is the status of an account event.
type Status struct {
	DID    string
	Status string
	At     time.Time
	Sent   time.Time // by the server; not before At
}

// InvalidHandle is what the network calls an account without a valid handle.
const InvalidHandle = "handle.invalid"

// Handle is the handle of an identity event, or InvalidHandle; empty if the event has none.
type Handle struct {
	DID    string
	Handle string
	At     time.Time
	Early  bool // the event precedes the account's records of the batch, which do not make it known
}

// Batch is everything that one commit of a stream writes. It has at most one Write
// and one Deletion per key, and at most one Status and one Handle per DID. Each
// slice is sorted by its key, so that concurrent transactions lock rows in the same
// order.
type Batch struct {
	Writes      []Write
	Deletions   []Deletion
	Statuses    []Status
	Handles     []Handle
	DeadLetters []DeadLetter
	Retried     []int64 // ids of the dead letters whose input the batch contains: the commit marks them retried
	Gap         *Gap
	Position    Position

	Erasures []Erasure // at most one per DID, sorted

	Seen [][16]byte // IDs of the events: no other stream stores them again

	Chained        []ChainedCommit  // commits in the order of the stream, if their chains are verified
	Desynchronized []Desynchronized // accounts that must be compared with their repositories

	OnCommit CommitHook // of a feature; nil: none

	Committer
	applied
}

// Committer is what the program that commits a batch knows.
type Committer struct {
	Projections Projections // rows of deleted records are deleted from their tables
	Hooks       []Hook      // of features
	Exclusive   bool        // another stream may have the same accounts: its commits wait for this one
	Careful     bool        // some of the records are probably stored
}

// applied is set by Apply.
type applied struct {
	Resyncs  []Resync     // those of Desynchronized that need a job
	replaced map[Key]bool // the records that replaced an earlier revision
}

// Stored returns the records for the keys that Apply returned.
func (b *Batch) Stored(keys []Key) []Stored {
	all := make([]Stored, len(keys))
	for i, next := 0, 0; i < len(keys); i, next = i+1, next+1 {
		all[i].Key = keys[i]
		found := next < len(b.Writes) && b.Writes[next].Key == keys[i]
		if !found { // not every record is newer than the stored one
			next, found = slices.BinarySearchFunc(b.Writes, keys[i], func(w Write, k Key) int { return w.Compare(k) })
		}
		// after a deletion of a record that has expired, projections may still have its rows
		_, deleted := slices.BinarySearchFunc(b.Deletions, keys[i], func(d Deletion, k Key) int { return d.Compare(k) })
		if found && !deleted && !b.Writes[next].Edit && !b.replaced[keys[i]] {
			all[i].Fresh, all[i].Record = true, b.Writes[next].Record
		}
	}
	return all
}

// copyAtLeast is the number of writes from which a COPY is faster than an INSERT,
// despite its round trips.
const copyAtLeast = 64

// Apply writes a batch, fenced by the lease. It returns the keys of the records
// that it wrote: those newer than the stored revisions. With the zero Lease, which
// retries of dead letters use, it moves no position, and only the revisions decide
// what is written.
//
// A careful or small batch takes one round trip. Other batches use COPY, which
// fails if one of the records is stored. Apply then returns ErrStored: apply the
// batch again with Careful set. It returns ErrFenced if the lease is lost. Roll the
// transaction back after any error.
func (b *Batch) Apply(ctx context.Context, tx pgx.Tx, lease Lease) (written []Key, err error) {
	copying := !b.Careful && len(b.Writes) >= copyAtLeast
	deleted := true
	q := &pgx.Batch{}
	how := shared
	if b.Exclusive || lease == (Lease{}) {
		how = exclusively
	}
	b.accounts().queueLocks(q, how)
	if lease != (Lease{}) {
		b.queueAdvance(q, lease)
	}
	b.queueErased(q)
	b.queueAccounts(q) // the statuses decide what is written
	b.queueErasures(q) // and so do these
	b.queueTombstones(q)
	b.queueHooks(q)
	if copying {
		b.queueDeleted(q, &deleted)
		(&Batch{Deletions: b.Deletions}).queueWrites(q, &written) // locks the deleted rows; the copied records are not stored yet
	} else {
		b.queueWrites(q, &written)
	}
	b.queueDeletions(q, tx)
	for i := range b.DeadLetters {
		b.DeadLetters[i].queue(q, lease.Stream)
	}
	b.queueSettled(q)
	if len(b.Retried) > 0 {
		q.Queue(markRetried, b.Retried)
	}
	if b.Gap != nil {
		b.Gap.queue(q, lease.Stream)
	}
	QueueSeen(q, b.Seen)
	b.queueExpirations(q)
	var broken []Desynchronized
	var compared []comparedWrite
	b.queueChained(q, &broken)
	b.queueCompared(q, &compared)
	b.Resyncs = nil
	b.queueDesynchronized(q, b.Desynchronized)
	var then func(context.Context, pgx.Tx) error
	if b.OnCommit != nil {
		then = b.OnCommit(q, lease)
	}
	err = tx.SendBatch(ctx, q).Close()
	if err == nil && then != nil {
		err = then(ctx, tx)
	}
	switch {
	case err != nil || !copying:
	case deleted && len(b.Deletions) > 0:
		err = ErrStored // the deletions are locked, the writes are not: the order would be wrong
	case deleted:
		q := &pgx.Batch{}
		b.queueWrites(q, &written)
		err = tx.SendBatch(ctx, q).Close()
	default:
		written, err = b.copyWrites(ctx, tx)
	}
	if broken = append(broken, b.returned(compared, written)...); err == nil && len(broken) > 0 {
		q := &pgx.Batch{}
		b.queueDesynchronized(q, broken)
		err = tx.SendBatch(ctx, q).Close()
	}
	if err == nil {
		err = b.deleteByID(ctx, tx)
	}
	if err == nil {
		err = b.erase(ctx, tx)
	}
	if err != nil {
		if Classify(err) == Fenced {
			err = errors.Join(ErrFenced, err)
		}
		return nil, fmt.Errorf("commit to stream %s: %w", lease.Stream, err)
	}
	return written, nil
}

func (b *Batch) queueAdvance(q *pgx.Batch, lease Lease) {
	const sql = `SELECT advance_stream($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`
	p := b.Position
	anchors, seqs := p.Anchors.columns()
	q.Queue(sql, lease.Stream, lease.Epoch, lease.TTL, p.Host, p.CursorKind, p.Cursor, p.Anchor,
		NullTime(p.LastEvent), NullTime(p.CaughtUp), p.FilterHash, anchors, NullTime(p.WrittenAt), seqs)
}

// queueWrites writes the records and locks those that will be deleted, in one pass
// ordered by key: the order in which workers lock them.
func (b *Batch) queueWrites(q *pgx.Batch, written *[]Key) {
	// A write that is not newer than the record or its tombstone was delivered before, and
	// changes nothing. The same holds for a write of a deleted account, until the account is
	// active again, and for one that is not newer than its account's erasure.
	write := `
INSERT INTO records AS r (collection, did, rkey, rev, cid, created_at, indexed_at, record)
SELECT w.collection, w.did, w.rkey, w.rev, w.cid, w.created_at, now(), w.record
FROM (
    SELECT w.*
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::jsonb[], $8::boolean[])
         WITH ORDINALITY AS w (collection, did, rkey, rev, cid, created_at, record, goes, n)
    WHERE NOT EXISTS (
        SELECT FROM tombstones AS t
        WHERE ` + DeletesFrom(`w.collection`) + ` AND t.did = w.did AND t.rkey = w.rkey AND t.rev >= w.rev AND NOT w.goes
    )
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND (a.status = 'deleted' OR a.erased_rev >= w.rev) AND NOT w.goes)
    ORDER BY w.n
) AS w `
	// A row to be deleted is locked here, and not inserted.
	const lock = `
WHERE CASE WHEN w.goes THEN (
    SELECT count(*) FROM (
        SELECT FROM records AS r
        WHERE r.collection = w.collection AND r.did = w.did AND r.rkey = w.rkey AND r.rkey BETWEEN $9 AND $10
        LIMIT 1
        FOR UPDATE
    ) AS r) < 0 ELSE true END `
	const newer = `
ON CONFLICT (collection, did, rkey) DO UPDATE
SET rev        = excluded.rev,
    cid        = excluded.cid,
    created_at = excluded.created_at,
    record     = excluded.record
WHERE excluded.rev > r.rev
RETURNING collection, did, rkey, r.indexed_at <> now()`
	n := len(b.Writes) + len(b.Deletions)
	if n == 0 {
		return
	}
	args := b.writeColumns(n)
	sql := write + newer
	if len(b.Deletions) > 0 {
		from, to := b.deletedRkeys()
		sql, args = write+lock+newer, append(args, from, to)
	}
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		*written, b.replaced = make([]Key, 0, len(b.Writes)), nil
		var k Key
		var replaced bool // indexed_at is that of the first revision
		_, err := pgx.ForEachRow(rows, []any{&k.Collection, &k.DID, &k.Rkey, &replaced}, func() error {
			if *written = append(*written, k); replaced {
				if b.replaced == nil {
					b.replaced = map[Key]bool{}
				}
				b.replaced[k] = true
			}
			return nil
		})
		return err
	})
}

// writeColumns merges the writes and the keys of the deletions, ordered by key, into
// columns.
func (b *Batch) writeColumns(n int) []any {
	keys := newKeyColumns(n)
	rev, cid := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	createdAt := make(pgtype.FlatArray[time.Time], n)
	record := make(pgtype.FlatArray[json.RawMessage], n)
	goes := make(pgtype.FlatArray[bool], n)
	w, d := b.Writes, b.Deletions
	for i := range n {
		if goes[i] = len(w) == 0 || len(d) > 0 && d[0].Compare(w[0].Key) <= 0; goes[i] {
			keys.set(i, d[0].Key)
			record[i] = json.RawMessage(`null`)
			d = d[1:]
			continue
		}
		keys.set(i, w[0].Key)
		rev[i], cid[i], createdAt[i], record[i] = w[0].Rev, w[0].CID, w[0].CreatedAt, w[0].Record
		w = w[1:]
	}
	return []any{keys.collection, keys.did, keys.rkey, rev, cid, createdAt, record, goes}
}

// StoreRecords writes records that did not come from a stream, by the same rules: a record
// must be newer than the stored revision and its tombstone. It returns the keys of the records
// that it wrote. Call it before the transaction locks anything else.
func StoreRecords(ctx context.Context, tx pgx.Tx, writes []Write) (written []Key, err error) {
	b := Batch{Writes: sortedWrites(writes)}
	q := &pgx.Batch{}
	b.accounts().queueLocks(q, exclusively)
	b.queueWrites(q, &written)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return nil, fmt.Errorf("store records: %w", err)
	}
	return written, nil
}

// sortedWrites returns the writes in the order in which rows are locked, one per key: a page
// may list a pinned post twice.
func sortedWrites(writes []Write) []Write {
	writes = slices.Clone(writes)
	slices.SortStableFunc(writes, func(a, b Write) int { return a.Compare(b.Key) })
	return slices.CompactFunc(writes, func(a, b Write) bool { return a.Key == b.Key })
}

// queueDeleted checks whether a record has a tombstone, or an account that was deleted or
// erased. LATERAL and LIMIT force one index lookup per record, regardless of the table size
// that the planner assumes.
func (b *Batch) queueDeleted(q *pgx.Batch, deleted *bool) {
	sql := `
SELECT EXISTS (
    SELECT FROM unnest($1::text[], $2::text[], $3::text[]) AS w (collection, did, rkey)
    CROSS JOIN LATERAL (
        SELECT FROM tombstones AS t
        WHERE ` + DeletesFrom(`w.collection`) + ` AND t.did = w.did AND t.rkey = w.rkey
        LIMIT 1
    ) AS t
) OR EXISTS (SELECT FROM accounts AS a WHERE a.did = ANY ($4::text[]) AND (a.status = 'deleted' OR a.erased_rev IS NOT NULL))`
	keys := newKeyColumns(len(b.Writes))
	for i := range b.Writes {
		keys.set(i, b.Writes[i].Key)
	}
	accounts := slices.Compact(slices.Clone(keys.did)) // the keys are sorted
	q.Queue(sql, keys.collection, keys.did, keys.rkey, accounts).QueryRow(func(row pgx.Row) error { return row.Scan(deleted) })
}

// copyWrites copies records that have no tombstone. It returns ErrStored if one of them is
// stored.
func (b *Batch) copyWrites(ctx context.Context, tx pgx.Tx) ([]Key, error) {
	columns := []string{"collection", "did", "rkey", "rev", "cid", "created_at", "record"}
	row := make([]any, len(columns))
	source := pgx.CopyFromSlice(len(b.Writes), func(i int) ([]any, error) {
		w := &b.Writes[i]
		row[0], row[1], row[2], row[3], row[4], row[5], row[6] = w.Collection, w.DID, w.Rkey, w.Rev, w.CID, w.CreatedAt, json.RawMessage(w.Record)
		return row, nil
	})
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"records"}, columns, source); err != nil {
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && pgErr.Code == "23505" {
			err = errors.Join(ErrStored, err)
		}
		return nil, err
	}
	written := make([]Key, len(b.Writes))
	for i := range b.Writes {
		written[i] = b.Writes[i].Key
	}
	return written, nil
}

// keyColumns is a list of keys as one array per column, for unnest.
type keyColumns struct{ collection, did, rkey pgtype.FlatArray[string] }

func newKeyColumns(n int) keyColumns {
	return keyColumns{make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)}
}

func (c keyColumns) set(i int, k Key) {
	c.collection[i], c.did[i], c.rkey[i] = k.Collection, k.DID, k.Rkey
}
