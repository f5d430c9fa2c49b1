package ranking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// RequestProfiles withholds those of some accounts whose profiles were never read, until they are.
// It reports whether there are any.
func RequestProfiles(ctx context.Context, db schema.DB, dids []string) (bool, error) {
	const sql = `
INSERT INTO profiles (did)
SELECT DISTINCT k.did FROM unnest($1::text[]) AS k (did)
WHERE k.did NOT LIKE ` + schema.NostrDIDs + ` AND NOT EXISTS (SELECT FROM profiles AS p WHERE p.did = k.did)
ORDER BY k.did
ON CONFLICT (did) DO NOTHING`
	if len(dids) == 0 {
		return false, nil
	}
	n, err := schema.Change(ctx, db, "request profiles", sql, dids)
	return n > 0, err
}

// DueProfiles returns at most limit accounts whose profiles were not read since a time.
func DueProfiles(ctx context.Context, db schema.DB, since time.Time, limit int) ([]string, error) {
	const sql = `SELECT did FROM profiles WHERE read_at IS NULL OR read_at < $1 ORDER BY read_at NULLS FIRST LIMIT $2`
	return schema.All(ctx, db, "find the profiles to read", pgx.RowTo[string], sql, since, limit)
}

// RecordProfiles stores that the profiles of accounts were read, and which of these are shown to
// strangers: all others are withheld. It changes no profile that was read since a time. Accounts
// that are shown and share nothing any more lose their rows.
func RecordProfiles(ctx context.Context, db schema.DB, read, shown []string, since, now time.Time) error {
	const sql = `
WITH due AS (
    SELECT p.did, p.did <> ALL (coalesce($2::text[], '{}')) AS withheld,
           p.read_at IS NULL OR EXISTS (SELECT FROM shares AS s WHERE s.did = p.did)
               OR EXISTS (SELECT FROM subjects AS u WHERE u.did = p.did)
           OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = p.did) AS needed
    FROM profiles AS p
    WHERE p.did = ANY ($1) AND (p.read_at IS NULL OR p.read_at < $3)
    ORDER BY p.did FOR UPDATE
), gone AS (
    DELETE FROM profiles AS p USING due WHERE p.did = due.did AND NOT due.withheld AND NOT due.needed
)
UPDATE profiles AS p SET read_at = $4, withheld = due.withheld FROM due WHERE p.did = due.did AND (due.withheld OR due.needed)`
	return schema.Exec(ctx, db, "store who is shown", sql, read, shown, since, now)
}

// topFaces are the accounts that the top of the ranking shows, as a common table expression: top.
const topFaces = `top AS (
    SELECT DISTINCT s.did FROM top_links AS t
    CROSS JOIN LATERAL (SELECT s.did FROM sharers AS s WHERE s.link_id = t.link_id ORDER BY s.at DESC LIMIT 3) AS s
)`

// UnnamedFaces returns at most limit accounts that the top of the ranking shows and whose names were not read since a
// time. The names of accounts that a watch includes come with its listing.
func UnnamedFaces(ctx context.Context, db schema.DB, since time.Time, limit int) ([]string, error) {
	const sql = `
WITH ` + topFaces + `
SELECT p.did FROM top AS t JOIN profiles AS p ON p.did = t.did
WHERE NOT p.withheld AND (p.named_at IS NULL OR p.named_at < $1) AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = p.did)
LIMIT $2`
	return schema.All(ctx, db, "find the faces without a name", pgx.RowTo[string], sql, since, limit)
}
