package schema_test

import (
	"context"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

func tid(at time.Time) string { return syntax.NewTID(at.UnixMicro(), 0).String() }

// store stores posts of a listing.
func store(t *testing.T, pool *pgxpool.Pool, writes ...schema.Write) (written []schema.Key) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		written, err = schema.StoreRecords(t.Context(), tx, writes)
		return err
	}))
	return written
}

// beside starts a transaction, and returns when it has ended or waits for a lock of holder.
func beside(t *testing.T, pool *pgxpool.Pool, holder pgx.Tx, do func(ctx context.Context, tx pgx.Tx) error) <-chan error {
	t.Helper()
	ended, answer := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() {
		defer cancel()
		answer <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return do(ctx, tx) })
		close(ended)
	}()
	eventually.True(t, func() bool {
		select {
		case <-ended:
			return true
		default:
			return schematest.Blocks(t, pool, holder)
		}
	}, 10*time.Millisecond)
	return answer
}

// TestDeletionIsNeverLostBesideAnotherWriter runs two overlapping transactions:
// one writes a record and the other deletes it. Neither sees the other's row.
func TestDeletionIsNeverLostBesideAnotherWriter(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	type transaction func(ctx context.Context, tx pgx.Tx, lease schema.Lease) error
	batch := func(b schema.Batch, replayed bool) transaction {
		return func(ctx context.Context, tx pgx.Tx, lease schema.Lease) error {
			if replayed {
				lease = schema.Lease{}
			}
			_, err := b.Apply(ctx, tx, lease)
			return err
		}
	}
	listed := post("a", schema.ListedRev)
	page := func(ctx context.Context, tx pgx.Tx, _ schema.Lease) error {
		_, err := schema.StoreRecords(ctx, tx, []schema.Write{listed})
		return err
	}
	mended := func(ctx context.Context, tx pgx.Tx, _ schema.Lease) error {
		_, err := schema.RepairRecords(ctx, tx, []schema.Write{post("a", "3")})
		return err
	}
	repaired := func(ctx context.Context, tx pgx.Tx, _ schema.Lease) error {
		return schema.DeleteRecords(ctx, tx, []schema.Deletion{deletion("a", "4")}, madeProjection())
	}
	created := schema.Batch{Writes: []schema.Write{post("a", "3")}}
	copied := schema.Batch{Writes: append([]schema.Write{post("a", "3")}, many("3")...)}
	deleted := schema.Batch{Deletions: []schema.Deletion{deletion("a", "4")}}
	recorded := deleted
	recorded.Exclusive = true
	for name, pair := range map[string][2]transaction{
		"a page of a backfill, the stream's deletion":  {page, batch(deleted, false)},
		"a retried dead letter, the stream's deletion": {batch(created, true), batch(deleted, false)},
		"a repair, the stream's deletion":              {mended, batch(deleted, false)},
		"the stream's event, a repair's deletion":      {batch(created, false), repaired},
		"the stream's copy, a retried deletion":        {batch(copied, false), batch(deleted, true)},
		"a page of a backfill, a recording's deletion": {page, batch(recorded, false)},
	} {
		for order, pair := range map[string][2]transaction{"": pair, ", the other way round": {pair[1], pair[0]}} {
			t.Run(name+order, func(t *testing.T) {
				t.Parallel()
				pool := schematest.New(t)
				lease := take(t, pool, "me")
				first, err := pool.Begin(t.Context())
				require.NoError(t, err)
				defer first.Rollback(context.Background()) // committed, or the test has failed
				require.NoError(t, pair[0](t.Context(), first, lease))
				second := beside(t, pool, first, func(ctx context.Context, tx pgx.Tx) error { return pair[1](ctx, tx, lease) })
				require.NoError(t, first.Commit(t.Context()))
				require.NoError(t, <-second)
				require.NotContains(t, revs(t, pool), "a", "a record with a newer tombstone is stored")
			})
		}
	}
}

