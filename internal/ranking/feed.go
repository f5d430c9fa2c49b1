package ranking

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// A feed lists the links that have reached the minimum of sharers of its view, the latest first. It
// computes them from the ledger, and stores in feed_entries what it has published: later deletions
// and merges change neither ids nor dates.

// FeedAtLeast is the default minimum of sharers.
const FeedAtLeast = 3

const (
	maxFeeds       = 200                // stored feeds with unusual options
	maxFeedEntries = 2000               // stored entries per feed
	idleFeed       = 7 * 24 * time.Hour // after this time without a request, a feed may be dropped for another
)

// Feed is the state of a feed at a time.
type Feed struct {
	At      time.Time // when it was computed
	Made    time.Time // when this instance was made
	Entries []FeedEntry
	key     []byte
}

// FeedEntry is a link in a feed.
type FeedEntry struct {
	LinkCard
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

// feedReader computes a feed in one transaction.
type feedReader struct {
	reader
	feed       int64               // 0: the feed stores nothing
	remembered map[int64]published // by the link that counts
}

// ReadFeed computes the feed of a view: the newest q.Limit links whose sharers in the ledger have
// reached q.AtLeast. The window and the order of the query are ignored. It returns ErrWatch if
// there is no such watch.
func ReadFeed(ctx context.Context, db DB, q Query) (f Feed, err error) {
	q.Window, q.Sort, q.After, q.Past = LongestWindow, Sharers, "", false
	if q.AtLeast == 0 {
		q.AtLeast = FeedAtLeast
	}
	if q.At.IsZero() {
		q.At = time.Now()
	}
	q.At = q.At.Truncate(time.Microsecond)
	if err := q.check(); err != nil {
		return f, err
	}
	for {
		// Of several transactions that compute the same stored feed, one succeeds at a time. The
		// others fail before they have read anything.
		if f, err = readFeed(ctx, db, q); !Overtaken(err) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return f, fmt.Errorf("compute a feed: %w", err)
	}
	return f, nil
}

func readFeed(ctx context.Context, db DB, q Query) (f Feed, err error) {
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
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it was committed, or failed
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
	r := newFeedReader(q, id, usualLimits())
	if err := r.begin(ctx, tx); err != nil {
		return f, err
	}
	if f, err = r.compute(ctx); err != nil {
		return f, err
	}
	if id == 0 {
		return f, nil
	}
	if err := r.remember(ctx, f.Entries); err != nil {
		return f, err
	}
	if err := tx.Commit(ctx); err != nil {
		return f, fmt.Errorf("store what a feed has published: %w", err)
	}
	return f, nil
}

func newFeedReader(q Query, feed int64, l limits) *feedReader {
	return &feedReader{reader: reader{q: q, end: q.At, limits: l, window: windows - 1}, feed: feed}
}

// feedView returns the part of the query that identifies a stored feed: whose shares count, of
// which kind, and how many a link needs. The filters only leave links out.
func (q Query) feedView() string {
	ways := slices.Clone(q.ways())
	slices.Sort(ways)
	view := fmt.Sprintf("at least %d %s watch %q %s", q.AtLeast, strings.Join(ways, ","), q.Watch, q.Degree)
	if q.Network != BothNetworks { // feeds of both networks have kept their names
		view += " of " + string(q.Network)
	}
	return view
}

// ensureFeed returns the id of the feed's row, or 0 if there are too many feeds. Their number is
// limited, because anyone can request a feed.
func ensureFeed(ctx context.Context, db DB, q Query) (id int64, err error) {
	view := q.feedView()
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
WHERE ($3 OR (SELECT count(*) FROM feeds AS n WHERE NOT n.usual) < $5) AND ($6 = '' OR EXISTS (SELECT FROM watches AS w WHERE w.target = $6))
ON CONFLICT (hash) DO NOTHING`
	tx, err := db.BeginTx(ctx, pgx.TxOptions{})
	if err != nil {
		return 0, fmt.Errorf("begin to add a feed: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it was committed, or failed
	usual := q.AtLeast == FeedAtLeast && q.ways() == nil && q.Network == BothNetworks && q.Degree == BothDegrees
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
func (r *feedReader) compute(ctx context.Context) (f Feed, err error) {
	f.At = r.end
	if f.key, f.Made, err = readKey(ctx, r.tx); err != nil {
		return f, err
	}
	if err := r.readSearch(ctx); err != nil {
		return f, err
	}
	if err := r.readBy(ctx); err != nil {
		return f, err
	}
	if err := r.recall(ctx); err != nil {
		return f, err
	}
	old, err := r.known(ctx)
	if err != nil {
		return f, err
	}
	fresh, err := r.fresh(ctx)
	if err != nil {
		return f, err
	}
	all := append(old, fresh...)
	sortReached(all)
	f.Entries, err = r.entries(ctx, all[:min(len(all), r.q.Limit)], f.key)
	return f, err
}

// recall reads the entries that the feed has published. If several of the published links are now
// one, the first one stays, although readers know the ids of all.
func (r *feedReader) recall(ctx context.Context) error {
	r.remembered = map[int64]published{}
	const sql = `
SELECT e.link_id, l.counts_as, l.identity, e.reached_at
FROM feed_entries AS e
CROSS JOIN LATERAL (SELECT l.counts_as, l.identity FROM links AS l WHERE l.id = e.link_id LIMIT 1) AS l
WHERE e.feed_id = $1 AND l.counts_as NOT IN (SELECT b.link_id FROM blocked_links AS b)
ORDER BY e.reached_at, e.link_id`
	all, err := schema.All(ctx, r.tx, "read what a feed has published", pgx.RowToStructByPos[published], sql, r.feed)
	for _, p := range all {
		if _, ok := r.remembered[p.Counts]; !ok {
			r.remembered[p.Counts] = p
		}
	}
	return err
}

// remember stores the entries that the feed has not published before.
func (r *feedReader) remember(ctx context.Context, entries []FeedEntry) error {
	var links []int64
	var reached []time.Time
	for _, e := range entries {
		if _, ok := r.remembered[e.ID]; !ok {
			links, reached = append(links, e.ID), append(reached, e.Reached)
		}
	}
	if len(links) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO feed_entries (feed_id, link_id, reached_at) SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[])`, r.feed, links, reached)
	b.Queue(`
DELETE FROM feed_entries AS e WHERE e.feed_id = $1 AND e.link_id IN (
    SELECT o.link_id FROM feed_entries AS o WHERE o.feed_id = $1 ORDER BY o.reached_at DESC, o.link_id DESC OFFSET $2
)`, r.feed, maxFeedEntries)
	if err := r.tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("store what a feed has published: %w", err)
	}
	return nil
}

