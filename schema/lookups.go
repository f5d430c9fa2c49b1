package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// FewKeys is the number of keys up to which planning a statement takes longer than running
// it.
const FewKeys = 32

// planOnce makes Postgres plan the following statements once per connection, for any keys.
// Otherwise it plans them every time, for the given keys and the partitions that they need.
// The setting ends with the transaction, or with planEachTime.
//
// The tables may be empty when such a plan is made, and the plan must still be good when
// they are full. So only bitmap scans are allowed, which need a condition on an index. That
// one condition must be enough to find the rows of a key. Where a statement joins a table
// with the keys, a range of rkeys, which selects partitions, would be a second condition,
// and Postgres would use it to read whole indexes. A subquery with LATERAL and LIMIT looks
// up one key at a time.
const planOnce = `
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true)`

const planEachTime = `
SELECT set_config('plan_cache_mode', 'auto', true), set_config('enable_seqscan', 'on', true),
       set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true)`

// preparesStatements reports whether the statements of a connection are prepared once.
// Through a transaction pooler they are not.
func preparesStatements(config *pgx.ConnConfig) bool {
	return config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
}

// Lookups runs statements that find rows by few keys. A connection plans each statement
// once, under the conditions described at planOnce.
type Lookups struct {
	pool *pgxpool.Pool
	once bool
}

// NewLookups returns the pool as Lookups. With more than FewKeys keys, or through a
// transaction pooler, statements are planned every time.
func NewLookups(pool *pgxpool.Pool, keys int) Lookups {
	return Lookups{pool, keys <= FewKeys && preparesStatements(pool.Config().ConnConfig)}
}

// SendBatch sends a batch whose results are read by callbacks.
func (l Lookups) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if !l.once {
		return l.pool.SendBatch(ctx, b)
	}
	q := &pgx.Batch{}
	q.Queue(planOnce)
	q.QueuedQueries = append(q.QueuedQueries, b.QueuedQueries...)
	return l.pool.SendBatch(ctx, q)
}

// Query runs a statement. It ignores a query mode in args.
func (l Lookups) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if !l.once {
		return l.pool.Query(ctx, sql, args...)
	}
	q := &pgx.Batch{}
	q.Queue(sql, withoutMode(args)...)
	sent := l.SendBatch(ctx, q)
	var rows pgx.Rows
	_, err := sent.Exec()
	if err == nil {
		rows, err = sent.Query()
	}
	if err != nil {
		sent.Close() // it returns the same error
		return nil, err
	}
	return &lookedUp{Rows: rows, sent: sent}, nil
}

// Exec runs a statement. It ignores a query mode in args.
func (l Lookups) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := l.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// BeginFunc calls f in a transaction. It commits the transaction unless f returns an error.
func (l Lookups) BeginFunc(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		if !l.once {
			return f(tx)
		}
		if _, err := tx.Exec(ctx, planOnce); err != nil {
			return fmt.Errorf("have statements planned once: %w", err)
		}
		return f(lookupsTx{tx})
	})
}

// lookedUp is the rows of the last statement of a batch.
type lookedUp struct {
	pgx.Rows
	sent pgx.BatchResults
	err  error
}

func (r *lookedUp) Close() {
	r.Rows.Close()
	r.err = r.sent.Close()
}

func (r *lookedUp) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// lookupsTx is a transaction under planOnce.
type lookupsTx struct{ pgx.Tx }

func (t lookupsTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(ctx, sql, withoutMode(args)...)
}

func (t lookupsTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(ctx, sql, withoutMode(args)...)
}

// withoutMode removes the query mode from the arguments.
func withoutMode(args []any) []any {
	if len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); ok {
			return args[1:]
		}
	}
	return args
}
