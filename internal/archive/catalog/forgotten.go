package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// UnlistedAccounts lists the first forgotten accounts that no list in the store contains.
func UnlistedAccounts(ctx context.Context, db schema.DB, limit int) ([]archive.Forgotten, error) {
	const sql = `SELECT did, until, reason FROM forgotten WHERE listed_at IS NULL ORDER BY at LIMIT $1`
	return schema.All(ctx, db, "list the forgotten accounts", scanForgotten, sql, limit)
}

func scanForgotten(row pgx.CollectableRow) (f archive.Forgotten, err error) {
	err = row.Scan(&f.DID, &f.Until, &f.Reason)
	f.Until = f.Until.UTC()
	return f, err
}

// MarkListed records that a list in the store contains these accounts.
func MarkListed(ctx context.Context, db schema.DB, list []archive.Forgotten) error {
	const sql = `
UPDATE forgotten AS f
SET listed_at = now()
FROM unnest($1::text[], $2::timestamptz[]) AS l (did, until)
WHERE f.did = l.did AND f.until = l.until AND f.listed_at IS NULL`
	did, until := make([]string, len(list)), make([]time.Time, len(list))
	for i, f := range list {
		did[i], until[i] = f.DID, f.Until
	}
	return schema.Exec(ctx, db, "mark forgotten accounts as listed", sql, did, until)
}

// RestoreForgotten stores the accounts of the store's lists in a database that is being
// rebuilt.
func RestoreForgotten(ctx context.Context, db schema.DB, list archive.Forgetting) error {
	const sql = `
INSERT INTO forgotten AS f (did, until, reason, listed_at)
SELECT did, until, reason, now() FROM unnest($1::text[], $2::timestamptz[], $3::text[]) AS l (did, until, reason)
ON CONFLICT (did) DO UPDATE
SET until = excluded.until, reason = excluded.reason, listed_at = excluded.listed_at
WHERE excluded.until >= f.until`
	var did, reason []string
	var until []time.Time
	for _, f := range list {
		did, reason, until = append(did, f.DID), append(reason, f.Reason), append(until, f.Until)
	}
	return schema.Exec(ctx, db, "restore the forgotten accounts", sql, did, until, reason)
}

// Forget is the data that a segment must no longer contain.
type Forget struct {
	Accounts archive.Forgetting
	records  map[schema.Key]deletedRecord
}

type deletedRecord struct {
	rev string
	at  time.Time
}

// Empty reports whether there is nothing to forget.
func (f Forget) Empty() bool { return len(f.Accounts) == 0 && len(f.records) == 0 }

// Goes reports whether an archived item must be forgotten: everything that a forgotten
// account sent before it was forgotten, and the text of deleted records. A listing has no
// revisions, so a record from one must be forgotten if it was read before the deletion.
func (f Forget) Goes(s archive.Said) bool {
	if f.Accounts.Goes(s) {
		return true
	}
	d, ok := f.records[schema.Key{Collection: s.Collection, DID: s.Author, Rkey: s.Key}]
	return ok && s.Collection != "" && s.Revision <= d.rev && (s.Revision != schema.ListedRev || !s.At.After(d.at))
}

// ToForget reads what must be forgotten of accounts, given by their hashes. For an account
// that is still deleted, that is everything until now: what its servers sent late was never
// stored.
func ToForget(ctx context.Context, db schema.DB, authors []int64) (Forget, error) {
	const accounts = `
SELECT f.did, CASE a.status WHEN 'deleted' THEN greatest(f.until, now()) ELSE f.until END, f.reason
FROM forgotten AS f LEFT JOIN accounts AS a ON a.did = f.did
WHERE f.author = ANY ($1::bigint[])`
	const records = `SELECT collection, did, rkey, rev, deleted_at FROM deleted_records WHERE author = ANY ($1::bigint[])`
	f := Forget{Accounts: archive.Forgetting{}, records: map[schema.Key]deletedRecord{}}
	const page = 10_000
	for len(authors) > 0 {
		some := authors[:min(page, len(authors))]
		authors = authors[len(some):]
		found, err := schema.All(ctx, db, "read the forgotten accounts", scanForgotten, accounts, some)
		if err != nil {
			return f, err
		}
		for _, one := range found {
			f.Accounts[one.DID] = one
		}
		type row struct {
			schema.Key
			Rev string
			At  time.Time
		}
		deleted, err := schema.All(ctx, db, "read the deleted records", func(r pgx.CollectableRow) (d row, err error) {
			err = r.Scan(&d.Collection, &d.DID, &d.Rkey, &d.Rev, &d.At)
			return d, err
		}, records, some)
		if err != nil {
			return f, err
		}
		for _, d := range deleted {
			f.records[d.Key] = deletedRecord{d.Rev, d.At}
		}
	}
	return f, nil
}

