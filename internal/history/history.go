// Package history records how far a collection's past has been read: its accounts, as relays list
// them, and which of them have been read. Workers read; this package has the queries.
package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// States of a history. The others are waiting (for a stream that stores the collection), reading (all
// accounts are known and are being read) and cancelled.
const (
	StateListing  = "listing" // relays are asked for the accounts
	StateComplete = "complete"
)

// History is the progress of reading a collection's past.
type History struct {
	Collection string `json:"collection"` // a name, or a prefix such as pub.layers.*
	State      string `json:"state"`
	Accounts   int64  `json:"accounts"` // known so far
	Done       int64  `json:"done"`
	Unread     int64  `json:"unread"`  // cannot be read for now
	Limited    int64  `json:"limited"` // those of Done that reached the limit per account
	Records    int64  `json:"records"` // records of the accounts in Done
	Bytes      int64  `json:"bytes"`
	Problem    string `json:"problem"` // why it makes no progress; empty: it does
}

// ofNostr is true if the history h is of kinds of Nostr. If everyone is followed, its listings are
// of relays, named by their streams: they are asked for the records, not for accounts.
const ofNostr = `starts_with(h.collection, 'nostr.')`

// maxHistories limits the histories that reports show.
const maxHistories = 100

// Histories lists the first histories by name.
func Histories(ctx context.Context, db schema.DB) ([]History, error) {
	const sql = `
SELECT h.collection AS collection,
       CASE WHEN h.cancelled_at IS NOT NULL THEN 'cancelled'
            WHEN h.completed_at IS NOT NULL THEN 'complete'
            WHEN h.began_at IS NULL         THEN 'waiting'
            WHEN NOT EXISTS (SELECT FROM watches) AND NOT ` + ofNostr + `
             AND (NOT EXISTS (SELECT FROM history_listings AS l WHERE l.collection = h.collection AND l.run = h.run)
                  OR EXISTS (SELECT FROM history_listings AS l
                      WHERE l.collection = h.collection AND l.run = h.run AND l.ended_at IS NULL)) THEN 'listing'
            ELSE 'reading' END AS state,
       h.accounts AS accounts, h.done AS done, h.unread AS unread, h.limited AS limited, h.records AS records, h.bytes AS bytes,
       coalesce(nullif(h.problem, ''),
           (SELECT max(l.problem) FROM history_listings AS l WHERE l.collection = h.collection AND l.run = h.run), '') AS problem
FROM histories AS h
ORDER BY h.collection
LIMIT $1`
	return schema.All(ctx, db, "read the histories", pgx.RowToStructByName[History], sql, maxHistories)
}

// Request requests the past of a collection or a prefix, through the SQL function
// enqueue_history. It returns the id of the job.
func Request(ctx context.Context, db schema.DB, collection string) (int64, error) {
	return schema.One(ctx, db, "request the history of "+collection, pgx.RowTo[int64], `SELECT enqueue_history($1)`, collection)
}

// Cancel cancels the histories that are not complete, and returns their number.
func Cancel(ctx context.Context, db schema.DB) (int, error) {
	return schema.Change(ctx, db, "cancel histories", `
UPDATE histories
SET cancelled_at = now()
WHERE completed_at IS NULL AND cancelled_at IS NULL`)
}

// covers is true if the entry s of stored_collections covers the history h.
const covers = `(s.collection = h.collection OR right(s.collection, 1) = '*' AND starts_with(h.collection, left(s.collection, -1)))`

