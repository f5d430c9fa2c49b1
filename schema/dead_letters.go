package schema

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Limits on the stored inputs of dead letters, because anybody can send bad input:
// see docs/decisions/jobs.md.
const (
	maxRaw        = 1 << 20  // bytes of one input
	maxWaitingRaw = 5 << 20  // bytes of one input that waits for a retry: the longest frame of the network
	largeRaw      = 16 << 10 // a longer input is large; bytes kept if no retry can succeed
	maxLarge      = 64       // number of large inputs that are kept whole
	cutRaw        = 4 << 10  // bytes kept of further large inputs
	maxPerAccount = 1000     // dead letters kept of one account; further ones are counted in one row
)

// The stages at which an input can fail.
const (
	StageDecode    = "decode"    // the frame is not an event
	StageVerify    = "verify"    // the event is not proven: refused, or its key cannot be fetched now
	StageCommit    = "commit"    // Postgres refuses the event's data
	StageProcess   = "process"   // a stored record cannot be projected
	StageLexicon   = "lexicon"   // a stored record is invalid by its schema
	StageRules     = "rules"     // a stored record breaks a hard rule of its namespace
	StageReference = "reference" // a record that a stored one requires cannot be found
	StageJob       = "job"       // a job ended without success; stored by a trigger of river_job
)

// DeadLetter is an input that cannot be processed, and the cause.
type DeadLetter struct {
	ID       int64 // of the dead letter whose retry failed; 0: a first failure
	Stage    string
	Wire     string // wire of the input; empty if it came over no wire
	Position int64  // of the event in its stream: the sequence number, or the time in microseconds since 1970; 0: unknown
	Key      Key    // of the record; empty if unknown
	Rev      string // of the record; empty if unknown
	Cause    string
	Path     string
	Expected string
	Received string
	Raw      []byte
	Class    string // "": ClassPermanent
	Final    bool   // no retry can succeed: only the beginning of Raw is stored

	Projection string // the projection that failed, at StageProcess and later stages
}

// insertDeadLetter reads no more rows than the limits allow, through the indexes
// dead_letters_record, dead_letters_nameless and dead_letters_large. It does not
// store the input of a deleted record or account. If an older deletion cleared an
// input and the input arrives again, it is stored again. An input that waits for a
// retry is kept whole, because the number of waiting inputs is limited: see
// WaitingDeadLetters.
const insertDeadLetter = `
WITH bounds AS MATERIALIZED (
    SELECT $21::text <> 'retryable'
           AND NOT EXISTS (SELECT FROM dead_letters WHERE key = $1::bytea)
           AND CASE WHEN $5::text <> '' THEN (SELECT count(*) FROM (SELECT FROM dead_letters WHERE did = $5::text
               LIMIT $15::bigint) AS known)
                    ELSE (SELECT count(*) FROM (SELECT FROM dead_letters WHERE did IS NULL AND stage <> 'job' LIMIT $15::bigint) AS unknown)
               END >= $15::bigint AS counted,
           $21::text <> 'retryable' AND octet_length($11::bytea) > 16384
           AND (SELECT count(*) FROM (SELECT FROM dead_letters
               WHERE octet_length(raw) > 16384 AND class <> 'retryable' AND stage <> 'job'
           LIMIT $16::bigint) AS large) >= $16::bigint AS cut,
           EXISTS (SELECT FROM tombstones AS t
                   WHERE ?deletes AND t.did = $5::text AND t.rkey = $6::text AND $18::text <> '' AND t.rev >= $18::text)
           OR EXISTS (SELECT FROM accounts AS a WHERE a.did = $5::text AND a.status = 'deleted') AS gone
)
INSERT INTO dead_letters AS d (key, stage, class, wire, stream, position, collection, did, rkey, cause, path, expected, received, raw,
    raw_bytes, first_seen, last_seen, projection)
SELECT CASE WHEN b.counted THEN $14::bytea ELSE $1::bytea END,
       $2::text,
       $21::text,
       $19::text,
       nullif($3::text, ''),
       CASE WHEN b.counted THEN NULL ELSE nullif($22::bigint, 0) END,
       CASE WHEN b.counted THEN NULL ELSE nullif($4::text, '') END,
       nullif($5::text, ''),
       CASE WHEN b.counted THEN NULL ELSE nullif($6::text, '') END,
       CASE WHEN b.counted THEN 'further inputs of this account are counted here and not kept: it has too many dead letters'
           ELSE $7::text END,
       CASE WHEN b.counted THEN '' ELSE $8::text END,
       CASE WHEN b.counted OR b.gone THEN '' ELSE $9::text END,
       CASE WHEN b.counted OR b.gone THEN '' ELSE $10::text END,
       CASE WHEN b.counted OR b.gone THEN '' WHEN b.cut THEN substr($11::bytea, 1, $17::int) ELSE $11::bytea END,
       CASE WHEN b.gone THEN 0 ELSE $12::bigint END,
       now(),
       now(),
       nullif($20::text, '')
FROM bounds AS b
ON CONFLICT (key) DO UPDATE
SET state      = CASE d.state WHEN 'retried' THEN 'open' ELSE d.state END,
    class      = excluded.class,
    raw        = CASE WHEN d.raw_bytes = 0 THEN excluded.raw ELSE d.raw END,
    raw_bytes  = CASE WHEN d.raw_bytes = 0 THEN excluded.raw_bytes ELSE d.raw_bytes END,
    expected   = CASE WHEN d.raw_bytes = 0 THEN excluded.expected ELSE d.expected END,
    received   = CASE WHEN d.raw_bytes = 0 THEN excluded.received ELSE d.received END,
    last_seen  = now(),
    last_cause = CASE WHEN excluded.raw_bytes = 0 AND $12::bigint > 0 THEN '' -- the record is deleted: the cause would quote it
                      WHEN d.last_cause = '' AND (d.cause, d.path) = (excluded.cause, excluded.path)
                           AND (d.raw_bytes = 0 OR (d.expected, d.received) = (excluded.expected, excluded.received))
                      THEN '' ELSE $13::text END,
    count      = d.count + 1`

