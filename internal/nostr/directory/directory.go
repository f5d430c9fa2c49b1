// Package directory has the queries on what Weir knows of Nostr's accounts and relays: profiles,
// names, the relays that accounts write to, how far each relay was read, and how it compared with
// the stored events.
package directory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// RecordFollowList stores the revision of an account's follow list. It reports whether the list may
// be applied, that is, whether no newer list was read before.
func RecordFollowList(ctx context.Context, tx pgx.Tx, did, rev string) (newest bool, err error) {
	const sql = `
INSERT INTO nostr_authors AS a (did, follows_rev) VALUES ($1, $2)
ON CONFLICT (did) DO UPDATE SET follows_rev = greatest(a.follows_rev, excluded.follows_rev)
RETURNING follows_rev = $2`
	return schema.One(ctx, tx, "store the revision of the follows of "+did, pgx.RowTo[bool], sql, did, rev)
}

// Hook erases what relays said of authors who vanish. An erasure is like a newer profile, which is empty. An account
// keeps the name and picture of a newer profile only.
func Hook() schema.Hook {
	const authors = `
INSERT INTO nostr_authors AS n (did, profile_rev)
SELECT e.did, e.rev FROM unnest($1::text[], $2::text[]) AS e (did, rev)
ON CONFLICT (did) DO UPDATE
SET profile_rev = greatest(n.profile_rev, excluded.profile_rev),
    name        = CASE WHEN n.profile_rev > excluded.profile_rev THEN n.name ELSE '' END,
    name_at     = CASE WHEN n.profile_rev > excluded.profile_rev THEN n.name_at END,
    relays      = CASE WHEN n.relays_rev <> '' AND n.relays_rev <= excluded.profile_rev THEN '{}' ELSE n.relays END`
	const accounts = `
UPDATE accounts AS a SET handle = NULL, display_name = NULL, avatar = NULL
FROM unnest($1::text[], $2::text[]) AS e (did, rev)
JOIN nostr_authors AS n ON n.did = e.did AND n.profile_rev <= e.rev
WHERE a.did = e.did`
	return schema.Hook{Erased: func(q *pgx.Batch, b *schema.Batch) {
		var did, rev pgtype.FlatArray[string]
		for _, e := range b.Erasures {
			did, rev = append(did, e.DID), append(rev, e.Rev)
		}
		q.Queue(authors, did, rev)
		q.Queue(accounts, did, rev)
	}}
}

// RelaysOf returns the relays that some accounts write to, without duplicates, in alphabetical
// order.
func RelaysOf(ctx context.Context, db schema.DB, dids []string) ([]string, error) {
	const sql = `SELECT DISTINCT r FROM nostr_authors AS a CROSS JOIN unnest(a.relays) AS r WHERE a.did = ANY ($1) ORDER BY r`
	return schema.All(ctx, db, "read the relays of accounts", pgx.RowTo[string], sql, dids)
}

// AddRelayHints stores the relays that a user named for an account. They are used until the
// account's own list is read.
func AddRelayHints(ctx context.Context, db schema.DB, did string, relays []string) error {
	const sql = `
INSERT INTO nostr_authors AS a (did, relays) VALUES ($1, $2)
ON CONFLICT (did) DO UPDATE SET relays = excluded.relays WHERE a.relays_rev = ''`
	return schema.Exec(ctx, db, "store the relays of "+did, sql, did, relays)
}

// UnreadAuthors returns at most limit followed Nostr accounts whose profiles have not been read
// since a time. Accounts that were never read come first.
func UnreadAuthors(ctx context.Context, db schema.DB, since time.Time, limit int) ([]string, error) {
	const sql = `
SELECT m.did
FROM (SELECT DISTINCT w.did FROM watch_members AS w WHERE w.did LIKE ` + schema.NostrDIDs + `) AS m
LEFT JOIN nostr_authors AS a ON a.did = m.did
WHERE a.read_at IS NULL OR a.read_at < $1
ORDER BY a.read_at NULLS FIRST, m.did
LIMIT $2`
	return schema.All(ctx, db, "find the accounts whose profiles must be read", pgx.RowTo[string], sql, since, limit)
}

// AuthorLists holds an account's profile and relay list, as found on relays. A part without a
// revision was not found.
type AuthorLists struct {
	DID         string
	ProfileRev  string
	DisplayName string
	Avatar      string
	Name        string // by NIP-05, unconfirmed
	RelaysRev   string
	Relays      []string
}

