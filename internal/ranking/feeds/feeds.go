// Package feeds computes feeds of the ranking, and remembers what they have published.
//
// A feed lists the links that have reached the minimum of sharers of its view, the latest first. It
// computes them from the shares, and stores in feed_entries what it has published: later deletions
// and merges change neither ids nor dates.
package feeds

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// AtLeast is the default minimum of sharers.
const AtLeast = 3

const (
	maxFeeds       = 200                // stored feeds with unusual options
	maxFeedEntries = 2000               // stored entries per feed
	idleFeed       = 7 * 24 * time.Hour // after this time without a request, a feed may be dropped for another
)

// Feed is the state of a feed at a time.
type Feed struct {
	At      time.Time // when it was computed
	Made    time.Time // when this instance was made
	Entries []Entry
	key     []byte
}

// Entry is a link in a feed.
type Entry struct {
	ranking.LinkCard
	UUID    string    // the same in all feeds
	Reached time.Time // the date of the share with which it reached the minimum
}

// published is a stored entry of a feed.
type published struct {
	Link     int64 // the link that was published
	Counts   int64 // the link that now counts for it
	Identity string
	At       time.Time
}

// memory is what a feed has published.
type memory struct {
	feed int64               // 0: the feed stores nothing
	by   map[int64]published // by the link that counts
}

