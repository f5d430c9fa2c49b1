package ranking_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

const ttl = 10 * time.Second

func noon() time.Time { return time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC) }

func execute(t *testing.T, db schema.DB, sql string, args ...any) {
	t.Helper()
	_, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func column(t *testing.T, db schema.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

func take(t *testing.T, pool *pgxpool.Pool, owner string) schema.Lease {
	t.Helper()
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", owner, ttl)
	require.NoError(t, err)
	require.True(t, ok)
	return lease
}

func apply(ctx context.Context, pool *pgxpool.Pool, lease schema.Lease, b schema.Batch) (written []schema.Key, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		b.Projections = schema.Projections{{Name: "links", Collections: []string{schema.PostCollection}, Tables: []string{"shares"}}}
		written, err = b.Apply(ctx, tx, lease)
		return err
	})
	return written, err
}

func key(rkey string) schema.Key {
	return schema.Key{Collection: schema.PostCollection, DID: "did:plc:a", Rkey: rkey}
}

func post(rkey, rev string) schema.Write {
	return schema.Write{Key: key(rkey), Rev: rev, CID: "c" + rev, CreatedAt: time.Unix(1, 0), Record: []byte(fmt.Sprintf(`{"rev":%q}`, rev))}
}

func deletion(rkey, rev string) schema.Deletion {
	return schema.Deletion{Key: key(rkey), Rev: rev, At: time.Unix(2, 0)}
}
