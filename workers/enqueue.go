package workers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// inserter is the part of a River client that enqueues.
type inserter interface {
	InsertManyTx(ctx context.Context, tx pgx.Tx, params []river.InsertManyParams) ([]*rivertype.JobInsertResult, error)
}

// insertChunk is how many jobs one statement inserts.
const insertChunk = 1000

// EnqueueBackfills enqueues backfills of the accounts' feeds back to since. They
// start at the time at, by the database's clock, or immediately if that is zero. If
// an account has an unfinished job, that job gets the better priority, the earlier
// start and the wider window in the same transaction. It returns the number of new
// jobs.
func EnqueueBackfills(
	ctx context.Context, tx pgx.Tx, client inserter, dids []string, since time.Time, priority int, at time.Time,
) (int, error) {
	dids = slices.Compact(slices.Sorted(slices.Values(dids))) // concurrent inserts must lock the keys in one order
	added := 0
	for chunk := range slices.Chunk(dids, insertChunk) {
		for len(chunk) > 0 {
			left, n, err := insertBackfills(ctx, tx, client, chunk, since, priority, at)
			if err != nil {
				return added, err
			}
			added += n
			chunk = left
		}
	}
	return added, nil
}

// insertBackfills inserts or promotes jobs. It returns the accounts whose job
// ended in between: they must be inserted again.
func insertBackfills(
	ctx context.Context, tx pgx.Tx, client inserter, dids []string, since time.Time, priority int, at time.Time,
) (again []string, added int, err error) {
	params := make([]river.InsertManyParams, len(dids))
	for i, did := range dids {
		params[i] = river.InsertManyParams{
			Args:       jobs.BackfillAccount{DID: did, Since: since, NotBefore: at.UTC()},
			InsertOpts: &river.InsertOpts{Priority: priority, ScheduledAt: at, Tags: jobs.Reason(priority)},
		}
	}
	results, err := client.InsertManyTx(ctx, tx, params)
	if err != nil {
		return nil, 0, fmt.Errorf("enqueue %s: %w", jobs.BackfillAccount{}.Kind(), err)
	}
	didOf := map[int64]string{}
	for i, r := range results {
		if r.UniqueSkippedAsDuplicate {
			didOf[r.Job.ID] = dids[i]
		} else {
			added++
		}
	}
	if len(didOf) == 0 {
		return nil, added, nil
	}
	if at.IsZero() {
		if at, err = schema.Now(ctx, tx); err != nil {
			return nil, added, err
		}
	}
	alive, err := schema.PromoteBackfills(ctx, tx, keysOf(didOf), priority, jobs.Reasons(), since, at)
	if err != nil {
		return nil, added, err
	}
	for id, did := range didOf {
		if !slices.Contains(alive, id) {
			again = append(again, did)
		}
	}
	slices.Sort(again)
	return again, added, nil
}

func keysOf(m map[int64]string) []int64 {
	ids := make([]int64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
