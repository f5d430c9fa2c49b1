package schema

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Hook is what a feature does in transactions of the core. Fields may be empty.
type Hook struct {
	// Erased queues what follows from the erasures of a batch, names of the accounts included. It comes before the
	// statements that write accounts.
	Erased func(q *pgx.Batch, b *Batch)
	// Deleted queues what follows from the deletions, statuses and erasures of a batch. It comes after the
	// statements that store these, because an event older than the stored state changes nothing.
	Deleted func(q *pgx.Batch, b *Batch)
	// Fetched is called in the transaction that stores what was fetched, after the locks of the accounts are
	// taken, so that what it writes about one account is in the order in which it was stored.
	Fetched func(ctx context.Context, tx pgx.Tx, f Fetched) error
	// Purging is an SQL condition: at $4, the purge of the deleted account $1 must not end yet.
	Purging string
}

// CommitHook queues what a feature adds to a commit, as the last statements of the batch. then, which may be
// nil, runs after them.
type CommitHook func(q *pgx.Batch, lease Lease) (then func(context.Context, pgx.Tx) error)

// Fetched is what was fetched from servers, as far as it has changed the tables. A stream may bring the same
// records, before or after.
type Fetched struct {
	Writes    []Write
	Deletions []Deletion
	Statuses  []Status
}

// SnapshotTable is a table whose content no event describes.
type SnapshotTable struct {
	Name string
	Read string // the query of its rows, of one jsonb each
	// Restore adds the rows to a rebuilt database, where all other records are processed. A second time changes nothing.
	Restore func(ctx context.Context, pool *pgxpool.Pool, rows []json.RawMessage) error
}

// Written returns the first write of each of these keys.
func Written(writes []Write, keys []Key) []Write {
	wrote := make(map[Key]bool, len(keys))
	for _, k := range keys {
		wrote[k] = true
	}
	written := make([]Write, 0, len(keys))
	for _, w := range sortedWrites(writes) {
		if wrote[w.Key] {
			written = append(written, w)
		}
	}
	return written
}

// queueHooks queues what features do about the deletions, statuses and erasures.
func (b *Batch) queueHooks(q *pgx.Batch) {
	for i := range b.Hooks {
		if b.Hooks[i].Deleted != nil {
			b.Hooks[i].Deleted(q, b)
		}
	}
}