// StoreCollections records the entries that a stream reads from now on, and begins
// histories of those entries in full that have none. An entry that was removed and comes
// back is read again, because the stream did not bring its records meanwhile.
func StoreCollections(ctx context.Context, tx pgx.Tx, entries, full []string) error {
	if _, err := tx.Exec(ctx, `DELETE FROM stored_collections WHERE collection <> ALL ($1::text[])`, entries); err != nil {
		return fmt.Errorf("store the collections of the stream: %w", err)
	}
	const add = `INSERT INTO stored_collections (collection) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING RETURNING collection`
	added, err := schema.All(ctx, tx, "store the collections of the stream", pgx.RowTo[string], add, entries)
	if err != nil {
		return err
	}
	const again = `
WITH stale AS (
    UPDATE histories AS h SET completed_at = now()
    WHERE h.began_at IS NOT NULL AND h.cancelled_at IS NULL
        AND EXISTS (SELECT FROM unnest($1::text[]) AS s (collection) WHERE ` + covers + `)
    RETURNING h.collection
)
SELECT collection FROM stale ORDER BY collection`
	stale, err := schema.All(ctx, tx, "find histories to read again", pgx.RowTo[string], again, added)
	if err != nil {
		return err
	}
	for _, name := range stale {
		if _, err := Request(ctx, tx, name); err != nil {
			return err
		}
	}
	const begin = `INSERT INTO histories (collection, reason) SELECT unnest($1::text[]), 'new' ON CONFLICT DO NOTHING`
	return schema.Exec(ctx, tx, "begin histories", begin, full)
}

// Run is a run of a history that was not cancelled.
type Run struct {
	Collection string
	Run        int
	Began      bool
	Complete   bool
	Stored     bool // a stream stores the collection
	Streamed   bool // and that stream has advanced since
}

// Runs lists the histories that were not cancelled.
func Runs(ctx context.Context, db schema.DB) ([]Run, error) {
	const sql = `
SELECT h.collection AS collection, h.run AS run, h.began_at IS NOT NULL AS began, h.completed_at IS NOT NULL AS complete,
       EXISTS (SELECT FROM stored_collections AS s WHERE ` + covers + `) AS stored,
       EXISTS (SELECT FROM stored_collections AS s
               JOIN streams AS t ON t.wire <> $1 AND greatest(t.advanced_at, t.caught_up_at) > s.since
                   AND starts_with(t.name, 'nostr:') = ` + ofNostr + `
               WHERE ` + covers + `) AS streamed
FROM histories AS h
WHERE h.cancelled_at IS NULL
ORDER BY h.collection`
	return schema.All(ctx, db, "read the runs of histories", pgx.RowToStructByName[Run], sql, schema.WireRecording)
}

// BeginRun records that a run begins.
func BeginRun(ctx context.Context, db schema.DB, h Run) error {
	_, err := db.Exec(ctx, `
UPDATE histories
SET began_at = clock_timestamp(), problem = ''
WHERE collection = $1 AND run = $2 AND began_at IS NULL`, h.Collection, h.Run)
	if err != nil {
		return fmt.Errorf("begin the history of %s: %w", h.Collection, err)
	}
	return nil
}

// SetProblem records why a history makes no progress; empty: it does.
func SetProblem(ctx context.Context, db schema.DB, h Run, problem string) error {
	const sql = `UPDATE histories SET problem = $3 WHERE collection = $1 AND run = $2 AND problem <> $3`
	return schema.Exec(ctx, db, "record the problem of the history of "+h.Collection, sql, h.Collection, h.Run, schema.Text(problem))
}

// Listed is whether the accounts of a run are listed from relays.
type Listed bool

// CompleteRun ends a run whose accounts have all been read, except those that cannot be. The
// listings of a listed run must have ended too. It reports whether it ended the run.
func CompleteRun(ctx context.Context, db schema.DB, h Run, listed Listed) (History, bool, error) {
	const sql = `
UPDATE histories AS h
SET completed_at = now(), problem = ''
WHERE h.collection = $1 AND h.run = $2 AND h.began_at IS NOT NULL AND h.completed_at IS NULL AND h.cancelled_at IS NULL
  AND NOT EXISTS (SELECT FROM history_accounts AS a WHERE a.collection = h.collection AND a.run = h.run AND a.state = 'waiting')
  AND (NOT $3 OR EXISTS (SELECT FROM history_listings AS l WHERE l.collection = h.collection AND l.run = h.run)
             AND NOT EXISTS (SELECT FROM history_listings AS l WHERE l.collection = h.collection AND l.run = h.run AND l.ended_at IS NULL))
RETURNING h.collection, 'complete', h.accounts, h.done, h.unread, h.limited, h.records, h.bytes, ''`
	done, err := schema.One(ctx, db, "complete the history of "+h.Collection, pgx.RowToStructByPos[History], sql, h.Collection, h.Run,
		listed)
	if errors.Is(err, schema.ErrNoRows) {
		return History{}, false, nil
	}
	return done, err == nil, err
}

