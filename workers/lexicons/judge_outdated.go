package lexicons

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// JudgeOutdated makes Weir judge again exactly those records whose verdicts were
// made with another schema than the one in the stored catalog.
type JudgeOutdated struct {
	river.WorkerDefaults[JudgeOutdatedArgs]
	pool     *pgxpool.Pool
	log      *slog.Logger
	catalogs *catalogs
	patience time.Duration
}

// Work processes the verdicts, one collection after the other. It ends when the
// catalog changes again, because that change has its own job.
func (w *JudgeOutdated) Work(ctx context.Context, job *river.Job[JudgeOutdatedArgs]) error {
	collections, err := verdict.Collections(ctx, w.pool)
	if err != nil {
		return err
	}
	pages := workers.Paging{Pool: w.pool, Queue: jobs.QueueProcess, Priority: workers.PagePriority, Patience: w.patience}
	end, err := workers.EnqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *workers.PagePlace) (river.JobArgs, error) {
		catalog, version, err := w.catalogs.lock(ctx, tx)
		if err != nil || version != job.Args.Catalog {
			return nil, err
		}
		first, _ := slices.BinarySearch(collections, at.After.Collection)
		for _, collection := range collections[first:] {
			after := schema.Key{Collection: collection}
			if collection == at.After.Collection {
				after = schema.Key(at.After)
			}
			keys, err := verdict.Outdated(ctx, tx, collection, catalog.Hash(collection), after, workers.PageRecords)
			if err != nil {
				return nil, err
			}
			if len(keys) > 0 {
				return JudgeRecordsArgs{Batch: jobs.Batch{Records: at.Advance(keys)}}, nil
			}
		}
		return nil, nil
	})
	if err == nil {
		workers.JobLog(ctx, w.log).Info("revalidation_enqueued", "records", end.Count)
	}
	return err
}