// Read computes the feed of a view: the newest q.Limit links whose stored shares have
// reached q.AtLeast. The window and the order of the query are ignored. It returns ranking.ErrWatch if
// there is no such watch.
func Read(ctx context.Context, db ranking.DB, q ranking.Query) (f Feed, err error) {
	q.AtLeast = cmp.Or(q.AtLeast, AtLeast)
	if q, err = q.OfStoredShares(); err != nil {
		return f, err
	}
	for {
		// Of several transactions that compute the same stored feed, one succeeds at a time. The
		// others fail before they have read anything.
		if f, err = readFeed(ctx, db, q); !ranking.Overtaken(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return f, fmt.Errorf("compute a feed: %w", err)
	}
	return f, nil
}

func readFeed(ctx context.Context, db ranking.DB, q ranking.Query) (f Feed, err error) {
	id, err := ensureFeed(ctx, db, q)
	if err != nil {
		return f, err
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead}
	if id == 0 {
		options.AccessMode = pgx.ReadOnly
	}
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return f, fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // it was committed, or failed
	if id != 0 {
		// The second of two transactions fails here, once the first has stored what it published,
		// and begins again.
		done, err := tx.Exec(ctx, `UPDATE feeds SET asked_at = greatest(asked_at, $2) WHERE id = $1`, id, q.At)
		if err != nil {
			return f, fmt.Errorf("lock the feed: %w", err)
		}
		if done.RowsAffected() == 0 { // the feed was dropped for another meanwhile
			id = 0
		}
	}
	r, err := ranking.NewReachReader(ctx, tx, q)
	if err != nil {
		return f, err
	}
	m := &memory{feed: id}
	if f, err = m.compute(ctx, tx, r); err != nil {
		return f, err
	}
	if id == 0 {
		return f, nil
	}
	if err := m.remember(ctx, tx, f.Entries); err != nil {
		return f, err
	}
	if err := tx.Commit(ctx); err != nil {
		return f, fmt.Errorf("store what a feed has published: %w", err)
	}
	return f, nil
}

// viewOf returns the part of the query that identifies a stored feed: whose shares count, of
// which kind, and how many a link needs. The filters only leave links out.
func viewOf(q ranking.Query) string {
	ways := slices.Clone(q.OnlyWays())
	slices.Sort(ways)
	view := fmt.Sprintf("at least %d %s watch %q %s", q.AtLeast, strings.Join(ways, ","), q.Watch, q.Degree)
	if q.Network != ranking.BothNetworks { // feeds of both networks have kept their names
		view += " of " + string(q.Network)
	}
	return view
}

// ensureFeed returns the id of the feed's row, or 0 if there are too many feeds. Their number is
// limited, because anyone can request a feed.
func ensureFeed(ctx context.Context, db ranking.DB, q ranking.Query) (id int64, err error) {
	view := viewOf(q)
	hash := sha256.Sum256([]byte(view))
	const find = `SELECT coalesce((SELECT f.id FROM feeds AS f WHERE f.hash = $1), 0)`
	if id, err = schema.One(ctx, db, "find the feed", pgx.RowTo[int64], find, hash[:]); err != nil || id != 0 {
		return id, err
	}
	const wait = `SELECT pg_advisory_xact_lock($1)`
	const makeRoom = `
DELETE FROM feeds AS f WHERE f.id IN (
    SELECT o.id FROM feeds AS o
    WHERE NOT o.usual AND o.asked_at < $1 AND (SELECT count(*) FROM feeds AS n WHERE NOT n.usual) >= $2
    ORDER BY o.asked_at LIMIT 1
)`
	const add = `
INSERT INTO feeds (hash, view, usual, asked_at)
SELECT $1, $2, $3, $4
WHERE ($3 OR (SELECT count(*) FROM feeds AS n WHERE NOT n.usual) < $5)
    AND ($6 = '' OR EXISTS (SELECT FROM watches AS w WHERE w.target = $6))
ON CONFLICT (hash) DO NOTHING`
	tx, err := db.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return 0, fmt.Errorf("begin to add a feed: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // it was committed, or failed
	usual := q.AtLeast == AtLeast && q.OnlyWays() == nil && q.Network == ranking.BothNetworks && q.Degree == ranking.BothDegrees
	b := &pgx.Batch{}
	b.Queue(wait, int64(feedLock))
	b.Queue(makeRoom, q.At.Add(-idleFeed), maxFeeds)
	b.Queue(add, hash[:], view, usual, q.At, maxFeeds, q.Watch)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return 0, fmt.Errorf("add a feed: %w", err)
	}
	if id, err = schema.One(ctx, tx, "find the feed", pgx.RowTo[int64], find, hash[:]); err != nil {
		return 0, err
	}
	return id, tx.Commit(ctx)
}

// feedLock is the advisory lock for adding feeds.
const feedLock = 0x77656972666565

// compute reads the entries.
func (m *memory) compute(ctx context.Context, tx pgx.Tx, r *ranking.ReachReader) (f Feed, err error) {
	f.At = r.At()
	if f.key, f.Made, err = readKey(ctx, tx); err != nil {
		return f, err
	}
	if err := m.recall(ctx, tx); err != nil {
		return f, err
	}
	dates := make(map[int64]time.Time, len(m.by))
	for id, p := range m.by {
		dates[id] = p.At
	}
	links, err := r.Newest(ctx, dates)
	if err != nil {
		return f, err
	}
	f.Entries = make([]Entry, len(links))
	for i, l := range links {
		identity := l.Identity
		if p, ok := m.by[l.ID]; ok {
			identity = p.Identity
		}
		f.Entries[i] = Entry{LinkCard: l.LinkCard, UUID: derive(f.key, "link", identity), Reached: l.At}
	}
	return f, nil
}

// recall reads the entries that the feed has published. If several of the published links are now
// one, the first one stays, although readers know the ids of all.
func (m *memory) recall(ctx context.Context, tx pgx.Tx) error {
	m.by = map[int64]published{}
	const sql = `
SELECT e.link_id, l.counts_as, l.identity, e.reached_at
FROM feed_entries AS e
CROSS JOIN LATERAL (SELECT l.counts_as, l.identity FROM links AS l WHERE l.id = e.link_id LIMIT 1) AS l
WHERE e.feed_id = $1 AND l.counts_as NOT IN (SELECT b.link_id FROM blocked_links AS b)
ORDER BY e.reached_at, e.link_id`
	all, err := schema.All(ctx, tx, "read what a feed has published", pgx.RowToStructByPos[published], sql, m.feed)
	for _, p := range all {
		if _, ok := m.by[p.Counts]; !ok {
			m.by[p.Counts] = p
		}
	}
	return err
}

// remember stores the entries that the feed has not published before.
func (m *memory) remember(ctx context.Context, tx pgx.Tx, entries []Entry) error {
	var links []int64
	var reached []time.Time
	for _, e := range entries {
		if _, ok := m.by[e.ID]; !ok {
			links, reached = append(links, e.ID), append(reached, e.Reached)
		}
	}
	if len(links) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(`
INSERT INTO feed_entries (feed_id, link_id, reached_at) SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[])`, m.feed, links, reached)
	b.Queue(`
DELETE FROM feed_entries AS e WHERE e.feed_id = $1 AND e.link_id IN (
    SELECT o.link_id FROM feed_entries AS o WHERE o.feed_id = $1 ORDER BY o.reached_at DESC, o.link_id DESC OFFSET $2
)`, m.feed, maxFeedEntries)
	return schema.Send(ctx, tx, "store what a feed has published", b)
}
