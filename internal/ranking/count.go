package ranking

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

const (
	// countLock is the advisory lock of the counter. Only its holder writes.
	countLock = 0x77656972636e74
	// countBatch is how many rows of pending_counts one step takes.
	countBatch = 5000
	// countStep is the longest time that the windows advance in one step.
	countStep = 10 * time.Minute
	// countJump is the time from which the windows do not advance in steps: instead everything is
	// counted again.
	countJump = 24 * time.Hour
	// kept is how long sharers are kept beyond the longest window, so that the clock
	// can be set back a little.
	kept = time.Hour
	// lull is the shortest step by which the windows advance while nothing is pending: readers
	// correct a few seconds at little cost.
	lull = 5 * time.Second
	// idle is how old as_of may become while nothing changes.
	idle = time.Minute
)

// Counted is the result of a step of the counter.
type Counted struct {
	Busy       bool // another process is counting
	Everything bool // everything was counted again
	Pending    int  // rows of pending_counts that were counted
	Sharers    int  // rows of sharers that changed
	Links      int  // rows of link_counts and nostr_counts that changed
	More       bool // there is more to do; call Count again at once
}

// Count updates sharers and link_counts to match the shares and the time, in one transaction. It
// takes a limited number of pending rows and advances the windows by a limited time: call it again
// at once while More is set. If it is killed, nothing has changed.
//
// Its transaction has one snapshot. Changes that commit meanwhile stay pending, and do not affect
// what it reads from the shares.
func Count(ctx context.Context, pool *pgxpool.Pool, now time.Time) (done Counted, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		done, err = count(ctx, tx, now.Truncate(time.Microsecond), countBatch)
		return err
	})
	if errors.Is(err, errNothing) {
		return done, nil
	}
	if err != nil {
		return Counted{}, fmt.Errorf("count: %w", err)
	}
	return done, nil
}

// Pending reports whether Count has more to do than to advance the windows.
func Pending(ctx context.Context, db schema.DB) (bool, error) {
	const sql = `
		SELECT EXISTS (SELECT FROM pending_counts) OR NOT EXISTS (SELECT FROM count_state WHERE members_only = EXISTS (SELECT FROM watches))`
	return schema.One(ctx, db, "look for pending counts", pgx.RowTo[bool], sql)
}

// errNothing ends a transaction that has nothing to write.
var errNothing = errors.New("nothing to count")

func count(ctx context.Context, tx pgx.Tx, now time.Time, batch int) (done Counted, err error) {
	// The snapshot may be older than the lock, and another counter may have committed in between. Both update
	// count_state, so this transaction then fails with a serialization error.
	var locked bool
	if err := tx.QueryRow(ctx, `
SELECT pg_try_advisory_xact_lock($1) FROM set_config('enable_seqscan', 'off', true)`, int64(countLock)).Scan(&locked); err != nil {
		return done, err
	}
	if !locked {
		return Counted{Busy: true}, errNothing
	}
	s, err := readState(ctx, tx)
	if err != nil {
		return done, err
	}
	if !s.follows(now) {
		return recountEverything(ctx, tx, now, s)
	}
	end := now
	if ahead := now.Sub(s.AsOf); ahead > countStep {
		end, done.More = s.AsOf.Add(countStep), true
	} else if ahead < -countStep {
		end, done.More = s.AsOf.Add(-countStep), true
	}
	p, taken, err := takePending(ctx, tx, batch)
	if err != nil {
		return done, err
	}
	if p.everything {
		return recountEverything(ctx, tx, now, s)
	}
	if taken == 0 && end.Sub(s.AsOf).Abs() < lull {
		return done, errNothing
	}
	done.Pending, done.More = taken, done.More || taken == batch
	next := s
	next.KeptFrom = later(s.KeptFrom, end.Add(-LongestWindow-kept))
	w, err := fold(ctx, tx, p, next, end)
	if err != nil {
		return done, err
	}
	if taken == 0 && w.empty() && !done.More && end.Sub(s.AsOf).Abs() < idle {
		return done, errNothing
	}
	done.Sharers, done.Links = len(w.changed.dids)+len(w.removed.dids), w.both.len()+w.nostr.len()
	return done, w.write(ctx, tx, next, end)
}

