package ranking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/words"
	"github.com/weir-social/weir/schema"
)

// Sort is an order of the ranking.
type Sort string

// If two links are equal in an order, the one that was shared last comes first, and then the one
// that was stored last.
const (
	Sharers Sort = "sharers" // the most sharers in the window first
	Speed   Sort = "speed"   // the most sharers per hour with decay first; only links shared in the last 24 h
	Newest  Sort = "newest"  // the latest stored link first
)

// Degree chooses among the accounts that a watch includes.
type Degree string

// The degrees.
const (
	BothDegrees  Degree = ""
	FirstDegree  Degree = "first"  // accounts that the target follows or lists
	SecondDegree Degree = "second" // accounts that the target's follows follow
)

// Query selects a ranking. The zero value of every field but Window and Limit means everything.
type Query struct {
	At      time.Time // the time at which the windows end; now when zero
	Past    bool      // count no share dated after At: recounts the shares
	Window  time.Duration
	Sort    Sort
	AtLeast int      // sharers in the window
	Ways    []string // post, quote, repost: how a link was shared
	Network Network  // only its accounts count
	Site    string
	Text    string // in the title, the description, the address, or what sharers wrote
	By      string // the handle or DID of an account: only links that it shares in the window, by these ways
	Watch   string // the target of watches: only their members count
	Degree  Degree // of Watch
	Limit   int
	After   Cursor // continue after a page
	Bare    bool   // only the id, the counts and the last share of each link
}

