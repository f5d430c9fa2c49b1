package ranking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// reindexLock is the advisory lock of the one process that rebuilds indexes.
const reindexLock = 0x7765697269

// RebuildShareIndexes rebuilds the indexes of shares that are ordered by time
// where they are larger than least, in bytes, and several times what their rows
// need; it answers which. The shares of links that are kept lie scattered over
// all times: each leaves a page that nothing new goes into and that vacuum
// cannot free. Writers go on in the meantime. What a rebuild left that was
// killed is removed. schema.ErrBusy while another process rebuilds.
func RebuildShareIndexes(ctx context.Context, pool *pgxpool.Pool, least int64) (rebuilt []string, err error) {
	err = schema.TryLock(ctx, pool, reindexLock, func() error {
		rebuilt, err = rebuildShareIndexes(ctx, pool, least)
		return err
	})
	return rebuilt, err
}

// OwnsTables answers whether this role may rebuild indexes: only owners can.
func OwnsTables(ctx context.Context, db schema.DB) (bool, error) {
	return schema.One(ctx, db, "look for the owner of the tables", pgx.RowTo[bool], `SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'shares'::regclass`)
}

func rebuildShareIndexes(ctx context.Context, conn schema.DB, least int64) (rebuilt []string, err error) {
	left, err := schema.All(ctx, conn, "list the indexes of shares", pgx.RowTo[string], `
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
	bloated, err := schema.All(ctx, conn, "list the indexes of shares", pgx.RowTo[string], `
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
