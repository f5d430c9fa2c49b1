package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// NostrDIDs is a LIKE pattern for Nostr accounts, which have no repositories.
const NostrDIDs = `'did:nostr:%'`

// FollowsChannel is the channel that is notified when the followed accounts change.
const FollowsChannel = "weir_follows"

// Watch is a reason to follow accounts.
type Watch struct {
	ID       int64      `json:"id"`
	Target   string     `json:"target"`   // a handle, a DID, the address of a list or starter pack, or an npub
	Kind     string     `json:"kind"`     // follows, account, list, starterpack, second-degree
	AtLeast  int        `json:"at_least"` // for second-degree: how many of the target's follows must follow an account
	AddedAt  time.Time  `json:"added_at"`
	SyncedAt *time.Time `json:"synced_at,omitempty"`
	Problem  string     `json:"problem,omitempty"`
	Members  int        `json:"members"`
}

const watchColumns = `
SELECT w.id        AS id,
       w.target    AS target,
       w.kind      AS kind,
       w.at_least  AS at_least,
       w.added_at  AS added_at,
       w.synced_at AS synced_at,
       w.problem   AS problem,
       (SELECT count(*) FROM watch_members AS m WHERE m.watch_id = w.id) AS members
FROM watches AS w `

// Watches lists all watches, oldest first.
func Watches(ctx context.Context, db DB) ([]Watch, error) {
	return All(ctx, db, "list the watches", pgx.RowToStructByName[Watch], watchColumns+`ORDER BY w.id`)
}

// DueWatch is a watch whose listing must be read.
type DueWatch struct {
	ID   int64
	Kind string
}

// DueWatches returns the watches whose listings must be read. It skips watches with a
// job from before since: if a new read replaced that job each time, no read would end.
func DueWatches(ctx context.Context, db DB, since time.Time) ([]DueWatch, error) {
	const sql = `
SELECT w.id, w.kind FROM watches AS w
WHERE NOT EXISTS (
    SELECT FROM river_job AS j
    WHERE j.kind = 'sync_follows' AND j.state IN ('available', 'running', 'scheduled')
      AND j.args ->> 'watch' = w.id::text AND j.created_at < $1
)
ORDER BY w.id`
	return All(ctx, db, "list the due watches", pgx.RowToStructByName[DueWatch], sql, since)
}

// FindWatch returns a watch, or ErrNoRows.
func FindWatch(ctx context.Context, db DB, id int64) (Watch, error) {
	return One(ctx, db, fmt.Sprintf("read watch %d", id), pgx.RowToStructByName[Watch], watchColumns+`WHERE w.id = $1`, id)
}

// AddWatch adds a watch and the job that reads its members. added is false if the watch
// exists. atLeast is for the kind second-degree: 0 means the default, or what the watch has.
func AddWatch(ctx context.Context, db DB, kind, target string, atLeast int) (added bool, err error) {
	const sql = `
		INSERT INTO watches (kind, target, at_least) VALUES ($1, $2, coalesce(nullif($3, 0), 5))
		ON CONFLICT (target, kind) DO UPDATE SET at_least = excluded.at_least WHERE $3 > 0 AND watches.at_least <> excluded.at_least`
	n, err := Change(ctx, db, "add the watch of "+target, sql, kind, target, atLeast)
	return n > 0, err
}

// RemoveWatches removes the watches of targets, all or those of a kind, and returns their kinds.
func RemoveWatches(ctx context.Context, db DB, kind string, targets ...string) (kinds []string, err error) {
	const sql = `DELETE FROM watches WHERE target = ANY ($1) AND kind = coalesce(nullif($2, ''), kind) RETURNING kind`
	return All(ctx, db, "remove the watches of "+targets[0], pgx.RowTo[string], sql, targets, kind)
}

// SyncWatches adds a job that reads the listings of all watches.
func SyncWatches(ctx context.Context, db DB) error {
	return Exec(ctx, db, "sync the watches", `SELECT enqueue_job('sync_follows', 'network', '{"watch": 0}', '{every-watch}')`)
}

// RecordWatchProblem stores why a read that began at a time could not read a watch's
// members, unless the watch was changed or a later read succeeded.
func RecordWatchProblem(ctx context.Context, db DB, w Watch, began time.Time, problem string) error {
	const sql = `
		UPDATE watches SET problem = $5 WHERE id = $1 AND target = $2 AND kind = $3
		    AND (synced_at IS NULL OR synced_at <= $4 OR synced_at > clock_timestamp())`
	return Exec(ctx, db, fmt.Sprintf("store the problem of watch %d", w.ID), sql, w.ID, w.Target, w.Kind, began, problem)
}