// dueToForget is true for segments that have not been compared with the data to forget for
// the interval $1. A new segment already respects everything known until it was sealed.
const dueToForget = ` synced_at IS NOT NULL AND (forget_again OR coalesce(forgotten_at, sealed_at) <= clock_timestamp() - $1::interval) `

// SegmentsToForget lists the first segments that are due to be compared with the data to
// forget.
//
// A segment that failed waits for an hour, because each attempt may read all of it. It comes
// after the others, so that many bad segments do not hold back the good ones.
func SegmentsToForget(ctx context.Context, db schema.DB, every time.Duration, most int) ([]int64, error) {
	const sql = `
SELECT number FROM segments
WHERE` + dueToForget + `AND (forget_failed_at IS NULL OR forget_failed_at <= clock_timestamp() - interval '1 hour')
ORDER BY forget_failed_at NULLS FIRST, coalesce(forgotten_at, sealed_at), number LIMIT $2`
	return schema.All(ctx, db, "list the segments to forget in", pgx.RowTo[int64], sql, every, most)
}

// SegmentToForget reads a segment that is due to be compared with the data to forget. It
// returns ErrNoRows if the segment is not due. now is the time of the comparison.
func SegmentToForget(ctx context.Context, db schema.DB, number int64, every time.Duration) (m archive.Manifest, now time.Time, err error) {
	const sql = `SELECT ` + segmentColumns + ` FROM segments WHERE number = $2 AND` + dueToForget
	if m, err = schema.One(ctx, db, "read a segment", scanManifest, sql, every, number); err == nil {
		now, err = schema.Now(ctx, db)
	}
	return m, now, err
}

// Forgotten returns why the archive must forget an account; empty: it must not.
func Forgotten(ctx context.Context, db schema.DB, did string) (string, error) {
	const sql = `SELECT coalesce((SELECT reason FROM forgotten WHERE did = $1), '')`
	return schema.One(ctx, db, "read what must be forgotten", pgx.RowTo[string], sql, did)
}

// MarkCompared records that, at a time, a version of a segment contained no data that must
// be forgotten.
func MarkCompared(ctx context.Context, db schema.DB, m archive.Manifest, at time.Time) error {
	const sql = `
UPDATE segments
SET forgotten_at = $2, forget_again = false, forget_failing_since = NULL, forget_failed_at = NULL
WHERE number = $1 AND rewritten = $3`
	return schema.Exec(ctx, db, fmt.Sprintf("mark segment %d as compared", m.Number), sql, m.Number, at, m.Rewritten)
}

// ReplaceSegment switches to a later version of a segment.
func ReplaceSegment(ctx context.Context, db schema.DB, m archive.Manifest) error {
	const sql = `
UPDATE segments
SET name = $2, records = $3, raw_bytes = $4, stored_bytes = $5, sha256 = $6, content = $7, rewritten = $8, origin = $9, forgotten_at = $10,
    forget_again = false, forget_failing_since = NULL, forget_failed_at = NULL
WHERE number = $1 AND rewritten < $8 AND CASE origin WHEN '' THEN content ELSE origin END = $9`
	_, err := db.Exec(ctx, sql, m.Number, m.Name, m.Records, m.RawBytes, m.StoredBytes, m.SHA256, m.Content, m.Rewritten, m.Origin,
		m.ForgottenAt)
	if err != nil {
		return fmt.Errorf("replace segment %d: %w", m.Number, err)
	}
	return nil
}

// ForgetFailed records that a segment could not be compared with the data to forget.
func ForgetFailed(ctx context.Context, db schema.DB, number int64) error {
	const sql = `
UPDATE segments SET forget_failing_since = coalesce(forget_failing_since, clock_timestamp()), forget_failed_at = clock_timestamp()
WHERE number = $1`
	return schema.Exec(ctx, db, fmt.Sprintf("record that segment %d was not compared", number), sql, number)
}

