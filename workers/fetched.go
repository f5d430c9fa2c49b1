package workers

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// Fetched stores what Weir requests from servers, and tells the features what has changed, in
// one transaction.
type Fetched struct {
	hooks []schema.Hook
}

// Fetched returns how the workers store what they ask for.
func (s Shared) Fetched() Fetched { return Fetched{s.Hooks} }

// changed tells the features what has changed.
func (f Fetched) changed(ctx context.Context, tx pgx.Tx, changes schema.Fetched) error {
	for i := range f.hooks {
		if f.hooks[i].Fetched == nil {
			continue
		}
		if err := f.hooks[i].Fetched(ctx, tx, changes); err != nil {
			return err
		}
	}
	return nil
}

// storeRecords is schema.StoreRecords or schema.RepairRecords.
type storeRecords func(ctx context.Context, tx pgx.Tx, writes []schema.Write) ([]schema.Key, error)

// Store stores records and returns the keys of those that it wrote.
func (f Fetched) Store(ctx context.Context, tx pgx.Tx, writes []schema.Write, store storeRecords) (written []schema.Key, err error) {
	if written, err = store(ctx, tx, writes); err != nil || len(written) == 0 {
		return written, err
	}
	return written, f.changed(ctx, tx, schema.Fetched{Writes: schema.Written(writes, written)})
}

// remove deletes records.
func (f Fetched) remove(ctx context.Context, tx pgx.Tx, deletions []schema.Deletion, projections schema.Projections) error {
	if err := schema.DeleteRecords(ctx, tx, deletions, projections, f.hooks...); err != nil {
		return err
	}
	return f.changed(ctx, tx, schema.Fetched{Deletions: deletions})
}

// bury stores tombstones of records that are not stored.
func (f Fetched) bury(ctx context.Context, tx pgx.Tx, deletions []schema.Deletion) error {
	if err := schema.BuryRecords(ctx, tx, deletions); err != nil {
		return err
	}
	return f.changed(ctx, tx, schema.Fetched{Deletions: deletions})
}

// markDeleted marks an account as deleted.
func (f Fetched) markDeleted(ctx context.Context, pool *pgxpool.Pool, did string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		deleted, err := schema.MarkDeleted(ctx, tx, did, f.hooks...)
		if err != nil {
			return err
		}
		return f.changed(ctx, tx, schema.Fetched{Statuses: []schema.Status{deleted}})
	})
}
