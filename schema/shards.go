package schema

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// What happens if more accounts are followed than one stream requests.
const (
	ShardsAuto    = "auto"    // up to AutoShards shards, then the network
	ShardsAlways  = "shards"  // as many streams as needed
	ShardsNetwork = "network" // one stream that requests all events
)

// AutoShards is the maximum number of streams in the mode auto. Above it, one stream of
// the whole network costs less than the connections.
const AutoShards = 10

// Sharding configures how the followed accounts are divided among a stream and its
// shards.
type Sharding struct {
	Mode     string
	Accounts int // the most accounts that one stream requests
}

// Shard is a stream and the accounts that it follows.
type Shard struct {
	Stream string
	Followed
	// Network: there are more accounts than one stream can request. The stream
	// requests all events, and applies those of its accounts.
	Network bool
}

// SetSharding stores how the accounts of a stream are divided from now on.
func SetSharding(ctx context.Context, db DB, root, wire string, s Sharding) error {
	if err := makeStream(ctx, db, root, wire); err != nil {
		return err
	}
	const sql = `
INSERT INTO sharding (root, mode, accounts) VALUES ($1, $2, $3)
ON CONFLICT (root) DO UPDATE SET mode = excluded.mode, accounts = excluded.accounts`
	if _, err := db.Exec(ctx, sql, root, s.Mode, s.Accounts); err != nil {
		return fmt.Errorf("set the sharding of stream %s: %w", root, err)
	}
	return nil
}

// AssignAccounts assigns every followed account to a stream, makes and removes shards as
// needed, and returns all of them, the root first. It returns ErrNoRows if SetSharding
// was not called. If oldest is true, a stream that has read nothing begins at the
// oldest event instead of the tip.
//
// A stream that takes over accounts from other streams moves back to the earliest of
// their positions, so that it reads what they have not committed. Its holder loses the
// lease. A new holder must therefore call AssignAccounts after it takes the lease and
// before it reads.
func AssignAccounts(ctx context.Context, tx pgx.Tx, root string, oldest bool) ([]Shard, error) {
	s := division{root: root, oldest: oldest}
	if err := s.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("read the shards of stream %s: %w", root, err)
	}
	s.next, s.total = divide(s.followed.DIDs, s.now, len(s.streams), s.sharding)
	if err := s.write(ctx, tx); err != nil {
		return nil, fmt.Errorf("assign the accounts of stream %s: %w", root, err)
	}
	return s.shards(), nil
}

// divide assigns accounts to streams. A stream is a number from 0, the root, to
// streams-1; total is the new number of streams. Accounts move only if they must: a
// stream with too many accounts gives some away, and a shard gives all away if the
// others have room for them and a tenth to spare. So small changes do not move
// accounts back and forth.
func divide(followed []string, now map[string]int, streams int, s Sharding) (next map[string]int, total int) {
	limit := s.limit(followed, now)
	sizes := make([]int, streams)
	next = make(map[string]int, len(followed))
	var loose []string
	for _, did := range followed {
		at, there := now[did]
		if !there || sizes[at] == limit {
			loose = append(loose, did)
			continue
		}
		next[did] = at
		sizes[at]++
	}
	for closed := closable(sizes, len(followed), limit); closed > 0; closed = closable(sizes, len(followed), limit) {
		for _, did := range followed {
			if at, there := next[did]; there && at == closed {
				delete(next, did)
				loose = append(loose, did)
			}
		}
		sizes[closed] = 0
	}
	for len(loose) > 0 {
		at := fullestWithRoom(sizes, limit)
		if at < 0 {
			at = len(sizes)
			sizes = append(sizes, 0)
		}
		n := min(limit-sizes[at], len(loose))
		for _, did := range loose[:n] {
			next[did] = at
		}
		sizes[at] += n
		loose = loose[n:]
	}
	return next, len(sizes)
}

// limit returns the most accounts of one stream: any number if the stream reads the
// whole network. Auto returns to shards once the accounts are a tenth below the limit.
func (s Sharding) limit(followed []string, now map[string]int) int {
	inRoot := 0
	for _, at := range now {
		if at == 0 {
			inRoot++
		}
	}
	most := AutoShards * s.Accounts
	if inRoot > s.Accounts {
		most -= most / 10
	}
	if s.Mode == ShardsNetwork || s.Mode == ShardsAuto && len(followed) > most {
		return math.MaxInt
	}
	return s.Accounts
}