// DropDeletedRecords deletes at most limit stored deletions that every segment has been
// compared with, and that are older than everything not sealed yet. A comparison may have
// missed transactions that committed within the hour before it. A deletion stays as long as
// its tombstone: until then, a server may bring the record back, and the archive then has it
// again.
//
// A segment that has failed for two intervals is no longer waited for: otherwise a single bad
// file would keep all deletions for ever. The segment records what it missed.
func DropDeletedRecords(ctx context.Context, db schema.DB, every time.Duration, limit int) (int, error) {
	const sql = `
WITH waited AS (
    SELECT least(
        (SELECT min(coalesce(forgotten_at, first_at)) FROM segments
            WHERE forget_failing_since IS NULL OR forget_failing_since > now() - 2 * $1::interval),
        (SELECT min(arrived_at) FROM archive_open), now()) - interval '1 hour' AS until
), dropped AS (
    DELETE FROM deleted_records
    WHERE (author, did, collection, rkey) IN (
        SELECT author, did, collection, rkey FROM deleted_records AS d
        WHERE at < (SELECT until FROM waited)
            AND NOT EXISTS (SELECT FROM tombstones AS t WHERE t.collection = d.collection AND t.did = d.did AND t.rkey = d.rkey)
        ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING at
), missed AS (
    UPDATE segments SET missed_until = greatest(missed_until, (SELECT max(at) FROM dropped))
    WHERE forget_failing_since <= now() - 2 * $1::interval
        AND coalesce(forgotten_at, first_at) - interval '1 hour' <= (SELECT max(at) FROM dropped)
)
SELECT count(*) FROM dropped`
	return schema.One(ctx, db, "drop remembered deletions", pgx.RowTo[int], sql, every, limit)
}

// SetUnreadableLists replaces the stored errors of lists of forgotten accounts that cannot be
// read, by the names of the lists.
func SetUnreadableLists(ctx context.Context, db schema.DB, unreadable map[string]string) error {
	const sql = `
WITH now_readable AS (DELETE FROM unreadable_lists WHERE name <> ALL ($1::text[]))
INSERT INTO unreadable_lists (name, error)
SELECT name, error FROM unnest($1::text[], $2::text[]) AS u (name, error)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET error = excluded.error WHERE unreadable_lists.error <> excluded.error`
	names, causes := make([]string, 0, len(unreadable)), make([]string, 0, len(unreadable))
	for name, cause := range unreadable {
		names, causes = append(names, name), append(causes, schema.Text(cause))
	}
	return schema.Exec(ctx, db, "record the lists that cannot be read", sql, names, causes)
}

// ForgetAgain makes all segments due to be compared with the data to forget, and returns
// their number.
func ForgetAgain(ctx context.Context, db schema.DB) (int64, error) {
	n, err := schema.Change(ctx, db, "make all segments due", `
UPDATE segments
SET forget_again = true, forget_failed_at = NULL
WHERE synced_at IS NOT NULL`)
	return int64(n), err
}

// ForgetProgress says how far the archive has forgotten what it must.
type ForgetProgress struct {
	Accounts int64 `json:"accounts"`        // deleted accounts that some segments may contain
	Unlisted int64 `json:"unlisted"`        // deleted accounts that are on no list in the store
	Records  int64 `json:"deleted_records"` // deletions whose records some segments may contain
	Segments int64 `json:"segments"`        // in the store
	Written  int64 `json:"rewritten"`       // of these, those that were written again
	Compared int64 `json:"compared"`        // of Segments, those that were compared at least once
	Failing  int64 `json:"failing"`         // of Segments, those whose last comparison failed
	// of Segments, those that were not compared with some deletions of records, because they failed for too long
	Missed int64   `json:"missed"`
	Lists  int64   `json:"unreadable_lists"`
	Age    float64 `json:"oldest_seconds"` // since the longest-waiting segment was compared or sealed; 0: there is none
}

// ReadForgetProgress reads what the archive has forgotten.
func ReadForgetProgress(ctx context.Context, db schema.DB) (ForgetProgress, error) {
	const sql = `
WITH compared AS ( -- whatever was deleted before is in no file any more
    SELECT least((SELECT min(coalesce(forgotten_at, first_at)) FROM segments), (SELECT min(arrived_at) FROM archive_open)) AS since
)
SELECT (SELECT count(*) FROM forgotten, compared WHERE at >= since), (SELECT count(*) FROM forgotten WHERE listed_at IS NULL),
       (SELECT count(*) FROM deleted_records, compared WHERE at >= since),
       count(*), count(*) FILTER (WHERE rewritten > 0), count(forgotten_at), count(forget_failing_since), count(missed_until),
           (SELECT count(*) FROM unreadable_lists),
       coalesce(extract(epoch FROM clock_timestamp() - min(coalesce(forgotten_at, sealed_at))), 0)::float8
FROM segments WHERE synced_at IS NOT NULL`
	return schema.One(ctx, db, "read what the archive has forgotten", pgx.RowToStructByPos[ForgetProgress], sql)
}