// follows reports whether the counts can advance to a time from where they are.
func (s state) follows(now time.Time) bool {
	return s.Counted && s.MembersOnly == s.Watching && now.Sub(s.AsOf).Abs() <= countJump && !now.Add(-LongestWindow).Before(s.KeptFrom)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// takePending deletes at most limit rows of pending_counts and returns what they ask for.
func takePending(ctx context.Context, tx pgx.Tx, limit int) (pending, int, error) {
	const sql = `
DELETE FROM pending_counts WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM pending_counts AS p LIMIT $1))
RETURNING ` + pendingColumns
	rows, err := tx.Query(ctx, sql, limit)
	if err != nil {
		return pending{}, 0, fmt.Errorf("take the pending rows: %w", err)
	}
	return distinct(rows)
}

// fold computes what a step writes: the pending changes, and the rows of sharers that cross the end
// of a window between s.AsOf and end.
func fold(ctx context.Context, tx pgx.Tx, p pending, s state, end time.Time) (*written, error) {
	// Old votes are read again.
	if err := p.addOldVotes(ctx, tx, s.KeptFrom); err != nil {
		return nil, err
	}
	c, err := readChangesAndVotes(ctx, tx, p, s)
	if err != nil {
		return nil, err
	}
	gone, err := readGone(ctx, tx, s.KeptFrom, c)
	if err != nil {
		return nil, err
	}
	leaving := make([]sharing, len(gone))
	for i := range gone {
		leaving[i] = gone[i].sharing
	}
	w := &written{links: c.links()}
	if err := w.tally(ctx, tx, s, end, c, leaving); err != nil {
		return nil, err
	}
	if err := w.choose(ctx, tx, c, gone, p.whole()); err != nil {
		return nil, err
	}
	for k, change := range c {
		switch {
		case change.truth.equal(change.folded):
		case change.truth == times{}:
			w.removed.add(k)
		default:
			w.changed.add(k, change.truth)
		}
	}
	for _, k := range leaving {
		w.removed.add(k)
	}
	return w, nil
}

// tally computes the counts that change: those of everyone, and those of Nostr accounts.
func (w *written) tally(ctx context.Context, tx pgx.Tx, s state, end time.Time, c changes, leaving []sharing) error {
	var crossings []crossing
	q := &pgx.Batch{}
	queueCrossings(q, BothNetworks, s.AsOf, end, []int{0, 1, 2, 3, 4, 5}, unlimited, &crossings)
	if err := send(ctx, tx, q); err != nil {
		return err
	}
	all, err := tallies(ctx, tx, BothNetworks, s, end, c, crossings, leaving)
	if err != nil {
		return err
	}
	for link, t := range all {
		w.wanted.add(link, t.now.total)
	}
	w.both.add(all)
	other := func(did string) bool { return !Nostr.includes(did) }
	crossings = slices.DeleteFunc(crossings, func(x crossing) bool { return other(x.did) })
	leaving = slices.DeleteFunc(slices.Clone(leaving), func(k sharing) bool { return other(k.did) })
	all, err = tallies(ctx, tx, Nostr, s, end, Nostr.leaveOutChanges(c), crossings, leaving)
	w.nostr.add(all)
	return err
}

const unlimited = 1 << 30

// readGone reads the rows of sharers that no window will contain again. It skips rows that change,
// because a change deletes them.
func readGone(ctx context.Context, tx pgx.Tx, keptFrom time.Time, c changes) ([]ballot, error) {
	var gone []ballot
	var k sharing
	var title, url nullVote
	err := schema.Each(ctx, tx, "read the old sharers", slices.Concat([]any{&k.link, &k.did}, title.targets(), url.targets()), func() error {
		if _, ok := c[k]; !ok {
			gone = append(gone, ballot{sharing: k, folded: votes{title.vote(), url.vote()}})
		}
		return nil
	}, `
SELECT link_id, did, title_claim, title_at, title_key, url_claim, url_at, url_key FROM sharers WHERE at <= $1
ORDER BY at LIMIT $2`, keptFrom, unlimited)
	if err != nil {
		return nil, err
	}
	return gone, nil
}

func (t tally) equal(other tally) bool {
	return t.total == other.total && t.in == other.in && t.last.Equal(other.last)
}

// written is what a step writes, as columns.
type written struct {
	changed sharerColumns
	removed sharingColumns
	both    countColumns
	nostr   countColumns

	sums     sumColumns
	doubtful doubtful
	unvoted  claimedColumns
	elected  []int64 // links whose headlines may change
	wanted   wantedColumns
	links    []int64 // all links with pending changes
}

func (w *written) empty() bool {
	return len(w.changed.dids)+len(w.removed.dids)+w.both.len()+w.nostr.len()+len(w.sums.claims)+len(w.unvoted.claims)+len(w.links) == 0
}

// write writes everything in one round trip, and then finds the titles that are or were walls.
func (w *written) write(ctx context.Context, tx pgx.Tx, s state, end time.Time) error {
	const change = `
INSERT INTO sharers (did, link_id, at, post_at, quote_at, repost_at, title_claim, title_at, title_key, url_claim, url_at, url_key)
SELECT c.did, c.link_id, greatest(c.post_at, c.quote_at, c.repost_at), c.post_at, c.quote_at, c.repost_at, c.title_claim,
    c.title_at, c.title_key, c.url_claim, c.url_at, c.url_key
FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::bigint[], $7::timestamptz[],
    $8::text[], $9::bigint[], $10::timestamptz[], $11::text[])
     AS c (did, link_id, post_at, quote_at, repost_at, title_claim, title_at, title_key, url_claim, url_at, url_key)
ON CONFLICT (did, link_id) DO UPDATE
SET at = excluded.at, post_at = excluded.post_at, quote_at = excluded.quote_at, repost_at = excluded.repost_at,
    title_claim = excluded.title_claim,
    title_at = excluded.title_at, title_key = excluded.title_key, url_claim = excluded.url_claim, url_at = excluded.url_at,
        url_key = excluded.url_key`
	const remove = `
DELETE FROM sharers AS s
USING unnest($1::text[], $2::bigint[]) AS r (did, link_id)
WHERE s.did = r.did AND s.link_id = r.link_id`
	q := &pgx.Batch{}
	q.Queue(`UPDATE count_state SET as_of = $1, kept_from = $2, counted = now()`, end, s.KeptFrom)
	if c := w.changed; len(c.dids) > 0 {
		q.Queue(change, c.dids, c.links, c.post, c.quote, c.repost, c.title.claims, c.title.at, c.title.keys, c.url.claims, c.url.at, c.url.keys)
	}
	if c := w.removed; len(c.dids) > 0 {
		q.Queue(remove, c.dids, c.links)
	}
	w.both.queue(q, BothNetworks.counts())
	w.nostr.queue(q, Nostr.counts())
	w.queueVotes(q)
	w.wanted.addTitled(w.doubtful.links)
	queueCards(q, w.wanted)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("write the counts: %w", err)
	}
	return w.doubtful.judge(ctx, tx)
}

