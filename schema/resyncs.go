package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Desynchronized is an account whose stored records may differ from its repository.
type Desynchronized struct {
	DID   string
	Cause string
	Rev   string // the revision that was not stored; empty if unknown
}

// Resync is an account that a commit marked as desynchronized, and that needs a job.
type Resync struct {
	DID string
	Due time.Time // the job must not begin earlier
}

const (
	// maxDesynchronized limits the accounts that are desynchronized at the same time.
	// Further ones are not marked: anybody can invent accounts.
	maxDesynchronized = 10_000

	// unknownRev sorts after every revision.
	unknownRev = "zzzzzzzzzzzzz"

	// resyncLost is how long after its due time a job that has not begun counts as lost,
	// because somebody deleted it.
	resyncLost = 24 * time.Hour
)

// sortedDesynchronized returns one mark per account, with its highest revision, in the
// order in which rows are locked.
func sortedDesynchronized(marks []Desynchronized) []Desynchronized {
	marks = slices.Clone(marks)
	for i := range marks {
		marks[i].Rev = cmp.Or(marks[i].Rev, unknownRev)
	}
	slices.SortStableFunc(marks, func(a, b Desynchronized) int { return cmp.Or(cmp.Compare(a.DID, b.DID), cmp.Compare(b.Rev, a.Rev)) })
	return slices.CompactFunc(marks, func(a, b Desynchronized) bool { return a.DID == b.DID })
}

// queueDesynchronized marks accounts. It adds those that have no job yet to b.Resyncs. An
// account needs no resync for a revision that a resync has already compared.
func (b *Batch) queueDesynchronized(q *pgx.Batch, marks []Desynchronized) {
	if len(marks) == 0 {
		return
	}
	const sql = `
INSERT INTO resyncs AS r (did, desynchronized_at, cause, wanted, requested_at, due_at)
SELECT d.did, now(), d.cause, d.rev, now(), now()
FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY AS d (did, cause, rev, n)
LEFT JOIN resyncs AS k ON k.did = d.did
WHERE CASE WHEN k.did IS NOT NULL THEN d.rev COLLATE "C" > k.rev
           ELSE (SELECT count(*) FROM (SELECT FROM resyncs WHERE desynchronized_at IS NOT NULL LIMIT $4) AS open) + d.n <= $4 END
ORDER BY d.n
ON CONFLICT (did) DO UPDATE
SET desynchronized_at = coalesce(r.desynchronized_at, now()),
    cause             = excluded.cause,
    wanted            = greatest(r.wanted, excluded.wanted),
    requested_at      = CASE WHEN r.desynchronized_at IS NULL OR r.due_at < now() - $5::interval THEN now() ELSE r.requested_at END,
    due_at            = CASE WHEN r.due_at < now() - $5::interval THEN now() ELSE r.due_at END
WHERE excluded.wanted > r.wanted OR r.desynchronized_at IS NULL OR r.due_at < now() - $5::interval
RETURNING did, due_at, requested_at = now()`
	marks = sortedDesynchronized(marks)
	did, cause, rev := make(pgtype.FlatArray[string], len(marks)), make(pgtype.FlatArray[string], len(marks)),
		make(pgtype.FlatArray[string], len(marks))
	for i, m := range marks {
		did[i], cause[i], rev[i] = m.DID, Text(m.Cause), m.Rev
	}
	q.Queue(sql, did, cause, rev, maxDesynchronized, resyncLost).Query(func(rows pgx.Rows) error {
		before := make(map[string]bool, len(b.Resyncs)) // an account may have been marked before because its chain is broken
		for i := range b.Resyncs {
			before[b.Resyncs[i].DID] = true
		}
		var r Resync
		var due bool
		_, err := pgx.ForEachRow(rows, []any{&r.DID, &r.Due, &due}, func() error {
			if due && !before[r.DID] {
				b.Resyncs = append(b.Resyncs, r)
			}
			return nil
		})
		return err
	})
}

