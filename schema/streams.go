package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Position is the point up to which a stream has been committed. If CursorKind is empty,
// nothing has been read yet.
type Position struct {
	Host       string
	CursorKind string // "", "seq" or "time"
	Cursor     int64
	Anchor     *Anchor
	Anchors    Anchors
	LastEvent  time.Time // when the last event happened, by the server's clock
	WrittenAt  time.Time // when the last event was written, estimated by the authors' clocks; zero: unknown
	CaughtUp   time.Time // zero: never
	Quiet      bool      // nothing was unread at CaughtUp, and nothing has been committed since; read only
	FilterHash string
}

// Lag returns how much later than WrittenAt the last event is dated. A server that lags
// dates late events by its own clock.
func (p Position) Lag() time.Duration {
	if p.WrittenAt.IsZero() || p.LastEvent.IsZero() {
		return 0
	}
	return max(0, p.LastEvent.Sub(p.WrittenAt))
}

// Anchors are the last frames of different accounts, latest first. Unused entries are
// zero.
type Anchors [8]AnchorHash

// AnchorHash is the hash of an anchor and, if the source needs it, its sequence number.
type AnchorHash struct{ Hash, Seq int64 }

// columns returns the known anchors as arrays, or nil if there are none.
func (a *Anchors) columns() (hashes, seqs []int64) {
	for i := range a {
		if a[i].Hash == 0 {
			break
		}
		if hashes == nil {
			hashes = make([]int64, 0, len(a))
		}
		hashes = append(hashes, a[i].Hash)
		if a[i].Seq != 0 && seqs == nil {
			seqs = make([]int64, len(a))
		}
		if seqs != nil {
			seqs[i] = a[i].Seq
		}
	}
	if seqs != nil {
		seqs = seqs[:len(hashes)]
	}
	return hashes, seqs
}

// Anchor identifies the last committed frame. A resume must deliver it again.
type Anchor struct {
	Seq        int64  `json:"seq,omitempty"`
	TimeUS     int64  `json:"time_us"`
	Kind       string `json:"kind"`
	DID        string `json:"did"`
	Operation  string `json:"operation,omitempty"`
	Collection string `json:"collection,omitempty"`
	Rkey       string `json:"rkey,omitempty"`
	Rev        string `json:"rev,omitempty"`
}

// Lease is the right to commit to a stream until another process takes it.
type Lease struct {
	Stream   string
	Owner    string
	Epoch    int64
	TTL      time.Duration
	Taken    time.Time // by the database's clock
	Position Position
}

// Stream states, as the page and SQL show them.
const (
	StateStopped    = "stopped"
	StateConnecting = "connecting"
	StateCatchingUp = "catching up"
	StateLive       = "live"
	StateQuiet      = "quiet"
	StateNoNetwork  = "not connected"
	StateDraining   = "paused by backpressure"

	// DetailScanning is the detail of StateCatchingUp while a server that has accepted
	// a cursor sends nothing.
	DetailScanning = "nothing more has arrived yet: the server may still be looking through what it has stored"

	// StateNoConsumer is never stored. It means that the last holder released the
	// lease, or that there never was one.
	StateNoConsumer = "no consumer is running"
)

// StreamStatus is the status of a stream for the page and the commands.
type StreamStatus struct {
	Name       string
	Wire       string // the protocol that it is read with
	Host       string
	State      string
	Detail     string
	StateSince time.Time
	LastEvent  *time.Time
	WrittenAt  *time.Time // when that event was written, by the authors' clocks
	CaughtUp   *time.Time
	Advanced   *time.Time // when a batch was last committed
	Cursor     int64
	CursorKind string
	Epoch      int64
	Failed     int    // failed attempts to connect since the last event
	Owner      string // the last holder of the lease; empty: the lease was released
	Leased     bool   // a consumer holds the lease now
}

// Current returns the stream's current state. The stored state of a holder whose lease
// has expired is out of date.
func (s StreamStatus) Current() string {
	switch {
	case s.Leased:
		return s.State
	case s.State == StateStopped || s.State == "":
		return StateNoConsumer
	default:
		return StateNoNetwork
	}
}