// clearInput is the SET clause for a dead letter whose record or account is deleted.
// The cause stays; everything that quotes the record is cleared.
const clearInput = `raw = '', raw_bytes = 0, expected = '', received = '', last_cause = '' `

// retryFailed reopens a dead letter whose retry failed. An event whose input was
// cleared cannot be retried, so it is dismissed. job is cleared because the job that
// retries a record succeeds even if the record fails again. An event gets the class
// of its last failure.
const retryFailed = `
UPDATE dead_letters
SET job        = NULL,
    state      = CASE WHEN stage IN ('decode', 'verify', 'commit') AND raw_bytes = 0 THEN 'dismissed' ELSE 'open' END,
    class      = CASE WHEN stage IN ('decode', 'verify', 'commit') THEN $3 ELSE class END,
    state_at   = now(),
    last_seen  = now(),
    last_cause = $2,
    count      = count + 1
WHERE id = $1 AND state = 'retrying'`

// Store stores a dead letter, in its own transaction. The same input at the same
// stage is one row, with its first and its last cause. If an account has too many
// dead letters, further ones are counted in one row.
func (d *DeadLetter) Store(ctx context.Context, pool *pgxpool.Pool, stream string) error {
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		b := Batch{DeadLetters: []DeadLetter{*d}}
		q := &pgx.Batch{}
		b.accounts().queueLocks(q, exclusively)
		d.queue(q, stream)
		return tx.SendBatch(ctx, q).Close()
	})
	if err != nil {
		return fmt.Errorf("store a dead letter: %w", err)
	}
	return nil
}

// Queue queues the statement that stores the dead letter of a stored record. The
// transaction holds the lock of the record.
func (d *DeadLetter) Queue(q *pgx.Batch) { d.queue(q, "") }

func (d *DeadLetter) queue(q *pgx.Batch, stream string) {
	sql, args := d.statement(stream)
	q.Queue(sql, args...)
}

func (d *DeadLetter) statement(stream string) (sql string, args []any) {
	if d.ID != 0 {
		return retryFailed, []any{d.ID, Text(d.why()), cmp.Or(d.Class, ClassPermanent)}
	}
	return strings.Replace(insertDeadLetter, "?deletes", DeletesFrom("$4::text"), 1), d.args(stream)
}

// why returns the whole cause in one line.
func (d *DeadLetter) why() string {
	s := d.Cause
	if d.Path != "" {
		s += " at " + d.Path
	}
	if d.Expected != "" || d.Received != "" {
		s += ": expected " + d.Expected + ", received " + d.Received
	}
	return s
}