// recountEverything writes what differs from the shares. It is for the first count, a jump of the
// clock, the first watch and the last one, and an operator's request.
func recountEverything(ctx context.Context, tx pgx.Tx, now time.Time, s state) (Counted, error) {
	from := now.Add(-LongestWindow - kept)
	q := &pgx.Batch{}
	// Without statistics, the planner would compare every row with every other.
	q.Queue(`SELECT set_config('enable_seqscan', 'on', true), set_config('enable_nestloop', 'off', true)`)
	q.Queue(`
INSERT INTO count_state (as_of, kept_from, members_only) VALUES ($1, $2, $3)
ON CONFLICT (one) DO UPDATE SET as_of = excluded.as_of, kept_from = excluded.kept_from, members_only = excluded.members_only,
    counted = now()`, now, from, s.Watching)
	q.Queue(`DELETE FROM pending_counts`)
	q.Queue(`
WITH `+everySharerAndVote(`true`)+`, stale AS (
    DELETE FROM sharers AS f
    WHERE NOT EXISTS (SELECT FROM truth AS t WHERE t.did = f.did AND t.link_id = f.link_id)
), other AS (
    UPDATE sharers AS f
    SET at = t.at, post_at = t.post_at, quote_at = t.quote_at, repost_at = t.repost_at, title_claim = t.title_claim, title_at = t.title_at,
        title_key = t.title_key, url_claim = t.url_claim, url_at = t.url_at, url_key = t.url_key
    FROM truth AS t
    WHERE t.did = f.did AND t.link_id = f.link_id
      AND (f.at, f.post_at, f.quote_at, f.repost_at, f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key)
          IS DISTINCT FROM (t.at, t.post_at, t.quote_at, t.repost_at, t.title_claim, t.title_at, t.title_key, t.url_claim,
              t.url_at, t.url_key)
)
INSERT INTO sharers (did, link_id, at, post_at, quote_at, repost_at, title_claim, title_at, title_key, url_claim, url_at, url_key)
SELECT t.did, t.link_id, t.at, t.post_at, t.quote_at, t.repost_at, t.title_claim, t.title_at, t.title_key, t.url_claim, t.url_at, t.url_key
FROM truth AS t
WHERE NOT EXISTS (SELECT FROM sharers AS f WHERE f.did = t.did AND f.link_id = t.link_id)
ORDER BY t.did, t.link_id`, from)
	queueEveryCount(q, BothNetworks, now)
	queueEveryCount(q, Nostr, now)
	queueEveryVote(q)
	queueEveryCard(q)
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return Counted{}, fmt.Errorf("count everything: %w", err)
	}
	return Counted{Everything: true, More: true}, nil
}

