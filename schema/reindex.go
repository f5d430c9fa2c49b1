package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// reindexLock is the advisory lock of the one process that rebuilds indexes.
const reindexLock = 0x7765697269

// RebuildShareIndexes rebuilds the indexes of shares that are ordered by time
// where they are larger than least, in bytes, and several times what their rows
// need; it answers which. The shares of links that are kept lie scattered over
// all times: each leaves a page that nothing new goes into and that vacuum
// cannot free. Writers go on in the meantime. What a rebuild left that was
// killed is removed. ErrBusy while another process rebuilds.
func RebuildShareIndexes(ctx context.Context, pool *pgxpool.Pool, least int64) (rebuilt []string, err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to rebuild indexes: %w", err)
	}
	defer conn.Release()
	var locked bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(reindexLock)).Scan(&locked); err != nil {
		return nil, fmt.Errorf("lock to rebuild indexes: %w", err)
	}
	if !locked {
		return nil, ErrBusy
	}
	defer conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(reindexLock)) //nolint:errcheck // ends with the session anyway

	left, err := names(ctx, conn, "the indexes of shares", `
SELECT c.relname
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = 'shares'::regclass AND c.relname ~ '^shares_(window|link)_cc(new|old)[0-9]*$'
ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	for _, index := range left {
		if _, err := conn.Exec(ctx, `DROP INDEX CONCURRENTLY `+pgx.Identifier{index}.Sanitize()); err != nil {
			return nil, fmt.Errorf("drop the unfinished index %s: %w", index, err)
		}
	}
	// A row needs less than 100 bytes in either. reltuples is -1 before the first vacuum.
	bloated, err := names(ctx, conn, "the indexes of shares", `
SELECT c.relname
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid
WHERE i.indrelid = 'shares'::regclass AND c.relname IN ('shares_window', 'shares_link') AND t.reltuples >= 0
  AND pg_relation_size(c.oid) > greatest($1, 300 * t.reltuples)
ORDER BY 1`, least)
	if err != nil {
		return nil, err
	}
	for _, index := range bloated {
		if _, err := conn.Exec(ctx, `REINDEX INDEX CONCURRENTLY `+pgx.Identifier{index}.Sanitize()); err != nil {
			return rebuilt, fmt.Errorf("rebuild the index %s: %w", index, err)
		}
		rebuilt = append(rebuilt, index)
	}
	return rebuilt, nil
}

func names(ctx context.Context, db DB, of, sql string, args ...any) ([]string, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", of, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", of, err)
	}
	return all, nil
}