// StoreAuthors stores the profiles and relay lists of accounts, which must be sorted by DID, where
// they are newer than the stored ones and than the account's erasure. If the profile no longer
// claims a name, the account loses that name as its handle. Storing twice changes only the time. It
// returns the accounts that name a relay which they did not name before.
func StoreAuthors(ctx context.Context, tx pgx.Tx, all []AuthorLists, now time.Time) (moved []string, err error) {
	const authors = `
WITH given AS (
    SELECT g.did, CASE WHEN e.did IS NULL THEN g.profile_rev ELSE '' END AS profile_rev,
        CASE WHEN e.did IS NULL THEN g.name ELSE '' END AS name
    FROM unnest($1::text[], $2::text[], $3::text[]) AS g (did, profile_rev, name)
    LEFT JOIN accounts AS e ON e.did = g.did AND e.erased_rev >= g.profile_rev
), known AS (
    SELECT g.did, coalesce(a.profile_rev, '') AS profile_rev FROM given AS g LEFT JOIN nostr_authors AS a ON a.did = g.did
), stored AS (
    INSERT INTO nostr_authors AS a (did, profile_rev, name, read_at)
    SELECT g.did, g.profile_rev, g.name, $4 FROM given AS g ORDER BY g.did
    ON CONFLICT (did) DO UPDATE
    SET name        = CASE WHEN excluded.profile_rev > a.profile_rev THEN excluded.name ELSE a.name END,
        name_at     = CASE WHEN excluded.profile_rev > a.profile_rev AND excluded.name <> a.name THEN NULL ELSE a.name_at END,
        profile_rev = greatest(a.profile_rev, excluded.profile_rev),
        read_at     = excluded.read_at
)
SELECT g.did FROM given AS g JOIN known AS k ON k.did = g.did WHERE g.profile_rev > k.profile_rev ORDER BY g.did`
	n := len(all)
	did, profileRev, name := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	byDID := make(map[string]*AuthorLists, n)
	for i := range all {
		a := &all[i]
		did[i], profileRev[i], name[i], byDID[a.DID] = a.DID, a.ProfileRev, a.Name, a
	}
	newer, err := schema.All(ctx, tx, "store the lists of accounts", pgx.RowTo[string], authors, did, profileRev, name, now)
	if err != nil {
		return nil, err
	}
	m := len(newer)
	display, avatar := make(pgtype.FlatArray[string], m), make(pgtype.FlatArray[string], m)
	for i, did := range newer {
		display[i], avatar[i] = schema.Text(byDID[did].DisplayName), schema.Text(byDID[did].Avatar)
	}
	const accounts = `
INSERT INTO accounts AS a (did, display_name, avatar)
SELECT g.did, nullif(g.display_name, ''), nullif(g.avatar, '')
FROM unnest($1::text[], $2::text[], $3::text[]) AS g (did, display_name, avatar)
ORDER BY g.did
ON CONFLICT (did) DO UPDATE
SET display_name = excluded.display_name,
    avatar       = excluded.avatar,
    handle       = CASE WHEN a.handle = (SELECT n.name FROM nostr_authors AS n WHERE n.did = a.did) THEN a.handle END
WHERE a.erased_rev IS NULL OR a.erased_rev < (SELECT n.profile_rev FROM nostr_authors AS n WHERE n.did = a.did)`
	if _, err := tx.Exec(ctx, accounts, newer, display, avatar); err != nil {
		return nil, fmt.Errorf("store the profiles of accounts: %w", err)
	}
	const relays = `
WITH before AS (SELECT a.relays FROM nostr_authors AS a WHERE a.did = $1)
UPDATE nostr_authors AS a SET relays = $3, relays_rev = $2
WHERE a.did = $1 AND a.relays_rev < $2 AND NOT EXISTS (SELECT FROM accounts AS e WHERE e.did = $1 AND e.erased_rev >= $2)
RETURNING NOT a.relays <@ (SELECT b.relays FROM before AS b)`
	for i := range all {
		if all[i].RelaysRev == "" {
			continue
		}
		added, err := schema.All(ctx, tx, "store the relays of "+all[i].DID, pgx.RowTo[bool], relays, all[i].DID, all[i].RelaysRev,
			append([]string{}, all[i].Relays...))
		if err != nil {
			return nil, err
		}
		if slices.Contains(added, true) {
			moved = append(moved, all[i].DID)
		}
	}
	return moved, nil
}

// UncheckedName is a name that an account claims and that must be checked.
type UncheckedName struct{ DID, Name string }

// UncheckedNames returns at most limit names of followed accounts whose domains have not been asked
// since a time. Names that were never checked come first.
func UncheckedNames(ctx context.Context, db schema.DB, since time.Time, limit int) ([]UncheckedName, error) {
	const sql = `
SELECT a.did, a.name FROM nostr_authors AS a
WHERE a.name <> '' AND (a.name_at IS NULL OR a.name_at < $1) AND EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did)
ORDER BY a.name_at NULLS FIRST, a.did
LIMIT $2`
	return schema.All(ctx, db, "find the names to check", pgx.RowToStructByPos[UncheckedName], sql, since, limit)
}

// NameCheck is what the domain of a name says.
type NameCheck int

// Unasked: the domain could not be asked, so its earlier answer stays.
const (
	Denied NameCheck = iota
	Confirmed
	Unasked
)

// RecordName stores what the domain of a name says. Nothing changes if the account claims another name meanwhile.
func RecordName(ctx context.Context, tx pgx.Tx, n UncheckedName, check NameCheck, now time.Time) error {
	const asked = `UPDATE nostr_authors SET name_at = $3 WHERE did = $1 AND name = $2`
	tag, err := tx.Exec(ctx, asked, n.DID, n.Name, now)
	if err == nil && tag.RowsAffected() > 0 && check != Unasked {
		const handle = `
UPDATE accounts
SET handle = CASE WHEN $3 THEN $2 END, handle_at = $4
WHERE did = $1 AND handle IS DISTINCT FROM CASE WHEN $3 THEN $2 END`
		_, err = tx.Exec(ctx, handle, n.DID, n.Name, check == Confirmed, now)
	}
	if err != nil {
		return fmt.Errorf("store whether %s is confirmed: %w", n.Name, err)
	}
	return nil
}

// ForgetAuthors deletes at most limit rows of accounts that nobody watches any more. owners are the
// targets of watches: their rows stay even if nobody follows them, because the revisions of their
// follow lists are needed.
func ForgetAuthors(ctx context.Context, db schema.DB, owners []string, unwatched time.Time, limit int) (int, error) {
	const sql = `
DELETE FROM nostr_authors AS n
WHERE n.did = ANY (ARRAY(
    SELECT a.did FROM nostr_authors AS a
    WHERE a.read_at < $1 AND a.did <> ALL ($3::text[]) AND NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did)
    LIMIT $2
))`
	return schema.Change(ctx, db, "delete what relays said of accounts that nobody watches", sql, unwatched, limit,
		append([]string{}, owners...))
}
