package ranking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// UnverifiedHandle is a handle to verify. Shown: at the top of the ranking.
type UnverifiedHandle struct {
	schema.UnverifiedHandle
	Shown bool
}

// UnverifiedHandles returns at most limit unverified handles of active accounts that nobody has tried
// to verify since a time: first of the accounts that the top of the ranking shows, then of those
// that are followed or share a link.
func UnverifiedHandles(ctx context.Context, db schema.DB, since time.Time, limit int) ([]UnverifiedHandle, error) {
	const unverified = ` a.handle_unverified AND a.handle <> '' AND a.status = 'active' AND a.did NOT LIKE ` + schema.NostrDIDs + `
		AND (a.handle_checked_at IS NULL OR a.handle_checked_at < $1)`
	const sql = `
WITH ` + topFaces + `
SELECT did, handle, shown FROM (
    (SELECT a.did, a.handle, true AS shown FROM top AS t JOIN accounts AS a ON a.did = t.did WHERE` + unverified + ` LIMIT $2)
    UNION ALL
    (SELECT a.did, a.handle, false FROM accounts AS a
     WHERE` + unverified + ` AND a.did NOT IN (SELECT t.did FROM top AS t)
       AND (EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did) OR EXISTS (SELECT FROM sharers AS s WHERE s.did = a.did))
     ORDER BY a.handle_checked_at NULLS FIRST LIMIT $2)
) AS due
ORDER BY shown DESC LIMIT $2`
	return schema.All(ctx, db, "find the handles to verify", pgx.RowToStructByPos[UnverifiedHandle], sql, since, limit)
}
