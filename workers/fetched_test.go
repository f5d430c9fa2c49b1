package workers

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestRepairOfWhatArrivedMeanwhile finds a record missing, and the stream stores it before the
// repair. If the revision is the repository's too, nothing changes and features are told nothing. If
// the stream's version is another one, the repository's is stored, and features are told.
func TestRepairOfWhatArrivedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond).UTC()
	key := schema.Key{Collection: schema.PostCollection, DID: alice, Rkey: tidAt(at)}
	record := fmt.Appendf(nil, `{"text": "x", "createdAt": %q}`, at.Format(time.RFC3339Nano))
	found := compared{faults: []schema.Fault{{DID: alice, Collection: key.Collection, Rkey: key.Rkey, Fault: schema.FaultMissing}},
		listed: map[string]schema.SourceRecord{key.Rkey: {Rkey: key.Rkey, CID: "c", Record: record}}}
	rev := tidAt(at.Add(time.Second))
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "me", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := (&schema.Batch{Writes: []schema.Write{{Key: key, Rev: rev, CID: "c", CreatedAt: at, Record: record}}}).Apply(t.Context(), tx,
			lease)
		return err
	}))
	told := 0
	hook := schema.Hook{Fetched: func(_ context.Context, _ pgx.Tx, f schema.Fetched) error {
		told += len(f.Writes)
		return nil
	}}
	changed := func() int {
		t.Helper()
		r := &repository{Shared: Shared{Pool: pool, Projections: registered(t, pool), Hooks: []schema.Hook{{}, hook}}, did: alice}
		require.NoError(t, r.repair(t.Context(), queue, rev, found, nil))
		return told
	}
	require.Zero(t, changed())
	execute(t, pool, `UPDATE posts SET cid = 'other'`)
	require.Equal(t, 1, changed())
	require.Equal(t, 1, changed(), "a second repair changes nothing")
}