// queueEveryCount queues the statements that write the counts that differ from sharers.
func queueEveryCount(q *pgx.Batch, network Network, now time.Time) {
	q.Queue(`
WITH truth AS (`+everyCount(network.has("f.did"))+`), stale AS (
    DELETE FROM `+network.counts()+` AS c
    WHERE NOT EXISTS (SELECT FROM truth AS t WHERE t.link_id = c.link_id)
), other AS (
    UPDATE `+network.counts()+` AS c
    SET sharers = t.sharers, last_at = t.last_at,
        in_1h = t.in_1h, in_3h = t.in_3h, in_6h = t.in_6h, in_12h = t.in_12h, in_24h = t.in_24h, in_7d = t.in_7d
    FROM truth AS t
    WHERE t.link_id = c.link_id
      AND (c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at)
          IS DISTINCT FROM (t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at)
)
INSERT INTO `+network.counts()+` (link_id, sharers, in_1h, in_3h, in_6h, in_12h, in_24h, in_7d, last_at)
SELECT t.link_id, t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at
FROM truth AS t
WHERE NOT EXISTS (SELECT FROM `+network.counts()+` AS c WHERE c.link_id = t.link_id)`, now)
}

// everySharer returns the rows that sharers should have for some shares s: $1 is its kept_from.
func everySharer(of string) string {
	return `
    SELECT s.did, s.link_id,
           max(s.shared_at)                                 AS at,
           max(s.shared_at) FILTER (WHERE s.how = 'post')   AS post_at,
           max(s.shared_at) FILTER (WHERE s.how = 'quote')  AS quote_at,
           max(s.shared_at) FILTER (WHERE s.how = 'repost') AS repost_at
    FROM judged_shares AS s
    WHERE s.shared_at > $1 AND ` + of + ` AND s.why IS NULL
    GROUP BY s.did, s.link_id`
}

// everyCount returns the rows that a table of counts should have at $1 for some rows f of sharers.
func everyCount(of string) string {
	return `
    SELECT f.link_id                                                                      AS link_id,
           count(*)::int                                                                  AS sharers,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '1 hour'))::int      AS in_1h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '3 hours'))::int     AS in_3h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '6 hours'))::int     AS in_6h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '12 hours'))::int    AS in_12h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '24 hours'))::int    AS in_24h,
           (count(*) FILTER (WHERE f.at > $1::timestamptz - interval '168 hours'))::int   AS in_7d,
           max(f.at)                                                                      AS last_at
    FROM sharers AS f
    WHERE ` + of + `
    GROUP BY f.link_id
    HAVING count(*) >= 2`
}

// CountEverything asks the counter to count everything again.
func CountEverything(ctx context.Context, db schema.DB) error {
	return schema.Exec(ctx, db, "ask for a recount", `INSERT INTO pending_counts DEFAULT VALUES`)
}
