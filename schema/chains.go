package schema

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ChainedCommit is a verified commit in the chain of an account's commits.
type ChainedCommit struct {
	DID    string
	Rev    string
	Data   []byte // hash of the root of the repository's tree
	Prev   []byte // the hash before the commit, as its operations show; nil: there is none
	Broken string // why Prev is not shown; empty: it is shown
}

// rising returns the commits without those that repeat earlier ones, in order.
func rising(commits []ChainedCommit) []ChainedCommit {
	last := map[string]string{}
	return slices.DeleteFunc(slices.Clone(commits), func(c ChainedCommit) bool {
		if c.Rev <= last[c.DID] {
			return true
		}
		last[c.DID] = c.Rev
		return false
	})
}

// queueChained compares commits with the last known commits of their accounts, and moves
// these forward. It appends to broken the accounts of which a commit is missing. The
// chain of an account begins with the first commit that is seen of it. Only those of
// followed accounts are kept.
//
// A gap makes them unknown: the accounts are compared anyway.
func (b *Batch) queueChained(q *pgx.Batch, broken *[]Desynchronized) {
	if b.Gap != nil {
		q.Queue(`DELETE FROM chains`)
	}
	if len(b.Chained) == 0 {
		return
	}
	const sql = `
WITH known AS (
    SELECT c.did, c.rev, c.data FROM chains AS c WHERE c.did = ANY ($1::text[]) ORDER BY c.did FOR UPDATE
), chained AS (
    SELECT l.did, l.rev COLLATE "C" AS rev, l.data, l.why, l.n, l.prev,
           coalesce(lag(l.data) OVER (PARTITION BY l.did ORDER BY l.n), k.data) AS before
    FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::text[]) WITH ORDINALITY AS l (did, rev, data, prev, why, n)
    LEFT JOIN known AS k ON k.did = l.did
    WHERE k.did IS NULL OR l.rev COLLATE "C" > k.rev
), moved AS (
    INSERT INTO chains AS c (did, rev, data)
    SELECT DISTINCT ON (l.did) l.did, l.rev, l.data FROM chained AS l
    WHERE EXISTS (SELECT FROM watch_members AS w WHERE w.did = l.did)
    ORDER BY l.did, l.n DESC
    ON CONFLICT (did) DO UPDATE SET rev = excluded.rev, data = excluded.data
)
SELECT l.did, CASE WHEN l.why <> '' THEN l.why ELSE 'a commit before this one is missing' END, l.rev
FROM chained AS l
WHERE l.why <> '' OR l.before IS NOT NULL AND l.prev IS DISTINCT FROM l.before
ORDER BY l.did, l.n`
	commits := rising(b.Chained)
	did, rev, why := make(pgtype.FlatArray[string], len(commits)), make(pgtype.FlatArray[string], len(commits)),
		make(pgtype.FlatArray[string], len(commits))
	data, prev := make(pgtype.FlatArray[[]byte], len(commits)), make(pgtype.FlatArray[[]byte], len(commits))
	for i, c := range commits {
		did[i], rev[i], data[i], prev[i], why[i] = c.DID, c.Rev, c.Data, c.Prev, Text(c.Broken)
	}
	q.Queue(sql, did, rev, data, prev, why).Query(func(rows pgx.Rows) (err error) {
		*broken, err = pgx.AppendRows(*broken, rows, pgx.RowToStructByPos[Desynchronized])
		return err
	})
}

// comparedWrite identifies the writes of a commit that is part of its account's compared
// repository.
type comparedWrite struct{ DID, Rev string }

// queueCompared appends to compared the writes whose accounts were compared with a later
// repository, if chains are verified.
func (b *Batch) queueCompared(q *pgx.Batch, compared *[]comparedWrite) {
	if len(b.Chained) == 0 || len(b.Writes) == 0 {
		return
	}
	const sql = `
SELECT DISTINCT w.did, w.rev
FROM unnest($1::text[], $2::text[]) AS w (did, rev)
JOIN resyncs AS r ON r.did = w.did AND r.rev >= w.rev COLLATE "C"`
	did, rev := make(pgtype.FlatArray[string], len(b.Writes)), make(pgtype.FlatArray[string], len(b.Writes))
	for i := range b.Writes {
		did[i], rev[i] = b.Writes[i].DID, b.Writes[i].Rev
	}
	q.Queue(sql, did, rev).Query(func(rows pgx.Rows) (err error) {
		*compared, err = pgx.CollectRows(rows, pgx.RowToStructByPos[comparedWrite])
		return err
	})
}

// returned returns the accounts for which a commit wrote a record that the compared
// repository lacks, although the repository includes that commit. The record's deletion
// was held back, unless it is older than what was compared.
func (b *Batch) returned(compared []comparedWrite, written []Key) (all []Desynchronized) {
	for i := 0; i < len(b.Writes) && len(compared) > 0; i++ {
		w := &b.Writes[i]
		if slices.Contains(compared, comparedWrite{w.DID, w.Rev}) && slices.Contains(written, w.Key) {
			all = append(all, Desynchronized{DID: w.DID, Cause: "an old commit brought back a record"})
		}
	}
	return all
}

// ExpireChains deletes at most limit chains of accounts that are no longer followed.
func ExpireChains(ctx context.Context, db DB, _ time.Time, limit int) (int, error) {
	const sql = `
DELETE FROM chains
WHERE ctid = ANY (ARRAY(
    SELECT c.ctid FROM chains AS c WHERE NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = c.did) LIMIT $1 FOR UPDATE SKIP LOCKED
))`
	return Change(ctx, db, "expire chains", sql, limit)
}