// hash identifies a dead letter: those with equal hashes are one row.
func (d *DeadLetter) hash() []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%s\n", d.Stage, d.Projection, d.Key.Collection, d.Key.DID, d.Key.Rkey)
	h.Write(d.Raw)
	if d.Wire != "" {
		fmt.Fprintf(h, "\n%s", d.Wire)
	}
	return h.Sum(nil)
}

func (d *DeadLetter) args(stream string) []any {
	limit := maxRaw
	switch {
	case d.Class == ClassRetryable:
		limit = maxWaitingRaw
	case d.Final:
		limit = largeRaw
	}
	raw := d.Raw[:min(len(d.Raw), limit)]
	if raw == nil {
		raw = []byte{}
	}
	counted := sha256.Sum256([]byte("counted\n" + d.Stage + "\n" + d.Key.DID))
	return []any{d.hash(), d.Stage, stream, Text(d.Key.Collection), Text(d.Key.DID), Text(d.Key.Rkey), Text(d.Cause), Text(d.Path),
		Text(d.Expected), Text(d.Received), raw, int64(len(d.Raw)), Text(d.why()),
		counted[:], maxPerAccount, maxLarge, cutRaw, d.Rev, d.Wire, d.Projection, cmp.Or(d.Class, ClassPermanent), d.Position}
}

// Stages returns the stages of dead letters, in the order in which an input passes
// them.
func Stages() []string {
	return []string{StageDecode, StageVerify, StageCommit, StageProcess, StageLexicon, StageRules, StageReference, StageJob}
}

// The classes of dead letters.
const (
	ClassPermanent = "permanent" // a retry cannot help until something else changes
	ClassRetryable = "retryable" // every retry failed; an event is retried until it succeeds
)

// Classes returns the classes of dead letters.
func Classes() []string { return []string{ClassPermanent, ClassRetryable} }

// The states of dead letters.
const (
	DeadLetterOpen      = "open"
	DeadLetterRetrying  = "retrying" // a retry was requested or is running
	DeadLetterRetried   = "retried"  // the retry succeeded
	DeadLetterDismissed = "dismissed"
)

// DeadLetterStates returns the states of dead letters.
func DeadLetterStates() []string {
	return []string{DeadLetterOpen, DeadLetterRetrying, DeadLetterRetried, DeadLetterDismissed}
}

// StoredDeadLetter is a row of dead_letters. Its texts and its input are untrusted.
type StoredDeadLetter struct {
	ID         int64      `json:"id"`
	Stage      string     `json:"stage"`
	Class      string     `json:"class"`
	State      string     `json:"state"`
	StateAt    *time.Time `json:"state_at,omitempty"` // nil: always open
	Stream     string     `json:"stream,omitempty"`
	Position   *int64     `json:"position,omitempty"` // of the event in its stream; nil: unknown
	Wire       string     `json:"wire,omitempty"`
	Collection string     `json:"collection,omitempty"`
	DID        string     `json:"did,omitempty"`
	Rkey       string     `json:"rkey,omitempty"`
	Kind       string     `json:"kind,omitempty"` // kind of the job, like Queue and Job
	Queue      string     `json:"queue,omitempty"`
	Projection string     `json:"projection,omitempty"` // the projection that could not project the record
	Job        *int64     `json:"job,omitempty"`
	Cause      string     `json:"cause"` // the first cause, with Path, Expected and Received if known
	Path       string     `json:"path,omitempty"`
	Expected   string     `json:"expected,omitempty"`
	Received   string     `json:"received,omitempty"`
	LastCause  string     `json:"last_cause,omitempty"` // empty: it is the first cause
	FirstSeen  time.Time  `json:"first_seen"`
	LastSeen   time.Time  `json:"last_seen"`
	Count      int64      `json:"count"`
	Raw        []byte     `json:"-"`         // the beginning of the stored input, as long as requested
	RawBytes   int64      `json:"raw_bytes"` // the length of the input
	RawKept    int64      `json:"-"`         // the length of the stored input
}

// Subject returns the record that the dead letter is about, or the account if the
// record is unknown.
func (l *StoredDeadLetter) Subject() string {
	if l.Rkey == "" {
		return l.DID
	}
	return l.DID + "/" + l.Collection + "/" + l.Rkey
}

// Truncated reports whether only a part of the input is stored.
func (l *StoredDeadLetter) Truncated() bool { return l.RawBytes > l.RawKept }