// Listing is the progress of listing a collection's accounts from relays.
type Listing struct {
	Collection string // the collection of the history
	Name       string // the collection that relays are asked for
	Run        int
	Host       string // the relay that returned Cursor; empty: none yet
	Cursor     string
	Pages      int64
	Seen       int64
	Tries      int
	Known      int64 // the accounts of the history
}

// MaxNames limits the names of a history: the names under a prefix come from
// strangers.
const MaxNames = 1000

// AddNames adds listings of collections to a run.
func AddNames(ctx context.Context, db schema.DB, collection string, run int, names []string) error {
	const sql = `
INSERT INTO history_listings AS l (collection, name, run)
SELECT $1, n.name, $2 FROM unnest($3::text[]) WITH ORDINALITY AS n (name, i)
WHERE (SELECT count(*) FROM history_listings WHERE collection = $1) + n.i <= $4
   OR EXISTS (SELECT FROM history_listings AS k WHERE k.collection = $1 AND k.name = n.name)
ORDER BY n.name
ON CONFLICT (collection, name) DO UPDATE
SET run = excluded.run, host = '', cursor = '', pages = 0, seen = 0, tries = 0, retry_at = '-infinity', ended_at = NULL, problem = ''
WHERE l.run < excluded.run`
	if len(names) == 0 {
		return nil
	}
	return schema.Exec(ctx, db, "add names to the history of "+collection, sql, collection, run, names, MaxNames)
}

// Names returns the names of all runs of a history so far, including the current
// one.
func Names(ctx context.Context, db schema.DB, collection string) ([]string, error) {
	return schema.All(ctx, db, "read the names of the history of "+collection, pgx.RowTo[string],
		`SELECT name FROM history_listings WHERE collection = $1`, collection)
}

// OpenListings lists the listings of a run that have not ended and are due.
func OpenListings(ctx context.Context, db schema.DB, h Run) ([]Listing, error) {
	const sql = `
SELECT l.collection AS collection, l.name AS name, l.run AS run, l.host AS host, l.cursor AS cursor, l.pages AS pages, l.seen AS seen,
    l.tries AS tries, h.accounts AS known
FROM history_listings AS l
JOIN histories AS h ON h.collection = l.collection
WHERE l.collection = $1 AND l.run = $2 AND l.ended_at IS NULL AND l.retry_at <= now()
ORDER BY l.name`
	return schema.All(ctx, db, "read the listings of "+h.Collection, pgx.RowToStructByName[Listing], sql, h.Collection, h.Run)
}

// newWaiting inserts an account that waits for a run, or moves it there from an earlier
// run.
const newWaiting = `
ON CONFLICT (collection, did) DO UPDATE
SET run = excluded.run, state = 'waiting', position = NULL, records = 0, bytes = 0, limited = false, tries = 0, retry_at = NULL,
    problem = ''
WHERE a.run < excluded.run`

// ErrMoved means that another process has moved a listing or an account's position, or
// that the history began again.
var ErrMoved = errors.New("the history has moved meanwhile")

// MoveListing stores the accounts of a listing's next page, and the position after it.
// An empty cursor ends the listing. It returns how many of the accounts are new.
func MoveListing(ctx context.Context, tx pgx.Tx, l Listing, host, cursor string, dids []string) (added int64, err error) {
	const move = `
UPDATE history_listings
SET host = $4, cursor = $5, pages = pages + 1, seen = seen + $6, tries = 0, problem = '', ended_at = CASE WHEN $5 = '' THEN now() END
WHERE collection = $1 AND name = $2 AND run = $3 AND pages = $7 AND host = $8 AND ended_at IS NULL`
	tag, err := tx.Exec(ctx, move, l.Collection, l.Name, l.Run, host, cursor, len(dids), l.Pages, l.Host)
	if err != nil {
		return 0, fmt.Errorf("move the listing of %s: %w", l.Name, err)
	}
	if tag.RowsAffected() == 0 {
		return 0, ErrMoved
	}
	const add = `
INSERT INTO history_accounts AS a (collection, did, run) SELECT $1, d.did, $2
FROM unnest($3::text[]) AS d (did)
ORDER BY d.did` + newWaiting
	if tag, err = tx.Exec(ctx, add, l.Collection, l.Run, pgtype.FlatArray[string](dids)); err != nil {
		return 0, fmt.Errorf("store accounts of the history of %s: %w", l.Collection, err)
	}
	return tag.RowsAffected(), countAccounts(ctx, tx, l.Collection, l.Run, tag.RowsAffected())
}