// Followed is the set of accounts that Weir follows.
type Followed struct {
	Everyone bool // there is no watch: the whole network
	DIDs     []string
}

// AddedMembers returns the accounts that a watch's listing added and that were not
// followed before. began is when the listing began.
func AddedMembers(ctx context.Context, db DB, watch int64, began time.Time) ([]string, error) {
	const sql = `
SELECT w.did FROM watch_members AS w
WHERE w.watch_id = $1 AND w.added_at = $2
  AND NOT EXISTS (SELECT FROM watch_members AS o WHERE o.did = w.did AND o.added_at < w.added_at)
ORDER BY w.did`
	return All(ctx, db, fmt.Sprintf("list the accounts that watch %d added", watch), pgx.RowTo[string], sql, watch, began)
}

// FollowedAccounts returns the accounts that Weir follows, ordered by DID.
func FollowedAccounts(ctx context.Context, db DB) (Followed, error) {
	const sql = `
SELECT NOT EXISTS (SELECT FROM watches)                                        AS everyone,
       coalesce((SELECT array_agg(DISTINCT did ORDER BY did) FROM watch_members), '{}') AS dids`
	return One(ctx, db, "read the followed accounts", pgx.RowToStructByPos[Followed], sql)
}

// FollowsEveryone reports whether the whole network is followed.
func FollowsEveryone(ctx context.Context, db DB) (bool, error) {
	return One(ctx, db, "read whether everyone is followed", pgx.RowTo[bool], `SELECT NOT EXISTS (SELECT FROM watches)`)
}

// The kinds of watches.
const (
	WatchFollows      = "follows"
	WatchAccount      = "account"
	WatchList         = "list"
	WatchStarterPack  = "starterpack"
	WatchSecondDegree = "second-degree"
)

// Following is the number of accounts that Weir follows, and the reason.
type Following struct {
	Watches  int    // 0: the whole network
	Accounts int    // their members, each counted once
	Kind     string // of the only watch, like the fields below; empty if there are several watches or none
	Target   string
	AtLeast  int
}

// ReadFollowing returns what Weir follows, without the number of accounts, which
// CountMembers counts.
func ReadFollowing(ctx context.Context, db DB) (Following, error) {
	const sql = `
SELECT count(*)                                             AS watches,
       0                                                    AS accounts,
       CASE WHEN count(*) = 1 THEN min(kind) ELSE '' END    AS kind,
       CASE WHEN count(*) = 1 THEN min(target) ELSE '' END  AS target,
       CASE WHEN count(*) = 1 THEN min(at_least) ELSE 0 END AS at_least
FROM watches`
	return One(ctx, db, "read what is followed", pgx.RowToStructByName[Following], sql)
}

// Members counts the members of all watches.
type Members struct {
	Accounts int // each counted once
	Members  int // each counted once per watch
}

// CountMembers counts the members of all watches.
func CountMembers(ctx context.Context, db DB) (Members, error) {
	const sql = `
SELECT count(*)                    AS accounts,
       coalesce(sum(a.watches), 0) AS members
FROM (SELECT count(*) AS watches FROM watch_members GROUP BY did) AS a`
	return One(ctx, db, "count the members of the watches", pgx.RowToStructByName[Members], sql)
}

// Member is an account in a watch's listing.
type Member struct {
	DID         string
	Handle      string
	DisplayName string
	Avatar      string
	Withheld    bool // it is not to be shown to strangers
}

// MemberChanges is what a new listing changes.
type MemberChanges struct {
	Added   []string // accounts that were in no watch before
	Stored  []string // of Added, those with stored posts, which may have been edited or deleted while the account was not followed
	Hidden  []string // accounts that the network no longer shows: their servers say whether they are deleted
	Removed int      // number of members that left this watch
	First   bool     // the watch was never read before
}

// lockWatch locks a watch while a listing is applied to it, and reports whether the
// watch was never read before. It returns ErrNoRows if the listing, which began at
// began, is obsolete: the watch was removed or changed, or has a later listing.
func lockWatch(ctx context.Context, tx pgx.Tx, w Watch, began time.Time) (first bool, err error) {
	if err := tx.QueryRow(ctx, neverSynced+` FOR UPDATE`, w.ID, w.Target, w.Kind, w.AtLeast, began).Scan(&first); err != nil {
		return false, fmt.Errorf("lock watch %d: %w", w.ID, err)
	}
	return first, nil
}