// closable returns the smallest shard, if the others have room for its accounts, or 0.
func closable(sizes []int, accounts, limit int) int {
	smallest, others := 0, 0
	for i, n := range sizes {
		switch {
		case i == 0 || n == 0:
			continue
		case smallest == 0 || n < sizes[smallest]:
			smallest = i
		}
		others++ // the root counts in place of the closed shard
	}
	if smallest == 0 || (accounts+others-1)/others > limit-limit/10 {
		return 0
	}
	return smallest
}

// fullestWithRoom returns the fullest stream that has room, or -1.
func fullestWithRoom(sizes []int, limit int) int {
	fullest := -1
	for i, n := range sizes {
		if n < limit && (fullest < 0 || n > sizes[fullest]) {
			fullest = i
		}
	}
	return fullest
}

// division is the assignment of accounts to streams, before and after a change.
type division struct {
	root     string
	oldest   bool
	sharding Sharding
	followed Followed
	streams  []string       // the root first
	now      map[string]int // by account: index into streams, before
	next     map[string]int // by account: index into streams, after
	total    int            // number of streams, after; some may be empty
}

func (s *division) read(ctx context.Context, tx pgx.Tx) error {
	// One process at a time assigns accounts. The timeout keeps a paused process
	// from blocking the others.
	const begin = `
SET LOCAL idle_in_transaction_session_timeout = '20s';
LOCK TABLE stream_accounts IN SHARE ROW EXCLUSIVE MODE`
	if _, err := tx.Exec(ctx, begin); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `SELECT mode, accounts FROM sharding WHERE root = $1`, s.root).Scan(&s.sharding.Mode, &s.sharding.Accounts); err != nil {
		return err
	}
	var err error
	if s.followed, err = FollowedAccounts(ctx, tx); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT name FROM streams WHERE name = $1 OR root = $1 ORDER BY root NULLS FIRST, length(name), name`, s.root)
	if err != nil {
		return err
	}
	if s.streams, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, `SELECT did, stream FROM stream_accounts WHERE root = $1`, s.root); err != nil {
		return err
	}
	index := make(map[string]int, len(s.streams))
	for i, name := range s.streams {
		index[name] = i
	}
	s.now = map[string]int{}
	var did, stream string
	_, err = pgx.ForEachRow(rows, []any{&did, &stream}, func() error { s.now[did] = index[stream]; return nil })
	return err
}

// write stores the changes, and writes nothing if there are none.
func (s *division) write(ctx context.Context, tx pgx.Tx) error {
	sources := map[int][]string{} // by receiving stream: the streams whose positions count
	for len(s.streams) < s.total {
		name, err := makeShard(ctx, tx, s.root)
		if err != nil {
			return err
		}
		// The root may have followed its first accounts as a part of the network.
		sources[len(s.streams)] = []string{s.root}
		s.streams = append(s.streams, name)
	}
	from := func(at, before int) {
		if sources[at] == nil {
			sources[at] = []string{s.streams[at]}
		}
		if !slices.Contains(sources[at], s.streams[before]) {
			sources[at] = append(sources[at], s.streams[before])
		}
	}
	var moved, to pgtype.FlatArray[string]
	for _, did := range s.followed.DIDs {
		before, there := s.now[did]
		after := s.next[did]
		if there && before == after {
			continue
		}
		moved, to = append(moved, did), append(to, s.streams[after])
		if there {
			from(after, before)
		}
	}
	var gone pgtype.FlatArray[string]
	for did := range s.now {
		if _, there := s.next[did]; !there {
			gone = append(gone, did)
		}
	}
	for i := 1; s.followed.Everyone && i < len(s.streams); i++ {
		from(0, i)
	}
	for i, streams := range sources {
		if err := takeOver(ctx, tx, s.streams[i], streams, s.oldest); err != nil {
			return err
		}
	}
	if err := storeAssignments(ctx, tx, s.root, moved, to, gone); err != nil {
		return err
	}
	return s.removeEmpty(ctx, tx)
}

// makeShard makes the row of a new shard, with an unused name. The lease looks held for
// ten seconds, until a consumer takes it, but is free to take.
func makeShard(ctx context.Context, tx pgx.Tx, root string) (name string, err error) {
	const sql = `
