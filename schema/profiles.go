package schema

import (
	"context"
	"time"
)

// Withheld is a condition: the account of this DID is not shown to strangers.
func Withheld(did string) string {
	return ` EXISTS (SELECT FROM profiles WHERE profiles.did = ` + did + ` AND profiles.withheld) `
}

// takenHandle is the handle of an account a, which a service says to have another: what the network said after the service
// was asked is newer. Their clocks may differ, but not by an hour.
const takenHandle = ` CASE WHEN a.handle_at > excluded.handle_at AND a.handle_at < excluded.handle_at + interval '1 hour'
    THEN a.handle ELSE coalesce(excluded.handle, a.handle) END `

// setHandle has an account a take the handle that a service says it has. A new one must be verified.
const setHandle = `
    handle            =` + takenHandle + `,
    handle_at         = CASE WHEN` + takenHandle + `IS DISTINCT FROM a.handle THEN excluded.handle_at ELSE a.handle_at END,
    handle_unverified =` + takenHandle + `IS DISTINCT FROM a.handle OR a.handle_unverified,
    handle_checked_at = CASE WHEN` + takenHandle + `IS DISTINCT FROM a.handle THEN NULL ELSE a.handle_checked_at END`

// insertNames inserts the names of accounts: DIDs, handles, names and avatars, read at $5. What follows updates those
// that are stored. A handle is dated no later than the newest event: while our clock is ahead, it would outlast the
// events that change it.
func insertNames() string {
	return `
INSERT INTO accounts AS a (did, handle, handle_at, handle_unverified, display_name, avatar)
SELECT m.did, ` + storedHandle("m.handle") + `, least($5, ` + newestEvent + `), m.handle <> '', nullif(m.name, ''), nullif(m.avatar, '')
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS m (did, handle, name, avatar)
ORDER BY m.did
ON CONFLICT (did) DO UPDATE`
}

// RecordNames stores that the names of accounts were read at a time, and those of the accounts that have some and are
// active. The names go with the account's row: when nothing of the account is stored any more, or when it is deleted.
func RecordNames(ctx context.Context, db DB, read []string, named []Member, at time.Time) error {
	did, handle, name, avatar, _ := memberColumns(named)
	sql := `
WITH asked AS (
    UPDATE profiles SET named_at = $5 WHERE did IN (SELECT p.did FROM profiles AS p WHERE p.did = ANY ($6) ORDER BY p.did FOR UPDATE)
)` + insertNames() + `
SET display_name = excluded.display_name, avatar = excluded.avatar, ` + setHandle + `
WHERE a.status = 'active' AND a.erased_rev IS NULL
    AND (` + takenHandle + `, excluded.display_name, excluded.avatar) IS DISTINCT FROM (a.handle, a.display_name, a.avatar)`
	return Exec(ctx, db, "store the names of accounts", sql, did, handle, name, avatar, at, read)
}