// ResyncState is the state of an account that a resync depends on.
type ResyncState struct {
	Begun    bool          // this call began a resync
	Wait     time.Duration // if not: the time until it may begin; zero or less: too many have begun in the last hour
	Age      time.Duration // since it was desynchronized
	Failed   bool          // the last comparison failed
	Status   string        // of the account
	Watched  bool          // the account is followed
	Everyone bool          // the whole network is followed
	Sought   string        // the revision that a mirror's copy must have; later than all if it is unknown
}

// BeginResync begins a resync of an account if it is due and active, and fewer than perHour
// have begun in the last hour. If the account's last comparison failed, the resync begins
// only if failed is set. It returns ErrNoRows if the account is not desynchronized. If the
// resync does not end, the next one may begin after again.
func BeginResync(ctx context.Context, db DB, did string, perHour int, again time.Duration, failed bool) (ResyncState, error) {
	const sql = `
WITH begun AS (
    UPDATE resyncs
    SET begun_at = now(), sought = greatest(sought, wanted), wanted = '', due_at = now() + $3::interval
    WHERE did = $1 AND desynchronized_at IS NOT NULL AND due_at <= now() AND (problem = '' OR $4)
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = $1 AND a.status <> 'active')
      AND (SELECT count(*) FROM (SELECT FROM resyncs WHERE begun_at > now() - interval '1 hour' LIMIT $2) AS recent) < $2
    RETURNING did
)
SELECT EXISTS (SELECT FROM begun)                                                AS begun,
       r.due_at - now()                                                          AS wait,
       now() - r.desynchronized_at                                               AS age,
       r.problem <> ''                                                           AS failed,
       coalesce((SELECT a.status FROM accounts AS a WHERE a.did = $1), 'active') AS status,
       EXISTS (SELECT FROM watch_members AS w WHERE w.did = $1)                  AS watched,
       NOT EXISTS (SELECT FROM watches)                                          AS everyone,
       greatest(r.sought, r.wanted)                                              AS sought
FROM resyncs AS r
WHERE r.did = $1 AND r.desynchronized_at IS NOT NULL`
	return One(ctx, db, "begin the resync of "+did, pgx.RowToStructByPos[ResyncState], sql, did, perHour, again, failed)
}

// IsDesynchronized reports whether an account must be compared with its repository.
func IsDesynchronized(ctx context.Context, db DB, did string) (bool, error) {
	const sql = `SELECT EXISTS (SELECT FROM resyncs WHERE did = $1 AND desynchronized_at IS NOT NULL)`
	return One(ctx, db, "find the resync of "+did, pgx.RowTo[bool], sql, did)
}

// ResyncResult is the result of comparing an account with its repository.
type ResyncResult struct {
	Rev     string // the repository's revision
	Data    []byte // hash of the root of the repository's tree; nil: unknown
	Changed bool   // a difference was found
	Useful  time.Duration
	Useless time.Duration // the wait until the next resync: Useful after a difference, else Useless, which doubles up to a day
}