// Key returns the key of the record; it is empty if the record is unknown.
func (l *StoredDeadLetter) Key() Key { return Key{Collection: l.Collection, DID: l.DID, Rkey: l.Rkey} }

// deadLetterColumns selects a StoredDeadLetter with the first $1 bytes of its input.
const deadLetterColumns = `
       d.id                         AS id,
       d.stage                      AS stage,
       d.class                      AS class,
       d.state                      AS state,
       d.state_at                   AS state_at,
       coalesce(d.stream, '')       AS stream,
       d.position                   AS position,
       d.wire                       AS wire,
       coalesce(d.collection, '')   AS collection,
       coalesce(d.did, '')          AS did,
       coalesce(d.rkey, '')         AS rkey,
       coalesce(d.kind, '')         AS kind,
       coalesce(d.queue, '')        AS queue,
       coalesce(d.projection, '')   AS projection,
       d.job                        AS job,
       d.cause                      AS cause,
       d.path                       AS path,
       d.expected                   AS expected,
       d.received                   AS received,
       d.last_cause                 AS last_cause,
       d.first_seen                 AS first_seen,
       d.last_seen                  AS last_seen,
       d.count                      AS count,
       substr(d.raw, 1, $1)         AS raw,
       d.raw_bytes                  AS raw_bytes,
       octet_length(d.raw)::bigint  AS raw_kept`

// DeadLetterFilter selects dead letters; an empty field matches all.
type DeadLetterFilter struct{ Stage, Class, State string }

// ListDeadLetters lists at most limit dead letters that match a filter, last seen
// first, without their input. An empty State matches open and retrying.
func ListDeadLetters(ctx context.Context, db DB, f DeadLetterFilter, limit int) ([]StoredDeadLetter, error) {
	const sql = `
SELECT ` + deadLetterColumns + `
FROM dead_letters AS d
WHERE ($2 = '' OR d.stage = $2)
  AND ($3 = '' OR d.class = $3)
  AND CASE $4 WHEN '' THEN d.state IN ('open', 'retrying') ELSE d.state = $4 END
ORDER BY d.last_seen DESC, d.id DESC
LIMIT $5`
	return All(ctx, db, "list dead letters", pgx.RowToStructByName[StoredDeadLetter], sql, 0, f.Stage, f.Class, f.State, limit)
}

// FindDeadLetter returns a dead letter with at most raw bytes of its input, or
// ErrNoRows.
func FindDeadLetter(ctx context.Context, db DB, id int64, raw int) (StoredDeadLetter, error) {
	const sql = `SELECT ` + deadLetterColumns + ` FROM dead_letters AS d WHERE d.id = $2`
	return One(ctx, db, fmt.Sprintf("read dead letter %d", id), pgx.RowToStructByName[StoredDeadLetter], sql, raw, id)
}

// StageCount is the number of open and retrying dead letters of a stage.
type StageCount struct {
	Stage string
	Count int
}

// CountDeadLetters counts the open and retrying dead letters of each stage.
func CountDeadLetters(ctx context.Context, db DB) ([]StageCount, error) {
	const sql = `
SELECT s.stage AS stage, count(d.stage) AS count
FROM unnest($1::text[]) WITH ORDINALITY AS s (stage, n)
LEFT JOIN dead_letters AS d ON d.stage = s.stage AND d.state IN ('open', 'retrying')
GROUP BY s.stage, s.n
ORDER BY s.n`
	return All(ctx, db, "count dead letters", pgx.RowToStructByName[StageCount], sql, Stages())
}

// DeadLettersToRetry returns dead letters whose retry was requested and that no job
// retries yet, oldest first, with their whole input. It returns at most limit, and
// stops once their inputs reach a number of bytes.
func DeadLettersToRetry(ctx context.Context, db DB, limit int, bytes int64) ([]StoredDeadLetter, error) {
	const sql = `
WITH requested AS (
    SELECT d.id, sum(octet_length(d.raw)) OVER (ORDER BY d.id) - octet_length(d.raw) AS before
    FROM (SELECT id, raw FROM dead_letters WHERE state = 'retrying' AND job IS NULL ORDER BY id LIMIT $2) AS d
)
SELECT ` + deadLetterColumns + `
FROM requested AS a
JOIN dead_letters AS d ON d.id = a.id
WHERE a.before < $3
ORDER BY d.id`
	return All(ctx, db, "read the dead letters to retry", pgx.RowToStructByName[StoredDeadLetter], sql, maxWaitingRaw, limit, bytes)
}