// TakeLease tries to become the only writer of a stream, and makes the stream's row if
// there is none. ok is false while another owner's lease has not expired, by the
// database's clock, or another transaction locks the row.
func TakeLease(ctx context.Context, db DB, stream, wire, owner string, ttl time.Duration) (lease Lease, ok bool, err error) {
	if err := makeStream(ctx, db, stream, wire); err != nil {
		return Lease{}, false, err
	}
	const take = `
WITH free AS (
    SELECT name FROM streams
    WHERE name = $1 AND (lease_owner IS NULL OR lease_owner = $2 OR lease_expires_at < clock_timestamp()
        OR lease_renewed_at > clock_timestamp() + interval '1 second') -- the clock was set back: a live holder renews at once
    FOR UPDATE SKIP LOCKED
)
UPDATE streams AS s
SET lease_owner      = $2,
    wire             = $4,
    epoch            = s.epoch + 1,
    lease_renewed_at = clock_timestamp(),
    lease_expires_at = clock_timestamp() + $3::interval,
    state            = 'connecting',
    state_detail     = '',
    state_since      = now()
FROM free
WHERE s.name = free.name
RETURNING s.epoch, s.host, s.cursor_kind, s.cursor, s.anchor, s.last_event_at, s.caught_up_at, s.filter_hash, clock_timestamp(),
    s.anchors, s.anchor_seqs, s.written_at, s.host <> '' AND coalesce(s.caught_up_at > s.advanced_at, false)`
	lease, err = One(ctx, db, "take the lease of stream "+stream, func(row pgx.CollectableRow) (Lease, error) {
		l := Lease{Stream: stream, Owner: owner, TTL: ttl}
		p := &l.Position
		var lastEvent, caughtUp, written *time.Time
		var hashes, seqs []int64
		err := row.Scan(&l.Epoch, &p.Host, &p.CursorKind, &p.Cursor, &p.Anchor, &lastEvent, &caughtUp, &p.FilterHash, &l.Taken,
			&hashes, &seqs, &written, &p.Quiet)
		p.LastEvent, p.CaughtUp, p.WrittenAt = deref(lastEvent), deref(caughtUp), deref(written)
		for i := range min(len(hashes), len(p.Anchors)) {
			p.Anchors[i].Hash = hashes[i]
			if i < len(seqs) {
				p.Anchors[i].Seq = seqs[i]
			}
		}
		return l, err
	}, take, stream, owner, ttl, wire)
	if errors.Is(err, ErrNoRows) {
		return Lease{}, false, nil
	}
	return lease, err == nil, err
}

// makeStream makes the row of a stream if there is none.
func makeStream(ctx context.Context, db DB, stream, wire string) error {
	// A paused holder may have a transaction open on the row, and even ON CONFLICT DO
	// NOTHING would wait for it, so check first. TakeLease skips the locked row. The row
	// of a recording is deleted after the ingest. The epochs of the next ingest begin at
	// the current time, so that no epoch is used twice and a paused ingest stays fenced.
	const sql = `
INSERT INTO streams (name, wire, epoch)
SELECT $1, $2, CASE $2 WHEN $3 THEN extract(epoch FROM clock_timestamp()) * 1000000 ELSE 0 END::bigint
WHERE NOT EXISTS (SELECT FROM streams WHERE name = $1)
ON CONFLICT (name) DO NOTHING`
	return Exec(ctx, db, "make the row of stream "+stream, sql, stream, wire, WireRecording)
}

// StalledAfter is how long after the end of its lease a holder with an open transaction
// counts as stalled. No commit takes longer.
const StalledAfter = 30 * time.Second

// EndStalled ends the session of a holder whose lease ended long ago and whose
// transaction still locks the stream's row. It reports whether there was one. The server
// itself ends sessions that are idle in a transaction. It does not end sessions that
// wait for the rest of a message, such as the data of a COPY from a paused process.
func EndStalled(ctx context.Context, db DB, stream string, after time.Duration) (bool, error) {
	const sql = `
SELECT coalesce(bool_or(pg_terminate_backend(l.pid)), false)
FROM streams AS s
JOIN pg_locks AS l ON l.locktype = 'transactionid' AND l.transactionid = s.xmax AND l.granted
JOIN pg_stat_activity AS a ON a.pid = l.pid AND a.xact_start < clock_timestamp() - $2::interval -- else it came for a moment
WHERE s.name = $1 AND s.lease_expires_at < clock_timestamp() - $2::interval`
	return One(ctx, db, "end the stalled holder of stream "+stream, pgx.RowTo[bool], sql, stream, after)
}

