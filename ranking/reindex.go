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

// RebuildShareIndexes rebuilds the time-ordered indexes of shares that are larger than
// minBytes and several times larger than their rows need. It returns their names. The
// shares of kept links are scattered over all times: each keeps a page that vacuum
// cannot free and that gets no new rows. Writers are not blocked. It also drops what a
// killed rebuild left behind. It returns schema.ErrBusy while another process rebuilds.
func RebuildShareIndexes(ctx context.Context, pool *pgxpool.Pool, minBytes int64) (rebuilt []string, err error) {
	err = schema.TryLock(ctx, pool, reindexLock, func() error {
		rebuilt, err = rebuildShareIndexes(ctx, pool, minBytes)
		return err
	})
	return rebuilt, err
}

// OwnsTables reports whether this role owns the tables: only owners can rebuild
// indexes.
func OwnsTables(ctx context.Context, db schema.DB) (bool, error) {
	return schema.One(ctx, db, "read the owner of the tables", pgx.RowTo[bool], `SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'shares'::regclass`)
}

func rebuildShareIndexes(ctx context.Context, conn schema.DB, minBytes int64) (rebuilt []string, err error) {
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
	// A row needs less than 100 bytes in each index. reltuples is -1 before the first vacuum.
	bloated, err := schema.All(ctx, conn, "list the indexes of shares", pgx.RowTo[string], `
SELECT c.relname
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid
WHERE i.indrelid = 'shares'::regclass AND c.relname IN ('shares_window', 'shares_link') AND t.reltuples >= 0
  AND pg_relation_size(c.oid) > greatest($1, 300 * t.reltuples)
ORDER BY 1`, minBytes)
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