// CountDeadLetterStates counts dead letters by state.
func CountDeadLetterStates(ctx context.Context, db DB, ids []int64) (map[string]int, error) {
	const sql = `SELECT d.state AS state, count(*) AS count FROM dead_letters AS d WHERE d.id = ANY ($1) GROUP BY d.state`
	type row struct {
		State string
		Count int
	}
	rows, err := All(ctx, db, "read the states of dead letters", pgx.RowToStructByName[row], sql, ids)
	found := make(map[string]int, len(rows))
	for _, r := range rows {
		found[r.State] = r.Count
	}
	return found, err
}

const markRetried = `UPDATE dead_letters SET state = 'retried', state_at = now() WHERE id = ANY ($1) AND state = 'retrying'`

// MarkRetried marks dead letters whose retry succeeded.
func MarkRetried(ctx context.Context, db DB, ids []int64) error {
	return Exec(ctx, db, "mark dead letters as retried", markRetried, ids)
}

// LockDeadLettersToRetry locks dead letters whose retry was requested. It returns
// those that no job retries yet.
func LockDeadLettersToRetry(ctx context.Context, tx pgx.Tx, ids []int64) ([]int64, error) {
	const sql = `SELECT id FROM dead_letters WHERE id = ANY ($1) AND state = 'retrying' AND job IS NULL ORDER BY id FOR UPDATE`
	return All(ctx, tx, "lock dead letters", pgx.RowTo[int64], sql, ids)
}

// MarkRetry records that a job retries dead letters, and tags the job so that its
// end updates them. It returns false if the job has already ended.
func MarkRetry(ctx context.Context, tx pgx.Tx, ids []int64, job int64, tag string) (bool, error) {
	const sql = `
WITH marked AS (
    UPDATE river_job
    SET tags = CASE WHEN $3 = ANY (tags) THEN tags ELSE array_append(tags, $3) END
    WHERE id = $2 AND state IN ` + UnfinishedStates + `
    RETURNING id
)
UPDATE dead_letters AS d SET job = m.id FROM marked AS m WHERE d.id = ANY ($1)`
	n, err := Change(ctx, tx, fmt.Sprintf("record that job %d retries dead letters", job), sql, ids, job, tag)
	return n > 0, err
}

// RetriedBy returns the id of a record's dead letter that a job retries, or 0.
func RetriedBy(ctx context.Context, db DB, job int64, k Key) (id int64, err error) {
	const sql = `
		SELECT coalesce(min(id), 0) FROM dead_letters WHERE job = $1 AND collection = $2 AND did = $3 AND rkey = $4 AND state = 'retrying'`
	return One(ctx, db, "find the dead letter that the job retries", pgx.RowTo[int64], sql, job, k.Collection, k.DID, k.Rkey)
}

// RetryDeadLetter requests a retry of a dead letter, through the SQL function
// retry_dead_letter. It returns the id of the job.
func RetryDeadLetter(ctx context.Context, db DB, id int64) (int64, error) {
	return One(ctx, db, "retry", pgx.RowTo[int64], `SELECT retry_dead_letter($1)`, id)
}

// RetryDeadLetters requests a retry of all open dead letters of a stage and class;
// an empty field matches all. It returns how many.
func RetryDeadLetters(ctx context.Context, db DB, f DeadLetterFilter) (int, error) {
	return One(ctx, db, "retry", pgx.RowTo[int], `SELECT retry_dead_letters(nullif($1, ''), nullif($2, ''))`, f.Stage, f.Class)
}

// DismissDeadLetter marks a dead letter as needing no action.
func DismissDeadLetter(ctx context.Context, db DB, id int64) error {
	return Exec(ctx, db, "dismiss", `SELECT dismiss_dead_letter($1)`, id)
}

// DismissDeadLetters dismisses all open dead letters of a stage and class. It
// returns how many.
func DismissDeadLetters(ctx context.Context, db DB, f DeadLetterFilter) (int, error) {
	return One(ctx, db, "dismiss", pgx.RowTo[int], `SELECT dismiss_dead_letters(nullif($1, ''), nullif($2, ''))`, f.Stage, f.Class)
}
