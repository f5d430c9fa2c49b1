package history

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// waitingAccounts are the accounts that a running history waits for.
const waitingAccounts = `history_accounts AS a
    JOIN histories AS h ON h.collection = a.collection AND h.run = a.run AND h.cancelled_at IS NULL
    WHERE a.state = 'waiting'`

// Queue holds the counts that decide how many jobs histories may add.
type Queue struct {
	Waiting int  // accounts that wait for their turn, up to the limit
	Jobs    int  // unfinished jobs of histories
	Others  bool // other backfills wait
}

// ReadQueue reads the queue of histories. It counts at most limit accounts.
func ReadQueue(ctx context.Context, db schema.DB, limit int) (Queue, error) {
	const sql = `
SELECT (SELECT count(*) FROM (SELECT FROM ` + waitingAccounts + ` LIMIT $1) AS w)                                   AS waiting,
       (SELECT count(*) FROM river_job WHERE kind = 'backfill_repo' AND state IN ` + schema.UnfinishedStates + `)         AS jobs,
       EXISTS (SELECT FROM river_job WHERE state = 'available' AND queue = 'backfill' AND kind <> 'backfill_repo')  AS others`
	return schema.One(ctx, db, "read the queue of histories", pgx.RowToStructByName[Queue], sql, limit)
}

// AccountsWithoutJob lists at most limit accounts that wait and have no job.
func AccountsWithoutJob(ctx context.Context, db schema.DB, limit int) ([]string, error) {
	const sql = `
WITH working AS MATERIALIZED (SELECT j.args ->> 'did' AS did FROM river_job AS j
    WHERE j.kind = 'backfill_repo' AND j.state IN ` + schema.UnfinishedStates + `)
SELECT DISTINCT a.did FROM ` + waitingAccounts + ` AND NOT EXISTS (SELECT FROM working AS w WHERE w.did = a.did)
ORDER BY a.did
LIMIT $1`
	return schema.All(ctx, db, "list the accounts of histories", pgx.RowTo[string], sql, limit)
}

// RetryAccounts makes at most limit accounts that could not be read wait again, if
// they are active and a retry is due.
func RetryAccounts(ctx context.Context, db schema.DB, limit int) error {
	const sql = `
WITH due AS (
    SELECT a.collection, a.did FROM history_accounts AS a
    WHERE a.state = 'unread' AND a.retry_at <= now()
      AND EXISTS (SELECT FROM histories AS h WHERE h.collection = a.collection AND h.run = a.run AND h.cancelled_at IS NULL)
      AND NOT EXISTS (SELECT FROM accounts AS c WHERE c.did = a.did AND c.status <> 'active')
    ORDER BY a.retry_at
    LIMIT $1
    FOR UPDATE SKIP LOCKED
), again AS (
    UPDATE history_accounts AS a SET state = 'waiting', retry_at = NULL
    FROM due AS d WHERE a.collection = d.collection AND a.did = d.did
    RETURNING a.collection, a.run
)
UPDATE histories AS h SET unread = h.unread - n.n
FROM (SELECT collection, run, count(*) AS n FROM again GROUP BY collection, run) AS n
WHERE h.collection = n.collection AND h.run = n.run`
	return schema.Exec(ctx, db, "retry accounts of histories", sql, limit)
}

// Account is an account that a history waits for.
type Account struct {
	Collection string // the collection of the history
	DID        string
	Run        int
	Position   json.RawMessage // nil: it has not been read
	Records    int64
	Bytes      int64
	Tries      int
}

// Owner holds what decides whether, and how far, an account is read.
type Owner struct {
	Status  string
	Wanted  bool  // it is followed, or everyone is
	Records int64 // records that histories have read of it
	Bytes   int64
}

// FindOwner reads the state of an account of histories.
func FindOwner(ctx context.Context, db schema.DB, did string) (Owner, error) {
	const sql = `
SELECT coalesce((SELECT c.status FROM accounts AS c WHERE c.did = $1), 'active')                                     AS status,
       NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = $1)                  AS wanted,
       coalesce(sum(a.records), 0)::bigint                                                                           AS records,
       coalesce(sum(a.bytes), 0)::bigint                                                                             AS bytes
FROM histories AS h
JOIN history_accounts AS a ON a.collection = h.collection AND a.did = $1 AND a.state = 'done'`
	return schema.One(ctx, db, "read the account "+did+" of histories", pgx.RowToStructByName[Owner], sql, did)
}