// EndResync records that an account was compared with its repository. It returns zero if
// the account is synchronized now. If a later revision was refused meanwhile, it returns
// how long the next resync has to wait. Dead letters that waited for the comparison are
// settled: what was true in them is stored.
func EndResync(ctx context.Context, tx pgx.Tx, did string, r ResyncResult) (again time.Duration, err error) {
	// The lock makes a commit that marks the account now wait.
	wanted, err := One(ctx, tx, "end the resync of "+did, pgx.RowTo[string], `SELECT wanted FROM resyncs WHERE did = $1 FOR UPDATE`, did)
	if errors.Is(err, ErrNoRows) { // the account was purged meanwhile
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	refused := `last_seen < (SELECT r.begun_at FROM resyncs AS r WHERE r.did = $1)`
	if wanted != "" && wanted <= r.Rev {
		refused = `true` // events refused since then are not later than the repository either
	}
	if err := settleRefused(ctx, tx, did, refused); err != nil {
		return 0, err
	}
	// The chain continues from the commit that was compared.
	const chain = `UPDATE chains SET rev = $2, data = $3 WHERE did = $1 AND rev < $2 AND $3::bytea IS NOT NULL`
	if _, err := tx.Exec(ctx, chain, did, r.Rev, r.Data); err != nil {
		return 0, fmt.Errorf("move the chain of %s: %w", did, err)
	}
	const sql = `
UPDATE resyncs
SET desynchronized_at = CASE WHEN wanted > $2 THEN desynchronized_at END,
    synchronized_at   = now(),
    sought            = '',
    rev               = greatest(rev, $2),
    unchanged         = CASE WHEN $3 THEN 0 ELSE unchanged + 1 END,
    due_at            = now() + CASE WHEN $3 THEN $4::interval ELSE least($5::interval * 2 ^ least(unchanged, 10), interval '1 day') END,
    problem           = ''
WHERE did = $1
RETURNING CASE WHEN desynchronized_at IS NOT NULL THEN due_at - now() ELSE interval '0' END`
	return One(ctx, tx, "end the resync of "+did, pgx.RowTo[time.Duration], sql, did, r.Rev, r.Changed, r.Useful, r.Useless)
}

// queueSettled dismisses the dead letters of this batch whose commits were refused but are
// not later than what a resync of their account has compared. What is true in them is
// stored, and no other resync will settle them.
func (b *Batch) queueSettled(q *pgx.Batch) {
	const sql = `
UPDATE dead_letters
SET state = 'dismissed', state_at = now()
WHERE id = ANY (ARRAY(
    SELECT coalesce(nullif(d.id, 0), (SELECT l.id FROM dead_letters AS l WHERE l.key = d.key))
    FROM unnest($1::bytea[], $2::bigint[], $3::text[], $4::text[]) AS d (key, id, did, rev)
    JOIN resyncs AS r ON r.did = d.did AND r.rev >= d.rev COLLATE "C"
)) AND state = 'open'`
	var key [][]byte
	var id []int64
	var did, rev []string
	for i := range b.DeadLetters {
		if d := &b.DeadLetters[i]; d.Stage == StageVerify && d.Class != ClassRetryable && d.Rev != "" {
			key, id, did, rev = append(key, d.hash()), append(id, d.ID), append(did, d.Key.DID), append(rev, d.Rev)
		}
	}
	if len(key) > 0 {
		q.Queue(sql, key, id, did, rev)
	}
}

// settleRefused dismisses the dead letters of an account's refused commits, under a
// condition.
func settleRefused(ctx context.Context, tx pgx.Tx, did, condition string) error {
	sql := `
UPDATE dead_letters
SET state = 'dismissed', state_at = now()
WHERE did = $1 AND stage = 'verify' AND class = 'permanent' AND state = 'open' AND ` + condition
	return Exec(ctx, tx, "settle the dead letters of "+did, sql, did)
}

// PostponeResync records why an account could not be compared, and when to try again.
func PostponeResync(ctx context.Context, db DB, did, problem string, wait time.Duration) error {
	return Exec(ctx, db, "postpone the resync of "+did, `UPDATE resyncs SET problem = $2, due_at = now() + $3::interval WHERE did = $1`, did,
		Text(problem), wait)
}

// DropResync deletes the mark of an account that needs no resync any more, because nothing
// of it is stored. It also settles the account's refused commits.
func DropResync(ctx context.Context, tx pgx.Tx, did string) error {
	if err := settleRefused(ctx, tx, did, `true`); err != nil {
		return err
	}
	return Exec(ctx, tx, "drop the resync of "+did, `DELETE FROM resyncs WHERE did = $1`, did)
}

// ExpireResyncs deletes the rows of accounts that were synchronized at or before a time.
// This forgets their last compared revision.
func ExpireResyncs(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	const sql = `
DELETE FROM resyncs
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM resyncs WHERE desynchronized_at IS NULL AND synchronized_at <= $1
    ORDER BY synchronized_at LIMIT $2 FOR UPDATE SKIP LOCKED
)) AND desynchronized_at IS NULL`
	return Change(ctx, db, "expire resyncs", sql, before, limit)
}