// TestStreamsDoNotWaitForEachOther covers streams that follow different
// accounts.
func TestStreamsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	other, ok, err := schema.TakeLease(t.Context(), pool, "other", "wire", "me", ttl)
	require.NoError(t, err)
	require.True(t, ok)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // the test is over
	_, err = (&schema.Batch{Writes: []schema.Write{post("a", "1")}}).Apply(t.Context(), tx, lease)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = apply(ctx, pool, other, schema.Batch{Writes: []schema.Write{post("b", "1")}})
	require.NoError(t, err)
}

// TestEveryWriterLocksInTheOrderOfTheKeys covers a worker that has locked the
// first of two posts, and will lock the second.
func TestEveryWriterLocksInTheOrderOfTheKeys(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(ctx context.Context, tx pgx.Tx, lease schema.Lease) error{
		"a batch that deletes the second and edits the first": func(ctx context.Context, tx pgx.Tx, lease schema.Lease) error {
			b := schema.Batch{Deletions: []schema.Deletion{deletion("z", "3")}, Writes: []schema.Write{post("a", "3")}}
			_, err := b.Apply(ctx, tx, lease)
			return err
		},
		"a batch that deletes both": func(ctx context.Context, tx pgx.Tx, lease schema.Lease) error {
			b := schema.Batch{Deletions: []schema.Deletion{deletion("a", "3"), deletion("z", "3")}}
			_, err := b.Apply(ctx, tx, lease)
			return err
		},
		"a page, which is in the order of the feed": func(ctx context.Context, tx pgx.Tx, _ schema.Lease) error {
			_, err := schema.StoreRecords(ctx, tx, []schema.Write{post("z", "3"), post("a", "3")})
			return err
		},
		"a repair": func(ctx context.Context, tx pgx.Tx, _ schema.Lease) error {
			_, err := schema.RepairRecords(ctx, tx, []schema.Write{post("z", "2"), post("a", "2")})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			lease := take(t, pool, "me")
			_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{post("a", "2"), post("z", "2")}})
			require.NoError(t, err)
			worker, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer worker.Rollback(context.Background()) // committed, or the test has failed
			_, err = schema.LockPosts(t.Context(), worker, []schema.Key{key("a")})
			require.NoError(t, err)
			writer := beside(t, pool, worker, func(ctx context.Context, tx pgx.Tx) error { return write(ctx, tx, lease) })
			_, err = schema.LockPosts(t.Context(), worker, []schema.Key{key("z")})
			require.NoError(t, err)
			require.NoError(t, worker.Commit(t.Context()))
			require.NoError(t, <-writer)
		})
	}
}

// TestBatchWithATombstoneWritesOnlyLockedRows covers a batch that was to be
// copied, which has locked only the rows that it deletes.
func TestBatchWithATombstoneWritesOnlyLockedRows(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	_, err := apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("r042", "5")}})
	require.NoError(t, err)
	_, err = apply(t.Context(), pool, lease, schema.Batch{Writes: many("4"), Deletions: []schema.Deletion{deletion("z", "5")}})
	require.ErrorIs(t, err, schema.ErrStored)
	require.Empty(t, revs(t, pool))
}

// TestListedPostLosesToEveryDeletion shows that this holds even if the clock of
// the author's client, which made the rkey, was ahead.
func TestListedPostLosesToEveryDeletion(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Now()
	listed, gone := tid(now.Add(2*time.Hour)), tid(now.Add(3*time.Hour))
	require.Len(t, store(t, pool, post(listed, schema.ListedRev)), 1)
	_, err := apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion(listed, tid(now)), deletion(gone, tid(now))}})
	require.NoError(t, err)
	require.Empty(t, revs(t, pool))
	require.Empty(t, store(t, pool, post(gone, schema.ListedRev), post(listed, schema.ListedRev)),
		"posts of an outdated page must not be stored after their deletion")

	// The listed post also loses to the stream's version, in either order.
	require.Len(t, store(t, pool, post("a", schema.ListedRev)), 1)
	written, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{post("a", tid(now))}})
	require.NoError(t, err)
	require.Len(t, written, 1)
	require.Empty(t, store(t, pool, post("a", schema.ListedRev)))
	require.Equal(t, map[string]string{"a": tid(now)}, revs(t, pool))
}
