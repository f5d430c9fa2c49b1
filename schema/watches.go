package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// FollowsChannel is what Postgres notifies when the followed accounts change.
const FollowsChannel = "weir_follows"

// A Watch is a reason to follow accounts.
type Watch struct {
	ID       int64      `json:"id"`
	Target   string     `json:"target"`   // a handle, a DID, or the address of a list or starter pack
	Kind     string     `json:"kind"`     // follows, account, list, starterpack, second-degree
	AtLeast  int        `json:"at_least"` // of second-degree: by how many an account must be followed
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

// Watches lists them all, the oldest first.
func Watches(ctx context.Context, db DB) ([]Watch, error) {
	return all(ctx, db, "list the watches", pgx.RowToStructByName[Watch], watchColumns+`ORDER BY w.id`)
}

// DueWatch is a watch whose listing is to be read.
type DueWatch struct {
	ID   int64
	Kind string
}

// DueWatches are the watches whose listings are to be read: not of
// those that somebody has been reading since before a moment, for who begins
// anew each time does not come to an end.
func DueWatches(ctx context.Context, db DB, since time.Time) ([]DueWatch, error) {
	const sql = `
SELECT w.id, w.kind FROM watches AS w
WHERE NOT EXISTS (
    SELECT FROM river_job AS j
    WHERE j.kind = 'sync_follows' AND j.state IN ('available', 'running', 'scheduled')
      AND j.args ->> 'watch' = w.id::text AND j.created_at < $1
)
ORDER BY w.id`
	return all(ctx, db, "list the watches to read", pgx.RowToStructByName[DueWatch], sql, since)
}

// FindWatch is one of them; ErrNoRows when it is gone.
func FindWatch(ctx context.Context, db DB, id int64) (Watch, error) {
	return one(ctx, db, fmt.Sprintf("read watch %d", id), pgx.RowToStructByName[Watch], watchColumns+`WHERE w.id = $1`, id)
}

// AddWatch adds a watch, and the job that reads its members. added is false
// where it was there. atLeast is for the kind second-degree; 0 is the default.
func AddWatch(ctx context.Context, db DB, kind, target string, atLeast int) (added bool, err error) {
	const sql = `INSERT INTO watches (kind, target, at_least) VALUES ($1, $2, coalesce(nullif($3, 0), 5)) ON CONFLICT (target, kind) DO NOTHING`
	tag, err := db.Exec(ctx, sql, kind, target, atLeast)
	if err != nil {
		return false, fmt.Errorf("add the watch of %s: %w", target, err)
	}
	return tag.RowsAffected() > 0, nil
}

// RemoveWatch removes the watches of a target, and answers how many there were.
func RemoveWatch(ctx context.Context, db DB, target string) (int, error) {
	return deleteRows(ctx, db, "remove the watch of "+target, `DELETE FROM watches WHERE target = $1`, target)
}

// SyncWatches has every watch's listing read now.
func SyncWatches(ctx context.Context, db DB) error {
	if _, err := db.Exec(ctx, `SELECT enqueue_job('sync_follows', 'network', '{"watch": 0}', '{every-watch}')`); err != nil {
		return fmt.Errorf("have the watches read: %w", err)
	}
	return nil
}

// RecordWatchProblem writes down why a watch's members could not be read by who began
// then, unless it is of something else by now, or was read by somebody who began
// later.
func RecordWatchProblem(ctx context.Context, db DB, w Watch, began time.Time, problem string) error {
	const sql = `UPDATE watches SET problem = $5 WHERE id = $1 AND target = $2 AND kind = $3 AND (synced_at IS NULL OR synced_at <= $4)`
	if _, err := db.Exec(ctx, sql, w.ID, w.Target, w.Kind, began, problem); err != nil {
		return fmt.Errorf("write down the problem of watch %d: %w", w.ID, err)
	}
	return nil
}

// Followed is whom Weir follows.
type Followed struct {
	Everyone bool // no watch: the whole network
	DIDs     []string
}

// AddedMembers are the accounts that a listing of a watch, which began then, was the
// first to bring.
func AddedMembers(ctx context.Context, db DB, watch int64, began time.Time) ([]string, error) {
	const sql = `
SELECT w.did FROM watch_members AS w
WHERE w.watch_id = $1 AND w.added_at = $2
  AND NOT EXISTS (SELECT FROM watch_members AS o WHERE o.did = w.did AND o.added_at < w.added_at)
ORDER BY w.did`
	return all(ctx, db, fmt.Sprintf("list whom watch %d brought", watch), pgx.RowTo[string], sql, watch, began)
}

// FollowedAccounts answers whom Weir follows, in one order.
func FollowedAccounts(ctx context.Context, db DB) (Followed, error) {
	const sql = `
SELECT NOT EXISTS (SELECT FROM watches)                                        AS everyone,
       coalesce((SELECT array_agg(DISTINCT did ORDER BY did) FROM watch_members), '{}') AS dids`
	return one(ctx, db, "read whom to follow", pgx.RowToStructByPos[Followed], sql)
}

// The kinds of watches.
const (
	WatchFollows      = "follows"
	WatchAccount      = "account"
	WatchList         = "list"
	WatchStarterPack  = "starterpack"
	WatchSecondDegree = "second-degree"
)

// Following says how many accounts Weir follows, and why.
type Following struct {
	Watches  int    // 0: the whole network
	Accounts int    // that the watches bring, each counted once
	Kind     string // of the only watch, as are the fields below; empty where there are several, or none
	Target   string
	AtLeast  int
}

// ReadFollowing counts the accounts that Weir follows.
func ReadFollowing(ctx context.Context, db DB) (Following, error) {
	const sql = `
SELECT w.watches                                                    AS watches,
       (SELECT count(*) FROM (SELECT DISTINCT did FROM watch_members) AS d) AS accounts,
       CASE WHEN w.watches = 1 THEN w.kind ELSE '' END              AS kind,
       CASE WHEN w.watches = 1 THEN w.target ELSE '' END            AS target,
       CASE WHEN w.watches = 1 THEN w.at_least ELSE 0 END           AS at_least
FROM (
    SELECT count(*) AS watches, coalesce(min(kind), '') AS kind, coalesce(min(target), '') AS target, coalesce(min(at_least), 0) AS at_least FROM watches
) AS w`
	return one(ctx, db, "count whom Weir follows", pgx.RowToStructByName[Following], sql)
}

// Member is an account that a watch brings, as the listing describes it.
type Member struct {
	DID         string
	Handle      string
	DisplayName string
	Avatar      string
}

// MemberChanges is what a new listing changes.
type MemberChanges struct {
	Added   []string // the DIDs that no watch brought before
	Stored  []string // of these, posts are stored of: they may have been edited or deleted while nobody followed
	Removed int      // members this watch no longer has
	First   bool     // the watch has never been read before
}

// lockWatch locks a watch while a listing of it is taken over, and answers
// whether it has never been read. ErrNoRows when the listing, which began then,
// is of no use any more: the watch is gone, is of something else, or was read by
// somebody who began later.
func lockWatch(ctx context.Context, tx pgx.Tx, w Watch, began time.Time) (first bool, err error) {
	if err := tx.QueryRow(ctx, neverSynced+` FOR UPDATE`, w.ID, w.Target, w.Kind, w.AtLeast, began).Scan(&first); err != nil {
		return false, fmt.Errorf("lock watch %d: %w", w.ID, err)
	}
	return first, nil
}

// SetMembers makes the members of a watch exactly these, each once, and takes
// over how they are called. A member that is named is active, whatever the stream
// said of it more than an hour ago. Members that are hidden stay, and do not
// count until they are named again. began is when the listing's first page was asked for. ErrNoRows when the watch is gone, is of something else than it was, or
// has a listing that began later.
func SetMembers(ctx context.Context, tx pgx.Tx, w Watch, members []Member, hidden []string, began time.Time) (MemberChanges, error) {
	var c MemberChanges
	var err error
	if c.First, err = lockWatch(ctx, tx, w, began); err != nil {
		return c, err
	}
	watch := w.ID
	did, handle, name, avatar := memberColumns(members)
	// One listing at a time decides which accounts are new.
	if _, err := tx.Exec(ctx, `LOCK TABLE watch_members IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return c, fmt.Errorf("lock the watched accounts: %w", err)
	}
	const added = `
WITH known AS (SELECT DISTINCT did FROM watch_members WHERE did = ANY ($2)), new AS (
    INSERT INTO watch_members (watch_id, did, added_at)
    SELECT $1, m.did, $3 FROM unnest($2::text[]) AS m (did) ORDER BY 2
    ON CONFLICT (did, watch_id) DO NOTHING
    RETURNING did
)
SELECT did FROM new WHERE did NOT IN (SELECT did FROM known) ORDER BY did`
	if c.Added, err = all(ctx, tx, fmt.Sprintf("add members of watch %d", watch), pgx.RowTo[string], added, watch, did, began); err != nil {
		return c, err
	}
	tag, err := tx.Exec(ctx, `DELETE FROM watch_members AS w WHERE watch_id = $1 AND NOT EXISTS (SELECT FROM unnest($2::text[] || $3::text[]) AS m (did) WHERE m.did = w.did)`, watch, did, hidden)
	if err != nil {
		return c, fmt.Errorf("remove members of watch %d: %w", watch, err)
	}
	c.Removed = int(tag.RowsAffected())
	const names = `
INSERT INTO accounts AS a (did, handle, handle_at, display_name, avatar)
SELECT m.did, nullif(m.handle, ''), $5, nullif(m.name, ''), nullif(m.avatar, '')
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS m (did, handle, name, avatar)
ORDER BY m.did
ON CONFLICT (did) DO UPDATE
SET handle       = coalesce(excluded.handle, a.handle),
    handle_at    = CASE WHEN excluded.handle IS DISTINCT FROM a.handle THEN excluded.handle_at ELSE a.handle_at END,
    display_name = excluded.display_name,
    avatar       = excluded.avatar,
    status       = CASE WHEN a.status = 'hidden' OR a.status_at IS NULL OR a.status_at < $5 - interval '1 hour' THEN 'active' ELSE a.status END
WHERE a.status = 'hidden' OR a.status <> 'active' AND (a.status_at IS NULL OR a.status_at < $5 - interval '1 hour')
   OR (coalesce(excluded.handle, a.handle), excluded.display_name, excluded.avatar) IS DISTINCT FROM (a.handle, a.display_name, a.avatar)`
	if _, err := tx.Exec(ctx, names, did, handle, name, avatar, began); err != nil {
		return c, fmt.Errorf("write the names of watch %d: %w", watch, err)
	}
	const hide = `
INSERT INTO accounts AS a (did, status, status_at)
SELECT h.did, 'hidden', $2 FROM unnest($1::text[]) AS h (did) ORDER BY h.did
ON CONFLICT (did) DO UPDATE SET status = excluded.status, status_at = excluded.status_at
WHERE a.status = 'active' AND (a.status_at IS NULL OR a.status_at < $2 - interval '1 hour')`
	if _, err := tx.Exec(ctx, hide, hidden, began); err != nil {
		return c, fmt.Errorf("hide members of watch %d: %w", watch, err)
	}
	// What was read before it was followed has holes: hours that a person asked for, days that were purged. What is
	// stored already is to be compared, from the first of it on.
	const forget = `
UPDATE accounts AS a
SET feed_newest = NULL, feed_since = NULL, feed_problem = '', reread_since = tid_time(k.first), reread_asked = a.reread_asked + 1
FROM (
    SELECT a.did, (
        SELECT min(p.rkey) FROM posts AS p
        WHERE p.collection = 'app.bsky.feed.post' AND p.did = a.did AND p.rkey ~ '^[234567a-j][234567a-z]{12}$'
    ) AS first
    FROM accounts AS a
    WHERE a.did = ANY ($1)
    ORDER BY a.did FOR UPDATE
) AS k
WHERE a.did = k.did AND (k.first IS NOT NULL OR a.feed_newest IS NOT NULL OR a.feed_since IS NOT NULL OR a.feed_problem <> '' OR a.reread_since IS NOT NULL)
RETURNING a.did, k.first IS NOT NULL`
	rows, err := tx.Query(ctx, forget, c.Added)
	if err != nil {
		return c, fmt.Errorf("forget how far the feeds of watch %d were read: %w", watch, err)
	}
	var known string
	var stored bool
	if _, err := pgx.ForEachRow(rows, []any{&known, &stored}, func() error {
		if stored {
			c.Stored = append(c.Stored, known)
		}
		return nil
	}); err != nil {
		return c, fmt.Errorf("forget how far the feeds of watch %d were read: %w", watch, err)
	}
	if _, err := tx.Exec(ctx, `UPDATE watches SET synced_at = $2, problem = '' WHERE id = $1`, watch, began); err != nil {
		return c, fmt.Errorf("write down the sync of watch %d: %w", watch, err)
	}
	return c, nil
}

// PollFollows does what ListenFollows does where LISTEN reaches nobody, as
// behind a transaction pooler: it looks often, and calls changed after every
// change it sees, and at least every interval, until ctx ends or the database
// is away.
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
			known, at = seen, time.Now() // what changes from here on is another mark
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

// followsMark is another text after every change of the followed accounts.
func followsMark(ctx context.Context, db DB) (string, error) {
	const sql = `
SELECT concat_ws(' ', (SELECT count(*) FROM watches), count(*), sum(hashtextextended(did, watch_id)))
FROM watch_members`
	return one(ctx, db, "look for a change of follows", pgx.RowTo[string], sql)
}

// ListenFollows calls changed after every change of the followed accounts, and
// at least every interval, until ctx ends or the connection breaks. conn is its
// own.
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
