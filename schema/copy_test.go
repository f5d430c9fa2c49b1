package schema_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// many are enough writes for a batch to be copied.
func many(rev string) []schema.Write {
	writes := make([]schema.Write, 100)
	for i := range writes {
		writes[i] = post(fmt.Sprintf("r%03d", i), rev)
	}
	return writes
}

// TestLargeBatchOfNewRecordsIsCopied, and a batch with a stored record is
// refused, to be applied carefully.
func TestLargeBatchOfNewRecordsIsCopied(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	written, err := apply(t.Context(), pool, lease, schema.Batch{Writes: many("2"), Position: schema.Position{Cursor: 1}})
	require.NoError(t, err)
	require.Len(t, written, 100)
	require.Len(t, revs(t, pool), 100)

	again := append(many("1")[:70], post("new", "1"))
	batch := schema.Batch{Writes: again, Position: schema.Position{Cursor: 2}}
	_, err = apply(t.Context(), pool, lease, batch)
	require.ErrorIs(t, err, schema.ErrStored)
	require.Equal(t, schema.Transient, schema.Classify(err), "the same batch can be applied")
	require.Len(t, revs(t, pool), 100, "nothing of it was written")

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		written, err = batch.Apply(t.Context(), tx, lease, true)
		return err
	}))
	require.Equal(t, []schema.Key{key("new")}, written)
	require.Equal(t, "2", revs(t, pool)["r000"])
}

// TestLargeBatchLooksAtTombstones before it is copied.
func TestLargeBatchLooksAtTombstones(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	_, err := apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("r042", "5")}})
	require.NoError(t, err)
	written, err := apply(t.Context(), pool, lease, schema.Batch{Writes: many("4")})
	require.NoError(t, err)
	require.Len(t, written, 99)
	require.NotContains(t, revs(t, pool), "r042", "it stays deleted")
}

// TestCopyIsFenced as everything else is.
func TestCopyIsFenced(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	before := take(t, pool, "before")
	require.NoError(t, before.Release(t.Context(), pool))
	take(t, pool, "after")
	_, err := apply(t.Context(), pool, before, schema.Batch{Writes: many("1")})
	require.ErrorIs(t, err, schema.ErrFenced)
	require.Empty(t, revs(t, pool))
}
