package schema_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// many returns enough writes for a batch to be copied.
func many(rev string) []schema.Write {
	writes := make([]schema.Write, 100)
	for i := range writes {
		writes[i] = post(fmt.Sprintf("r%03d", i), rev)
	}
	return writes
}

// TestLargeBatchOfNewRecordsIsCopied also shows that a copy of a batch with a
// stored record is refused, so that the batch is applied without COPY.
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
	require.Equal(t, schema.Transient, schema.Classify(err), "the error must be transient: the same batch can be applied")
	require.Len(t, revs(t, pool), 100, "the refused batch must write nothing")

	batch.Careful = true
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		written, err = batch.Apply(t.Context(), tx, lease)
		return err
	}))
	require.Equal(t, []schema.Key{key("new")}, written)
	require.Equal(t, "2", revs(t, pool)["r000"])
}

// TestLargeBatchLooksAtTombstones shows that tombstones are checked before a
// batch is copied.
func TestLargeBatchLooksAtTombstones(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	_, err := apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("r042", "5")}})
	require.NoError(t, err)
	written, err := apply(t.Context(), pool, lease, schema.Batch{Writes: many("4")})
	require.NoError(t, err)
	require.Len(t, written, 99)
	require.NotContains(t, revs(t, pool), "r042", "a deleted record must stay deleted")
}

// TestCopyIsFenced shows that a copy is fenced like every other commit.
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