// SetMembers replaces the members of a watch, and stores their names. A member in the
// listing becomes active, unless the stream reported another status in the last hour.
// Hidden members remain members, but do not count until a listing contains them again.
// began is the time when the first page of the listing was requested. SetMembers
// returns ErrNoRows if the listing is obsolete: the watch was removed or changed, or
// has a later listing.
func SetMembers(ctx context.Context, tx pgx.Tx, w Watch, members []Member, hidden []string, began time.Time) (MemberChanges, error) {
	var c MemberChanges
	var err error
	if c.First, err = lockWatch(ctx, tx, w, began); err != nil {
		return c, err
	}
	// One listing at a time decides which accounts are new.
	if _, err := tx.Exec(ctx, `LOCK TABLE watch_members IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return c, fmt.Errorf("lock the watched accounts: %w", err)
	}
	if err := c.replaceMembers(ctx, tx, w.ID, members, hidden, began); err != nil {
		return c, err
	}
	if err := updateProfiles(ctx, tx, w.ID, members, began); err != nil {
		return c, err
	}
	if c.Hidden, err = hide(ctx, tx, w.ID, hidden, began); err != nil {
		return c, err
	}
	if c.Stored, err = resetFeeds(ctx, tx, w.ID, c.Added); err != nil {
		return c, err
	}
	if _, err := tx.Exec(ctx, `UPDATE watches SET synced_at = $2, problem = '' WHERE id = $1`, w.ID, began); err != nil {
		return c, fmt.Errorf("store the sync of watch %d: %w", w.ID, err)
	}
	return c, nil
}

// replaceMembers adds the new members of a watch, and removes those that are neither
// members nor hidden. One whose status has changed since the listing began stays until the next
// one: it may have been hidden when its page was read, and have returned before it was looked up.
func (c *MemberChanges) replaceMembers(
	ctx context.Context, tx pgx.Tx, watch int64, members []Member, hidden []string, began time.Time,
) (err error) {
	did, _, _, _, _ := memberColumns(members)
	const added = `
WITH known AS (SELECT DISTINCT did FROM watch_members WHERE did = ANY ($2)), new AS (
    INSERT INTO watch_members (watch_id, did, added_at)
    SELECT $1, m.did, $3 FROM unnest($2::text[]) AS m (did) ORDER BY 2
    ON CONFLICT (did, watch_id) DO NOTHING
    RETURNING did
)
SELECT did FROM new WHERE did NOT IN (SELECT did FROM known) ORDER BY did`
	if c.Added, err = All(ctx, tx, fmt.Sprintf("add members of watch %d", watch), pgx.RowTo[string], added, watch, did, began); err != nil {
		return err
	}
	const removed = `
DELETE FROM watch_members AS w
WHERE watch_id = $1 AND NOT EXISTS (SELECT FROM unnest($2::text[] || $3::text[]) AS m (did) WHERE m.did = w.did)
  AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status_at >= $4)`
	c.Removed, err = Change(ctx, tx, fmt.Sprintf("remove members of watch %d", watch), removed, watch, did, hidden, began)
	return err
}

// updateProfiles stores the names of members and makes them active.
func updateProfiles(ctx context.Context, tx pgx.Tx, watch int64, members []Member, began time.Time) error {
	did, handle, name, avatar, withheld := memberColumns(members)
	names := insertNames() + `
SET ` + setHandle + `,
    display_name = CASE WHEN a.did LIKE ` +
		NostrDIDs + ` THEN a.display_name ELSE excluded.display_name END, -- their profiles are read separately
    avatar       = CASE WHEN a.did LIKE ` + NostrDIDs + ` THEN a.avatar ELSE excluded.avatar END,
    hidden_at    = NULL,
    status       = CASE WHEN a.status = 'hidden' OR a.status_at IS NULL OR a.status_at < excluded.handle_at - interval '1 hour'
                   THEN 'active' ELSE a.status END
WHERE a.status = 'hidden' OR a.hidden_at IS NOT NULL
   OR a.status <> 'active' AND (a.status_at IS NULL OR a.status_at < excluded.handle_at - interval '1 hour')
   OR a.did NOT LIKE ` + NostrDIDs + ` AND (` + takenHandle + `, excluded.display_name,` +
		` excluded.avatar) IS DISTINCT FROM (a.handle, a.display_name, a.avatar)`
	if _, err := tx.Exec(ctx, names, did, handle, name, avatar, began); err != nil {
		return fmt.Errorf("store the names of the members of watch %d: %w", watch, err)
	}
	const shown = `
INSERT INTO profiles AS p (did, read_at, withheld)
SELECT m.did, $3, m.withheld FROM unnest($1::text[], $2::boolean[]) AS m (did, withheld)
WHERE m.did NOT LIKE ` + NostrDIDs + `
ORDER BY m.did
ON CONFLICT (did) DO UPDATE SET read_at = excluded.read_at, withheld = excluded.withheld
WHERE p.read_at IS NULL OR p.read_at < excluded.read_at
      AND (p.withheld <> excluded.withheld OR p.read_at < excluded.read_at - interval '12 hours')`
	return Exec(ctx, tx, fmt.Sprintf("store which members of watch %d are not shown", watch), shown, did, withheld, began)
}

// hide hides those of some members that count. It returns them: they must be read again.
func hide(ctx context.Context, tx pgx.Tx, watch int64, members []string, began time.Time) ([]string, error) {
	const sql = `
INSERT INTO accounts AS a (did, status, hidden_at, reread_since, reread_at)
SELECT h.did, 'hidden', least($2, ` + newestEvent + `), $2, now() + interval '1 hour' FROM unnest($1::text[]) AS h (did) ORDER BY h.did
ON CONFLICT (did) DO UPDATE
SET status       = excluded.status,
    hidden_at    = excluded.hidden_at,
    reread_since = least(a.reread_since, excluded.reread_since),
    reread_count = a.reread_count + 1,
    reread_at    = excluded.reread_at -- in case the job is lost
WHERE a.status = 'active' AND (a.status_at IS NULL OR a.status_at < excluded.hidden_at - interval '1 hour')
RETURNING did`
	return All(ctx, tx, fmt.Sprintf("hide members of watch %d", watch), pgx.RowTo[string], sql, members, began)
}

// resetFeeds clears how far the feeds of new members were read, and requests a reread
// of those with stored posts. It returns the latter. What was read before the account
// was followed has holes: hours that an operator requested, days that were purged. So
// all stored posts must be compared, from the first one on.
func resetFeeds(ctx context.Context, tx pgx.Tx, watch int64, added []string) (withPosts []string, err error) {
	const reset = `
UPDATE accounts AS a
SET feed_newest = NULL, read_since = NULL, feed_problem = '', reread_since = tid_time(k.first), reread_count = a.reread_count + 1
FROM (
    SELECT a.did, (
        SELECT min(p.rkey) FROM posts AS p
        WHERE p.collection = 'app.bsky.feed.post' AND p.did = a.did AND p.rkey ~ '^[234567a-j][234567a-z]{12}$'
    ) AS first
    FROM accounts AS a
    WHERE a.did = ANY ($1)
    ORDER BY a.did FOR UPDATE
) AS k
WHERE a.did = k.did AND (k.first IS NOT NULL OR a.feed_newest IS NOT NULL OR a.read_since IS NOT NULL OR a.feed_problem <> ''
    OR a.reread_since IS NOT NULL)
RETURNING a.did, k.first IS NOT NULL`
	rows, err := tx.Query(ctx, reset, added)
	if err == nil {
		var did string
		var stored bool
		_, err = pgx.ForEachRow(rows, []any{&did, &stored}, func() error {
			if stored {
				withPosts = append(withPosts, did)
			}
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reset the feeds of watch %d: %w", watch, err)
	}
	return withPosts, nil
}

// PollFollows replaces ListenFollows where LISTEN does not work, as behind a
// transaction pooler. It polls at the interval often, and calls changed after every
// change and at least every interval, until ctx ends or a query fails.
func PollFollows(ctx context.Context, db DB, often, interval time.Duration, changed func(context.Context) error) error {
	tick := time.NewTicker(often)
	defer tick.Stop()
	var known string
	var at time.Time
	for {
		seen, err := followsMark(ctx, db)
		if err != nil {
			return err
		}
		if seen != known || time.Since(at) >= interval {
			known, at = seen, time.Now() // a later change will change the mark
			if err := changed(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// followsMark returns a text that differs after every change of the followed accounts.
func followsMark(ctx context.Context, db DB) (string, error) {
	const sql = `
SELECT concat_ws(' ', (SELECT count(*) FROM watches), count(*), sum(hashtextextended(did, watch_id)))
FROM watch_members`
	return One(ctx, db, "check for a change of follows", pgx.RowTo[string], sql)
}

// ListenFollows calls changed after every change of the followed accounts, and at least
// every interval, until ctx ends or the connection breaks. Nothing else may use conn
// meanwhile.
func ListenFollows(ctx context.Context, conn *pgx.Conn, interval time.Duration, changed func(context.Context) error) error {
	if _, err := conn.Exec(ctx, `LISTEN `+FollowsChannel); err != nil {
		return fmt.Errorf("listen for follows: %w", err)
	}
	for {
		if err := changed(ctx); err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, interval)
		_, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("wait for a change of follows: %w", err)
		}
	}
}