WITH number AS (UPDATE sharding SET made = made + 1 WHERE root = $1 RETURNING made)
INSERT INTO streams (name, wire, root, state, lease_expires_at)
SELECT s.name || '-' || n.made, s.wire, s.name, 'connecting', clock_timestamp() + interval '10 seconds' FROM streams AS s, number AS n WHERE s.name = $1
ON CONFLICT (name) DO NOTHING
RETURNING name`
	for err = ErrNoRows; errors.Is(err, ErrNoRows); { // a stream of another root may have the name
		err = tx.QueryRow(ctx, sql, root).Scan(&name)
	}
	return name, err
}

// takeOver sets a stream to the earliest position, by time, of some streams, and ends
// its lease. A stream that has read nothing is the earliest if oldest is true, and is
// ignored otherwise.
func takeOver(ctx context.Context, tx pgx.Tx, stream string, from []string, oldest bool) error {
	// After this lock, the next statement sees the positions of earlier commits.
	if _, err := tx.Exec(ctx, `SELECT FROM streams WHERE name = ANY ($1) ORDER BY name FOR NO KEY UPDATE`, from); err != nil {
		return err
	}
	const sql = `
UPDATE streams AS s
SET epoch         = s.epoch + 1,
    host          = '',
    cursor_kind   = CASE WHEN f.from_oldest THEN '' ELSE 'time' END,
    cursor        = CASE WHEN f.from_oldest THEN 0 ELSE (extract(epoch FROM f.start) * 1000000)::bigint END,
    anchor        = NULL,
    anchors       = NULL,
    anchor_seqs   = NULL,
    last_event_at = CASE WHEN f.events > 0 THEN f.start END,
    written_at    = CASE WHEN f.events > 0 THEN f.start - f.lag END,
    caught_up_at  = f.caught_up_at,
    filter_hash   = ''
FROM (
    SELECT min(coalesce(last_event_at, caught_up_at)) AS start, count(last_event_at) AS events,
           coalesce(max(last_event_at - written_at), interval '0') AS lag,
           min(greatest(last_event_at, caught_up_at)) AS caught_up_at, bool_or(cursor_kind = '') AND $3 AS from_oldest
    FROM streams
    WHERE name = ANY ($2) AND (cursor_kind <> '' OR $3)
) AS f
WHERE s.name = $1 AND (f.start IS NOT NULL OR f.from_oldest)`
	_, err := tx.Exec(ctx, sql, stream, from, oldest)
	return err
}

// storeAssignments stores the new streams of accounts, and deletes accounts that are no
// longer followed.
func storeAssignments(ctx context.Context, tx pgx.Tx, root string, dids, streams, gone pgtype.FlatArray[string]) error {
	if len(dids) > 0 {
		const sql = `
INSERT INTO stream_accounts AS a (root, did, stream, assigned_at)
SELECT $1, n.did, n.stream, clock_timestamp() FROM unnest($2::text[], $3::text[]) AS n (did, stream)
ON CONFLICT (root, did) DO UPDATE SET stream = excluded.stream, assigned_at = excluded.assigned_at`
		if _, err := tx.Exec(ctx, sql, root, dids, streams); err != nil {
			return err
		}
	}
	if len(gone) > 0 {
		if _, err := tx.Exec(ctx, `DELETE FROM stream_accounts WHERE root = $1 AND did = ANY ($2)`, root, gone); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty deletes the shards without accounts, even if their lease is held: the
// holder can commit nothing more.
func (s *division) removeEmpty(ctx context.Context, tx pgx.Tx) error {
	used := map[int]bool{0: true}
	for _, at := range s.next {
		used[at] = true
	}
	for i, name := range s.streams {
		if used[i] {
			continue
		}
		if _, err := tx.Exec(ctx, `DELETE FROM streams WHERE name = $1`, name); err != nil {
			return err
		}
	}
	return nil
}

// shards returns the streams after the change.
func (s *division) shards() []Shard {
	all := make([]Shard, len(s.streams))
	for i, name := range s.streams {
		all[i] = Shard{Stream: name, Followed: Followed{Everyone: i == 0 && s.followed.Everyone}}
	}
	for _, did := range s.followed.DIDs {
		shard := &all[s.next[did]]
		shard.DIDs = append(shard.DIDs, did)
	}
	for i := range all {
		all[i].Network = all[i].Everyone || len(all[i].DIDs) > s.sharding.Accounts
	}
	return slices.DeleteFunc(all, func(one Shard) bool { return one.Stream != s.root && len(one.DIDs) == 0 })
}
