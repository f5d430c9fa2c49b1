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

// What happens above the number of accounts that one stream asks for.
const (
	ShardsAuto    = "auto"    // shards while they are few, else the network
	ShardsAlways  = "shards"  // as many streams as it takes
	ShardsNetwork = "network" // one stream that asks for everyone's events
)

// AutoShards is up to how many streams auto makes. Above it, one stream of the
// whole network costs less than the connections.
const AutoShards = 10

// Sharding says how the followed accounts are shared out over a stream and its
// shards.
type Sharding struct {
	Mode     string
	Accounts int // how many accounts one stream asks for, at most
}

// Shard is a stream and whom it follows.
type Shard struct {
	Stream string
	Followed
	// Network: these are more than one stream can ask for. It asks for
	// everyone's events, and applies theirs.
	Network bool
}

// SetSharding says how the accounts of a stream are shared out from now on.
func SetSharding(ctx context.Context, db DB, root, wire string, s Sharding) error {
	if err := makeStream(ctx, db, root, wire); err != nil {
		return err
	}
	const sql = `
INSERT INTO sharding (root, mode, accounts) VALUES ($1, $2, $3)
ON CONFLICT (root) DO UPDATE SET mode = excluded.mode, accounts = excluded.accounts`
	if _, err := db.Exec(ctx, sql, root, s.Mode, s.Accounts); err != nil {
		return fmt.Errorf("say how the accounts of stream %s are shared out: %w", root, err)
	}
	return nil
}

// AssignAccounts gives every followed account a stream, makes and removes shards
// as it takes, and answers them all, the root first. ErrNoRows where SetSharding
// has not been called. oldest says that a stream that has read nothing begins at
// the oldest event, and not at the tip.
//
// A stream that takes accounts over from others goes back to the earliest of
// their positions, and whoever holds its lease loses it: what those streams had
// not committed comes again. For that, a holder must ask here after it took the
// lease, and before it reads.
func AssignAccounts(ctx context.Context, tx pgx.Tx, root string, oldest bool) ([]Shard, error) {
	s := division{root: root, oldest: oldest}
	if err := s.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("read the shards of stream %s: %w", root, err)
	}
	s.next, s.total = divide(s.followed.DIDs, s.now, len(s.streams), s.sharding)
	if err := s.write(ctx, tx); err != nil {
		return nil, fmt.Errorf("share out the accounts of stream %s: %w", root, err)
	}
	return s.shards(), nil
}

// divide decides which stream follows which account. Streams are numbers below
// streams, 0 is the root; total is how many there are afterwards. Nobody moves
// without need: a stream gives accounts away when it has too many, a shard gives
// all away when the others have room for them and a tenth is left, so that a few
// accounts more or less do not move many to and fro.
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

// limit is how many accounts one stream takes: any number, where the network is
// read above it. Auto goes back to shards when a tenth fewer would do.
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

// closable is the smallest shard whose accounts the others have room for; 0: none.
func closable(sizes []int, accounts, limit int) int {
	smallest, others := 0, 0
	for i, n := range sizes {
		switch {
		case i == 0 || n == 0:
			continue
		case smallest == 0 || n < sizes[smallest]:
			smallest = i
		}
		others++ // the root stands in for the one that goes
	}
	if smallest == 0 || (accounts+others-1)/others > limit-limit/10 {
		return 0
	}
	return smallest
}

// fullestWithRoom is the fullest stream that has room; -1: none.
func fullestWithRoom(sizes []int, limit int) int {
	fullest := -1
	for i, n := range sizes {
		if n < limit && (fullest < 0 || n > sizes[fullest]) {
			fullest = i
		}
	}
	return fullest
}

// division is one sharing out: how it stands, and how it will.
type division struct {
	root     string
	oldest   bool
	sharding Sharding
	followed Followed
	streams  []string       // the root first
	now      map[string]int // by account: an index into streams
	next     map[string]int // the same, afterwards
	total    int            // of streams, afterwards; some may be empty
}

func (s *division) read(ctx context.Context, tx pgx.Tx) error {
	// One process at a time shares out; one that is paused meanwhile must not
	// keep the others waiting.
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

// write writes the difference: nothing where there is none.
func (s *division) write(ctx context.Context, tx pgx.Tx) error {
	sources := map[int][]string{} // of the streams that take accounts over: whose positions count
	for len(s.streams) < s.total {
		name, err := makeShard(ctx, tx, s.root)
		if err != nil {
			return err
		}
		// Its first accounts may have been followed as some of everyone.
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

// makeShard makes the row of a new shard, with a name that none had before. It
// counts as held, though free to take, for the moment until a consumer comes.
func makeShard(ctx context.Context, tx pgx.Tx, root string) (name string, err error) {
	const sql = `
WITH number AS (UPDATE sharding SET made = made + 1 WHERE root = $1 RETURNING made)
INSERT INTO streams (name, wire, root, state, lease_expires_at)
SELECT s.name || '-' || n.made, s.wire, s.name, 'connecting', clock_timestamp() + interval '10 seconds' FROM streams AS s, number AS n WHERE s.name = $1
ON CONFLICT (name) DO NOTHING
RETURNING name`
	for err = ErrNoRows; errors.Is(err, ErrNoRows); { // a stream of another Weir may have the name
		err = tx.QueryRow(ctx, sql, root).Scan(&name)
	}
	return name, err
}

// takeOver sets a stream to the earliest position of some, by time, and ends its
// lease. Those that have read nothing are the earliest, or do not count.
func takeOver(ctx context.Context, tx pgx.Tx, stream string, from []string, oldest bool) error {
	// A commit that was first is seen from here on; one that comes later is
	// behind the position it finds.
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

// storeAssignments writes down which stream follows which account from now on, and
// forgets those that nobody follows.
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

// removeEmpty removes the shards without accounts, and whatever their lease: its
// holder commits nothing more.
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

// shards are the streams as they are after the sharing out.
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