// entries describes the links of a feed.
func (r *feedReader) entries(ctx context.Context, of []reached, key []byte) ([]FeedEntry, error) {
	ids := make([]int64, len(of))
	for i := range of {
		ids[i] = of[i].id
	}
	const sql = `
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.identity
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
CROSS JOIN LATERAL (SELECT l.* FROM links AS l WHERE l.id = k.id LIMIT 1) AS l
ORDER BY k.n`
	identities := make(map[int64]string, len(of))
	links, err := schema.All(ctx, r.tx, "read the links of a feed", func(row pgx.CollectableRow) (l TrendingLink, err error) {
		var identity string
		err = row.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &identity)
		identities[l.ID] = identity
		return l, err
	}, sql, ids)
	if err != nil {
		return nil, err
	}
	if err := r.correctHeadlines(ctx, links); err != nil {
		return nil, err
	}
	at := make(map[int64]time.Time, len(of))
	for _, l := range of {
		at[l.id] = l.at
	}
	entries := make([]FeedEntry, len(links))
	for i, l := range links {
		identity := identities[l.ID]
		if p, ok := r.remembered[l.ID]; ok {
			identity = p.Identity
		}
		entries[i] = FeedEntry{LinkCard: l.LinkCard, UUID: derive(key, "link", identity), Reached: at[l.ID]}
	}
	return entries, nil
}