// MoveRelay stores how far a relay was read for a history of kinds: down to the date l.Cursor. An
// empty cursor ends the listing. It counts the events that the relay sent and the records stored.
// problem says what the relay did not send; it stays.
func MoveRelay(ctx context.Context, db schema.DB, l Listing, events, records int, problem string) error {
	const sql = `
WITH moved AS (
    UPDATE history_listings
    SET cursor = $4, pages = pages + 1, seen = seen + $5, tries = 0,
        problem = CASE WHEN $7 <> '' THEN $7 WHEN tries > 0 THEN '' ELSE problem END, ended_at = CASE WHEN $4 = '' THEN now() END
    WHERE collection = $1 AND name = $2 AND run = $3 AND pages = $8 AND ended_at IS NULL
    RETURNING run
)
UPDATE histories AS h SET records = h.records + $6 FROM moved AS m WHERE h.collection = $1 AND h.run = m.run`
	tag, err := db.Exec(ctx, sql, l.Collection, l.Name, l.Run, l.Cursor, events, records, schema.Text(problem), l.Pages)
	switch {
	case err != nil:
		return fmt.Errorf("move the reading of %s: %w", l.Name, err)
	case tag.RowsAffected() == 0:
		return ErrMoved
	}
	return nil
}

// countAccounts counts new accounts of a run. A run that was complete continues.
func countAccounts(ctx context.Context, tx pgx.Tx, collection string, run int, added int64) error {
	if added == 0 {
		return nil
	}
	const sql = `UPDATE histories SET accounts = accounts + $3, completed_at = NULL WHERE collection = $1 AND run = $2`
	return schema.Exec(ctx, tx, "count the accounts of the history of "+collection, sql, collection, run, added)
}

// FailListing records a failed attempt at a listing. A rejected one starts over, at l.Host.
func FailListing(ctx context.Context, db schema.DB, l Listing, problem string, wait time.Duration, attempt Attempt) error {
	const sql = `
UPDATE history_listings
SET host = $5, cursor = CASE WHEN $7 THEN '' ELSE cursor END, pages = CASE WHEN $7 THEN 0 ELSE pages END,
    seen = CASE WHEN $7 THEN 0 ELSE seen END,
    tries = tries + 1, retry_at = now() + $8::interval, problem = $6
WHERE collection = $1 AND name = $2 AND run = $3 AND pages = $4 AND ended_at IS NULL`
	return schema.Exec(ctx, db, "record the failed listing of "+l.Name, sql, l.Collection, l.Name, l.Run, l.Pages, l.Host,
		schema.Text(problem), attempt == Rejected, wait)
}

// AddFollowed adds at most limit followed accounts to a run. It only adds
// accounts that have been followed for settled or longer: their stream brings what they
// write from now on.
func AddFollowed(ctx context.Context, tx pgx.Tx, h Run, settled time.Duration, limit int) (added int64, err error) {
	const sql = `
INSERT INTO history_accounts AS a (collection, did, run)
SELECT $1, f.did, $2
FROM (SELECT DISTINCT w.did FROM watch_members AS w
    WHERE w.added_at < now() - $3::interval AND (w.did LIKE ` + schema.NostrDIDs + `) = starts_with($1, 'nostr.')) AS f
WHERE NOT EXISTS (SELECT FROM history_accounts AS k WHERE k.collection = $1 AND k.did = f.did AND k.run >= $2)
  AND NOT EXISTS (SELECT FROM accounts AS c WHERE c.did = f.did AND c.status = 'deleted')
ORDER BY f.did
LIMIT $4` + newWaiting
	tag, err := tx.Exec(ctx, sql, h.Collection, h.Run, settled, limit)
	if err != nil {
		return 0, fmt.Errorf("add followed accounts to the history of %s: %w", h.Collection, err)
	}
	return tag.RowsAffected(), countAccounts(ctx, tx, h.Collection, h.Run, tag.RowsAffected())
}