// Release ends the lease, so that a waiting consumer can take over at once.
func (l Lease) Release(ctx context.Context, db DB) error {
	const sql = `
UPDATE streams
SET lease_owner = NULL, lease_expires_at = NULL, state = 'stopped', state_detail = '', state_since = now()
WHERE name = $1 AND epoch = $2`
	return Exec(ctx, db, "release the lease of stream "+l.Stream, sql, l.Stream, l.Epoch)
}

// Heartbeat is the state of a stream, which the holder of the lease stores every second.
type Heartbeat struct {
	State    string
	Detail   string
	Failed   int       // failed attempts to connect since the last event
	CaughtUp time.Time // moves the stream's caught_up_at forward, unless zero
}

// Renew extends the lease, stores the heartbeat, and returns the time by the database's
// clock. It returns ErrFenced if the lease was lost or released: a cancelled renewal may
// still arrive after the release.
func (l Lease) Renew(ctx context.Context, db DB, heartbeat Heartbeat) (now time.Time, err error) {
	const sql = `
UPDATE streams
SET lease_expires_at = clock_timestamp() + $3::interval,
    lease_renewed_at = clock_timestamp(),
    state_since      = CASE WHEN state = $4 THEN state_since ELSE now() END,
    state            = $4,
    state_detail     = $5,
    caught_up_at     = greatest(CASE WHEN caught_up_at < clock_timestamp() THEN caught_up_at END,
                                CASE WHEN $6 < clock_timestamp() THEN $6::timestamptz END),
    failed_tries     = $7
WHERE name = $1 AND epoch = $2 AND lease_owner IS NOT NULL
RETURNING clock_timestamp()`
	now, err = One(ctx, db, "renew the lease of stream "+l.Stream, pgx.RowTo[time.Time], sql,
		l.Stream, l.Epoch, l.TTL, heartbeat.State, heartbeat.Detail, NullTime(heartbeat.CaughtUp), heartbeat.Failed)
	if errors.Is(err, ErrNoRows) {
		return now, fmt.Errorf("renew the lease of stream %s: %w", l.Stream, ErrFenced)
	}
	return now, err
}

// WireRecording is the wire of a recording: a stream that ends.
const WireRecording = "recording"

// DropRecording deletes the row of a recording whose ingest has ended. Its position is
// not needed any more.
func DropRecording(ctx context.Context, db DB, stream string) error {
	const sql = `DELETE FROM streams WHERE name = $1 AND wire = $2 AND (lease_owner IS NULL OR lease_expires_at < clock_timestamp())`
	return Exec(ctx, db, "remove the row of stream "+stream, sql, stream, WireRecording)
}

// StreamStatuses lists all streams by name. It omits recordings, whose events are old
// and which end: they would look like a fault.
func StreamStatuses(ctx context.Context, db DB) ([]StreamStatus, error) {
	const sql = `
SELECT name          AS name,
       wire          AS wire,
       host          AS host,
       state         AS state,
       state_detail  AS detail,
       state_since   AS state_since,
       last_event_at AS last_event,
       written_at    AS written_at,
       caught_up_at  AS caught_up,
       advanced_at   AS advanced,
       cursor        AS cursor,
       cursor_kind   AS cursor_kind,
       epoch         AS epoch,
       failed_tries  AS failed,
       coalesce(lease_owner, '') AS owner,
       coalesce(lease_expires_at > clock_timestamp() AND lease_renewed_at <= clock_timestamp() + interval '1 second', false) AS leased
FROM streams
WHERE wire <> $1
ORDER BY name`
	return All(ctx, db, "read the streams", pgx.RowToStructByName[StreamStatus], sql, WireRecording)
}

func deref(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// NullTime returns nil, for NULL, if t is the zero time.
func NullTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
