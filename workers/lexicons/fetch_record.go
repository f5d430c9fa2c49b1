package lexicons

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// FetchRecord requests a record that parked records wait for from its account's
// server, and stores it. If the server does not have it, the parked records become
// dead letters. They are released if the record arrives later.
type FetchRecord struct {
	river.WorkerDefaults[FetchRecordArgs]
	pool        *pgxpool.Pool
	api         *bluesky.Client
	projections schema.Projections
	fetched     workers.Fetched
}

// Work makes one request, however many records wait. A server that fails is asked a
// few more times.
func (w *FetchRecord) Work(ctx context.Context, job *river.Job[FetchRecordArgs]) error {
	key := schema.Key(job.Args.Record)
	at, err := verdict.Targets(ctx, w.pool, []schema.Key{key})
	if err != nil {
		return err
	}
	if at[key] != (verdict.Target{}) { // the record arrived meanwhile, or was deleted
		return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return enqueueDependents(ctx, tx, []schema.Key{key}) })
	}
	problem, asked, err := verdict.GivenUp(ctx, w.pool, key)
	switch {
	case err != nil:
		return err
	case asked:
		return w.giveUp(ctx, key, problem)
	}
	record, err := w.api.Record(ctx, key.DID, key.Collection, key.Rkey)
	failed, ofServer := errors.AsType[*bluesky.Error](err)
	switch {
	case err == nil:
		return w.store(ctx, key, record)
	case !ofServer || ctx.Err() != nil || failed.Class == bluesky.RateLimited,
		failed.Class == bluesky.Transient && job.Attempt < fetchFailures:
		return err
	}
	return w.giveUp(ctx, key, failed.Error())
}

// store stores the record in the same way as one from a listing: records from a
// stream are newer. The jobs of its projections release the records that wait.
func (w *FetchRecord) store(ctx context.Context, key schema.Key, record bluesky.FeedPost) error {
	now, err := schema.LatestTime(ctx, w.pool, time.Now())
	if err != nil {
		return err
	}
	write := schema.Write{
		Key: key, Rev: schema.ListedRev, CID: record.CID, CreatedAt: schema.CreatedAt(record.Record, key.Rkey, now), Record: record.Record,
	}
	stored := 0
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		written, err := w.fetched.Store(ctx, tx, []schema.Write{write}, schema.StoreRecords)
		if stored = len(written); err != nil {
			return err
		}
		return w.projections.Enqueue(river.ClientFromContext[pgx.Tx](ctx), "")(ctx, tx, schema.NotFresh(written), time.Time{})
	})
	switch {
	case err == nil && stored == 0: // the record arrived or was deleted meanwhile
		return workers.Snooze(time.Second)
	case schema.Classify(err) == schema.Data:
		return w.giveUp(ctx, key, err.Error())
	}
	return err
}

// giveUp makes Weir judge the records that wait for a record once more, without it.
func (w *FetchRecord) giveUp(ctx context.Context, key schema.Key, problem string) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := verdict.GiveUp(ctx, tx, key, problem); err != nil {
			return err
		}
		return enqueueDependents(ctx, tx, []schema.Key{key})
	})
}