// WaitingFor lists the histories that wait for an account, by name.
func WaitingFor(ctx context.Context, db schema.DB, did string) ([]Account, error) {
	const sql = `
SELECT a.collection AS collection, a.did AS did, a.run AS run, a.position AS position, a.records AS records, a.bytes AS bytes,
       a.tries AS tries
FROM ` + waitingAccounts + ` AND a.did = $1
ORDER BY a.collection`
	return schema.All(ctx, db, "read the histories of "+did, pgx.RowToStructByName[Account], sql, did)
}

// MoveAccount stores the position in an account's repository, and counts the
// records that were read.
func MoveAccount(ctx context.Context, tx pgx.Tx, a Account) error {
	const sql = `
UPDATE history_accounts
SET position = $4, records = $5, bytes = $6
WHERE collection = $1 AND did = $2 AND run = $3 AND state = 'waiting'`
	tag, err := tx.Exec(ctx, sql, a.Collection, a.DID, a.Run, a.Position, a.Records, a.Bytes)
	if err != nil {
		return fmt.Errorf("store the position in %s: %w", a.DID, err)
	}
	if tag.RowsAffected() == 0 {
		return ErrMoved
	}
	return nil
}

// EndAccount records that an account was read, to the end or to the limit.
func EndAccount(ctx context.Context, db schema.DB, a Account, limited bool) error {
	const sql = `
WITH ended AS (
    UPDATE history_accounts SET state = 'done', records = $4, bytes = $5, limited = $6, position = NULL, read_at = now(), tries = 0,
        problem = ''
    WHERE collection = $1 AND did = $2 AND run = $3 AND state = 'waiting'
    RETURNING run
)
UPDATE histories AS h SET done = h.done + 1, records = h.records + $4, bytes = h.bytes + $5, limited = h.limited + $6::boolean::int
FROM ended AS e
WHERE h.collection = $1 AND h.run = e.run`
	return schema.Exec(ctx, db, "end the history of "+a.DID, sql, a.Collection, a.DID, a.Run, a.Records, a.Bytes, limited)
}

// Attempt is how an attempt to read an account ended.
type Attempt int

const (
	Untried  Attempt = iota // it does not count
	Failed                  // the next one continues
	Rejected                // the next one starts from the beginning
)

// PostponeAccount records why an account cannot be read, and when to try again;
// zero: not in this run.
func PostponeAccount(ctx context.Context, db schema.DB, a Account, problem string, wait time.Duration, attempt Attempt) error {
	const sql = `
WITH postponed AS (
    UPDATE history_accounts
    SET state = 'unread', problem = $4, retry_at = CASE WHEN $5::interval > interval '0' THEN now() + $5::interval END,
        tries = tries + $6::boolean::int,
        position = CASE WHEN NOT $7 THEN position END,
        records = CASE WHEN $7 THEN 0 ELSE records END,
        bytes   = CASE WHEN $7 THEN 0 ELSE bytes END
    WHERE collection = $1 AND did = $2 AND run = $3 AND state = 'waiting'
    RETURNING run
)
UPDATE histories AS h SET unread = h.unread + 1 FROM postponed AS p WHERE h.collection = $1 AND h.run = p.run`
	return schema.Exec(ctx, db, "postpone the history of "+a.DID, sql, a.Collection, a.DID, a.Run, schema.Text(problem), wait,
		attempt != Untried, attempt == Rejected)
}

// DropAccount takes an account off a history that waits for it, because it is
// deleted or no longer followed.
func DropAccount(ctx context.Context, db schema.DB, a Account) error {
	const sql = `
WITH dropped AS (
    DELETE FROM history_accounts WHERE collection = $1 AND did = $2 AND run = $3 AND state = 'waiting' RETURNING run
)
UPDATE histories AS h SET accounts = h.accounts - 1 FROM dropped AS d WHERE h.collection = $1 AND h.run = d.run`
	return schema.Exec(ctx, db, fmt.Sprintf("drop %s from its history", a.DID), sql, a.Collection, a.DID, a.Run)
}

// Purge deletes the record that a purgeable account was read: if the account
// returns, it is read again. There are few histories, so it needs no limit.
func Purge(ctx context.Context, db schema.DB, did string, _ int) (int, error) {
	const sql = `
WITH forgotten AS (
    DELETE FROM history_accounts WHERE collection IN (SELECT collection FROM histories) AND did = $1 AND state <> 'waiting'
        AND` + schema.PurgeableCondition + `
    RETURNING collection, run, state
), unread AS (
    UPDATE histories AS h SET accounts = h.accounts - 1, unread = h.unread - 1
    FROM forgotten AS f WHERE h.collection = f.collection AND h.run = f.run AND f.state = 'unread'
)
SELECT count(*) FROM forgotten`
	return schema.One(ctx, db, "forget the histories of "+did, pgx.RowTo[int], sql, did)
}
