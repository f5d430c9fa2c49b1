package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Audit is the comparison of one day of a Nostr relay with the stored events.
type Audit struct {
	Stream  string    `json:"stream"`
	Day     time.Time `json:"day"`     // its beginning, in UTC
	Method  string    `json:"method"`  // negentropy or pages
	Events  int       `json:"events"`  // that were stored before
	Missing int       `json:"missing"` // that the relay has, and that had never been stored
	Stored  int       `json:"stored"`  // records that changed because of them
	Problem string    `json:"problem"` // why the comparison of the day is incomplete; "": it is complete
}

const (
	relayAuditTries = 24                  // attempts, an hour apart
	relayAuditDays  = 7                   // missed days this far back are compared
	relayAuditAgain = 3                   // days this far back are compared again each day, by sets of ids
	relayAuditsKept = 30 * 24 * time.Hour // how long results stay
)

// DueAudit returns the latest day for which one of some streams' relays must be compared.
// Yesterday is due from one hour after its end, because events reach relays late. Then an earlier
// day of the last week is due if it was missed, but none before the stream's first audited day. A
// day that was compared by sets is due once more on each of the next days, because authors' clocks
// may be wrong by days. schema.ErrNoRows means that nothing is due.
func DueAudit(ctx context.Context, db schema.DB, streams []string) (stream string, day time.Time, err error) {
	const sql = `
SELECT s.stream, d.day
FROM unnest($1::text[]) AS s (stream)
CROSS JOIN LATERAL (
    SELECT ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date - n AS day, n FROM generate_series(1, $2::int) AS n
) AS d
LEFT JOIN relay_audits AS a ON a.stream = s.stream AND a.day = d.day
WHERE (a.stream IS NULL OR a.retry_at <= now()
       OR d.n <= $3 AND a.method = 'negentropy' AND a.problem = ''
          AND a.ended_at < (((now() - interval '1 hour') AT TIME ZONE 'UTC')::date + interval '1 hour') AT TIME ZONE 'UTC')
  AND (d.n = 1 OR EXISTS (SELECT FROM relay_audits AS f WHERE f.stream = s.stream AND f.day < d.day))
ORDER BY d.day DESC, s.stream
LIMIT 1`
	type due struct {
		Stream string
		Day    time.Time
	}
	found, err := schema.One(ctx, db, "find the relay to compare", pgx.RowToStructByPos[due], sql, streams, relayAuditDays, relayAuditAgain)
	return found.Stream, found.Day, err
}

// StoreAudit stores a result, and adds it to the results of earlier attempts. If again is set,
// a result with a problem leads to another attempt.
func StoreAudit(ctx context.Context, db schema.DB, a Audit, again bool) error {
	const sql = `
WITH old AS (
    DELETE FROM relay_audits WHERE ended_at < now() - $9::interval
)
INSERT INTO relay_audits AS r (stream, day, method, events, missing, stored, problem, retry_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, CASE WHEN $8 THEN now() + interval '1 hour' END)
ON CONFLICT (stream, day) DO UPDATE
SET method = excluded.method, events = excluded.events, missing = r.missing + excluded.missing, stored = r.stored + excluded.stored,
    problem = excluded.problem,
    tries = r.tries + 1, retry_at = CASE WHEN r.tries + 1 < $10 THEN excluded.retry_at END, ended_at = now()`
	_, err := db.Exec(ctx, sql, a.Stream, a.Day, a.Method, a.Events, a.Missing, a.Stored, schema.Text(a.Problem), again && a.Problem != "",
		relayAuditsKept, relayAuditTries)
	if err != nil {
		return fmt.Errorf("store the comparison with %s: %w", a.Stream, err)
	}
	return nil
}

// LastAudits returns the latest result of each stream.
func LastAudits(ctx context.Context, db schema.DB) ([]Audit, error) {
	const sql = `
SELECT DISTINCT ON (stream) stream, day, method, events, missing, stored, problem
FROM relay_audits ORDER BY stream, day DESC`
	return schema.All(ctx, db, "read the comparisons with relays", pgx.RowToStructByPos[Audit], sql)
}

// AuditedAuthors returns the Nostr accounts that have been followed since a time; everyone is true
// if the whole network is followed.
func AuditedAuthors(ctx context.Context, db schema.DB, since time.Time) (dids []string, everyone bool, err error) {
	const sql = `
SELECT w.did FROM watch_members AS w
WHERE w.did LIKE ` + schema.NostrDIDs + `
GROUP BY w.did
HAVING min(w.added_at) <= $1
ORDER BY w.did`
	if dids, err = schema.All(ctx, db, "list the accounts of Nostr", pgx.RowTo[string], sql, since); err != nil {
		return nil, false, err
	}
	everyone, err = schema.FollowsEveryone(ctx, db)
	return dids, everyone, err
}

// DatedRecord identifies a record by its account and revision.
type DatedRecord struct{ DID, Rev string }

// ErrManyRecords means that there are more records than the limit.
var ErrManyRecords = errors.New("more records than can be compared at once")

// eventsBetween reads the index of events by date. Revisions begin with the date.
const eventsBetween = `
SELECT did, rev FROM records
WHERE collection = ANY ($1) AND collection >= 'nostr.' AND collection < 'nostr/' AND left(rev, 16) >= $2 AND left(rev, 16) < $3 LIMIT $4`

// EventsBetween returns the records of some Nostr collections whose dates, as in revisions, are at
// or after from and before to, at most limit.
func EventsBetween(ctx context.Context, db schema.DB, collections []string, from, to string, limit int) ([]DatedRecord, error) {
	found, err := schema.All(ctx, db, "list the events of a time", pgx.RowToStructByPos[DatedRecord], eventsBetween, collections, from, to,
		limit+1)
	if err == nil && len(found) > limit {
		err = ErrManyRecords
	}
	return found, err
}