// LinkCard is a link with its card, from the votes of its sharers or from its page.
type LinkCard struct {
	ID          int64  `json:"id"`
	URL         string `json:"url"`
	Site        string `json:"site"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	Image       string `json:"image,omitempty"`     // blob:<did>/<cid>
	CardFrom    string `json:"card_from,omitempty"` // the AT-URI of the post that the title is from, or the address of the page
	Gift        string `json:"gift,omitempty"`      // a URL that opens the article for readers who have not paid, if a sharer gave one
}

// TrendingLink is one entry of the ranking.
type TrendingLink struct {
	LinkCard
	FirstSeen  time.Time `json:"first_seen,omitzero"` // when the link was stored
	Sharers    int       `json:"sharers"`             // distinct accounts inside the window
	Speed      float64   `json:"speed,omitempty"`     // sharers per hour with decay, if the ranking is sorted by it
	LastShared time.Time `json:"last_shared"`         // the latest share inside the window
	SharedBy   []string  `json:"shared_by"`           // the names of Faces: verified handles, or DIDs
	Faces      []Face    `json:"faces"`               // the latest three sharers, the latest first
}

// Face is an account that shared a link.
type Face struct {
	DID         string  `json:"did"`
	Handle      string  `json:"handle,omitempty"`
	Unverified  bool    `json:"unverified,omitempty"` // others may claim the handle too
	DisplayName string  `json:"display_name,omitempty"`
	Avatar      string  `json:"avatar,omitempty"`
	Withheld    bool    `json:"withheld,omitempty"` // the account is not shown to strangers: it has only a DID
	Network     Network `json:"network"`
}

// Page is a part of a ranking. Another page with its Next as Query.After continues it.
type Page struct {
	At        time.Time // the end of the window; not the requested time if correcting the counts would take too long
	Links     []TrendingLink
	Before    int    // the links on the pages before
	Next      Cursor // empty at the end
	Recounted bool   // counted from the shares, because too many changes were pending
}

// errCrossed means that too many accounts entered or left a window since it was counted: the page
// must be of that time instead.
var errCrossed = errors.New("the window has changed too much")

// ErrWatch means that there is no watch with the target.
var ErrWatch = errors.New("no watch has this target")

// Beginner begins a transaction: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// DB is a pool or a connection.
type DB interface {
	schema.DB
	Beginner
}

// entry is a link with its position in the ranking.
type entry struct {
	ID      int64
	Sharers int
	Speed   int
	Last    time.Time
	DIDs    []string // if only members of watches count: the latest three sharers
}

// compare returns a negative number if e comes before other.
func (e entry) compare(other entry, sort Sort) int {
	switch {
	case sort == Newest:
	case e.value(sort) != other.value(sort):
		return other.value(sort) - e.value(sort)
	case !e.Last.Equal(other.Last):
		return other.Last.Compare(e.Last)
	}
	switch {
	case e.ID > other.ID:
		return -1
	case e.ID < other.ID:
		return 1
	}
	return 0
}

// reader reads one page in one snapshot.
type reader struct {
	tx      pgx.Tx
	q       Query
	end     time.Time
	after   *entry
	state   state
	watches []int64   // nil: everyone
	window  int       // the index of q.Window
	text    *searched // nil: any text
	before  int       // the links on the pages before
	by      []int64   // the links that q.By shares, in order; nil: any link
	members []string  // of the watches
	uncounted
	limits
}

// uncounted is what the counts do not contain yet.
type uncounted struct {
	asked  pending   // what the rows of pending_counts ask for
	rows   int       // number of rows of pending_counts
	unread changes   // the pending changes; nil: counted from the shares
	posts  []ownPost // of the changes in unread
}

// limits decide how a page is read. They do not affect what is on it.
type limits struct {
	pending   int // from this many changes on, pending changes are not corrected: a recount of the shares is faster
	crossings int // from this many crossings on, the windows end when they were last counted
	few       int // fewer links than this are read by their ids rather than in the order of the ranking; five times as many for a text
	// from this many matches of a text in one place on, they are listed only if they belong to few links; up to five
	// times as many
	many int
}

// Trending returns a page of the ranking. Everything is read in one snapshot: every number equals a
// recount of the shares at that moment, however far behind the counter is.
func Trending(ctx context.Context, db Beginner, q Query) (Page, error) {
	return trending(ctx, db, q, usualLimits())
}

func usualLimits() limits { return limits{pending: 5000, crossings: 5000, few: 2000, many: 10_000} }

func trending(ctx context.Context, db Beginner, q Query, l limits) (p Page, err error) {
	r := &reader{q: q, end: q.At, limits: l}
	if r.end.IsZero() {
		r.end = time.Now()
	}
	if q.Sort == "" {
		r.q.Sort = Sharers
	}
	if q.After != "" {
		if r.end, r.before, r.after, err = q.After.read(r.q, r.end); err != nil {
			return p, err
		}
	}
	r.end = r.end.Truncate(time.Microsecond)
	if err := r.q.check(); err != nil {
		return p, err
	}
	r.window = slices.IndexFunc(Windows(), func(w Window) bool { return w.Length == q.Window })
	err = r.read(ctx, db, func() error { p, err = r.page(ctx); return err }, r.queuePending(0), r.queueMembers)
	if err != nil {
		return p, fmt.Errorf("rank the links: %w", err)
	}
	return p, nil
}

// read calls f in one snapshot, after reading the state of the counts, the watches of the query,
// and what also queues.
func (r *reader) read(ctx context.Context, db Beginner, f func() error, also ...func(*pgx.Batch)) error {
	return readOnlyTx(ctx, db, func(tx pgx.Tx) error {
		if err := r.begin(ctx, tx, also...); err != nil {
			return err
		}
		return f()
	})
}

// begin reads the state of the counts, the watches of the query, and what also queues, in a
// transaction. It uses few round trips: while other processes use the CPUs, each round trip waits
// for its turn twice.
func (r *reader) begin(ctx context.Context, tx pgx.Tx, also ...func(*pgx.Batch)) error {
	r.tx = tx
	q := &pgx.Batch{}
	// With stale statistics, or none, a scan of a whole table looks cheap. Starting parallel
	// workers takes longer than a page.
	q.Queue(`SELECT set_config('enable_seqscan', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)`)
	q.Queue(selectState).Query(func(rows pgx.Rows) (err error) {
		r.state, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[state])
		return err
	})
	r.queueWatches(q)
	for _, queue := range also {
		queue(q)
	}
	return send(ctx, tx, q)
}

// readOnlyTx calls f in one snapshot of the database.
func readOnlyTx(ctx context.Context, db Beginner, f func(pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // the transaction wrote nothing
	return f(tx)
}

func (q Query) check() error {
	switch {
	case !slices.ContainsFunc(Windows(), func(w Window) bool { return w.Length == q.Window }):
		return fmt.Errorf("the ranking has no window of %s", q.Window)
	case !slices.Contains([]Sort{Sharers, Speed, Newest}, q.Sort):
		return fmt.Errorf("the ranking has no order %q", q.Sort)
	case !slices.Contains([]Degree{BothDegrees, FirstDegree, SecondDegree}, q.Degree):
		return fmt.Errorf("a watch has no degree %q", q.Degree)
	case !slices.Contains([]Network{BothNetworks, Bluesky, Nostr}, q.Network):
		return fmt.Errorf("there is no network %q", q.Network)
	case q.Limit < 1:
		return fmt.Errorf("a page has at least one link, not %d", q.Limit)
	case utf8.RuneCountInString(q.Text) > words.MaxText:
		return fmt.Errorf("the text to find has more than %d characters", words.MaxText)
	}
	for _, way := range q.Ways {
		if !slices.Contains(Ways(), way) {
			return fmt.Errorf("nothing is shared by %q", way)
		}
	}
	return nil
}

// Ways returns the ways in which a link can be shared.
func Ways() []string { return []string{"post", "quote", "repost"} }

// OnlyWays returns the ways that count, or nil if every way does.
func (q Query) OnlyWays() []string {
	if !slices.ContainsFunc(Ways(), func(way string) bool { return !slices.Contains(q.Ways, way) }) || len(q.Ways) == 0 {
		return nil
	}
	return q.Ways
}

func (q Query) least() int { return max(q.AtLeast, 1) }

// until is the date of the last share that counts.
func (q Query) until() time.Time {
	if q.Past {
		return q.At
	}
	return time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
}

func (r *reader) from() time.Time { return r.end.Add(-r.q.Window) }

// page reads the page.
func (r *reader) page(ctx context.Context) (p Page, err error) {
	if err := r.readSearch(ctx); err != nil {
		return p, err
	}
	if err := r.readBy(ctx); err != nil {
		return p, err
	}
	p.At, p.Before = r.end, r.before
	entries, exact, err := r.counted(ctx)
	if errors.Is(err, errCrossed) {
		r.end = r.state.AsOf
		return r.page(ctx)
	}
	if err == nil && !exact {
		p.Recounted, r.unread = true, nil
		if _, err = r.tx.Exec(ctx, `SELECT set_config('enable_seqscan', 'on', true)`); err == nil {
			entries, err = r.recount(ctx)
		}
	}
	if err != nil {
		return p, err
	}
	if len(entries) > r.q.Limit {
		entries = entries[:r.q.Limit]
		p.Next = newCursor(r.end, r.before+r.q.Limit, entries[r.q.Limit-1], r.q)
	}
	p.Links, err = r.describe(ctx, entries)
	return p, err
}

// ofDegree is true for a watch w of the degree $2.
const ofDegree = `($2 = '' OR (w.kind = 'second-degree') = ($2 = 'second'))`

// queueWatches queues the search for the watches of the target.
func (r *reader) queueWatches(q *pgx.Batch) {
	if r.q.Watch == "" {
		return
	}
	const sql = `
SELECT coalesce(array_agg(w.id) FILTER (WHERE ` + ofDegree + `), '{}') FROM watches AS w WHERE w.target = $1 HAVING count(*) > 0`
	q.Queue(sql, r.q.Watch, string(r.q.Degree)).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&r.watches)
		if errors.Is(err, schema.ErrNoRows) {
			return fmt.Errorf("%q: %w", r.q.Watch, ErrWatch)
		}
		return err
	})
}

// queueMembers queues the reading of the members of the watches.
func (r *reader) queueMembers(q *pgx.Batch) {
	if r.q.Watch == "" {
		return
	}
	// In this order, neighbours in the index of sharers are read together.
	const sql = `
SELECT DISTINCT m.did FROM watch_members AS m
WHERE m.watch_id = ANY (ARRAY(SELECT w.id FROM watches AS w WHERE w.target = $1 AND ` + ofDegree + `)) ORDER BY m.did`
	schema.QueueAll(q, "read the members", pgx.RowTo[string], &r.members, sql, r.q.Watch, string(r.q.Degree))
}

// counted returns the page from the counts. exact is false if too many changes are pending or if
// the counts are of another time.
func (r *reader) counted(ctx context.Context) (entries []entry, exact bool, err error) {
	if !r.countable() {
		return nil, false, nil
	}
	if r.watches != nil {
		return r.watched(ctx)
	}
	w := &rankScan{reader: r}
	if exact, err = w.correct(ctx); err != nil || !exact {
		return nil, false, err
	}
	entries, err = w.first(ctx, r.after, r.q.Limit+1)
	return entries, true, err
}

// countable reports whether the counts can be corrected for the window.
func (r *reader) countable() bool {
	s := r.state
	return !r.q.Past && s.Counted && s.MembersOnly == s.Watching && !r.from().Before(s.KeptFrom)
}

// readPending reads the changes since the last count. If link is not 0, it reads only the changes
// of that link. exact is false if there are too many changes.
func (r *reader) readPending(ctx context.Context, link int64) (exact bool, err error) {
	q := &pgx.Batch{}
	r.queuePending(link)(q)
	if err := send(ctx, r.tx, q); err != nil {
		return false, err
	}
	return r.readUnread(ctx, &pgx.Batch{})
}

// queuePending queues the first step of readPending, for readUnread.
func (r *reader) queuePending(link int64) func(*pgx.Batch) {
	return func(q *pgx.Batch) {
		const sql = `SELECT ` + pendingColumns + ` FROM pending_counts WHERE $2::bigint = 0 OR link_id = $2 OR link_id IS NULL LIMIT $1`
		q.Queue(sql, r.pending, link).Query(func(rows pgx.Rows) (err error) {
			if r.asked, r.rows, err = distinct(rows); err != nil {
				return fmt.Errorf("read what is pending: %w", err)
			}
			return nil
		})
	}
}

// readUnread is the second step of readPending. It also runs the queries in q, unless too many
// changes are pending.
func (r *reader) readUnread(ctx context.Context, q *pgx.Batch) (exact bool, err error) {
	if r.asked.everything || r.rows == r.pending {
		return false, nil
	}
	var read changesAndPosts
	read.queue(q, r.asked, r.state, r.pending)
	if err := send(ctx, r.tx, q); err != nil || len(read.changes) == r.pending {
		return false, err
	}
	r.unread, r.posts = read.changes, read.posts
	return true, nil
}

// topCounted calls f with the links that have the most sharers in each window, by the last count:
// it reads no pending changes.
func topCounted(ctx context.Context, db Beginner, limit int, f func(Window, int64)) error {
	r := &reader{q: Query{Sort: Sharers, Limit: limit}, limits: usualLimits()}
	return r.read(ctx, db, func() error {
		r.end = r.state.AsOf
		for i, w := range Windows() {
			r.window, r.q.Window = i, w.Length
			entries, err := (&rankScan{reader: r}).first(ctx, nil, limit)
			if err != nil {
				return err
			}
			for _, e := range entries {
				f(w, e.ID)
			}
		}
		return nil
	})
}
