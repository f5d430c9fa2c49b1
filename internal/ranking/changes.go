package ranking

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// state is the row of count_state, and the current state to compare it with.
type state struct {
	AsOf        time.Time
	KeptFrom    time.Time
	MembersOnly bool // only members of watches were counted
	Watching    bool // there are watches now
	Counted     bool // the row exists
}

// selectState reads count_state. Without a row, nothing has been counted yet.
const selectState = `
SELECT coalesce(s.as_of, 'epoch')      AS as_of,
       coalesce(s.kept_from, 'epoch')  AS kept_from,
       coalesce(s.members_only, false) AS members_only,
       EXISTS (SELECT FROM watches)    AS watching,
       s.one IS NOT NULL               AS counted
FROM (VALUES (true)) AS one (one)
LEFT JOIN count_state AS s ON s.one = one.one`

func readState(ctx context.Context, db schema.DB) (state, error) {
	return schema.One(ctx, db, "read the state of the counts", pgx.RowToStructByName[state], selectState)
}

// sharing identifies an account that shares a link.
type sharing struct {
	link int64
	did  string
}

// times are the latest shares of a link by an account, one per way; zero: none. The votes are those
// that readChangesAndVotes reads.
type times struct {
	post, quote, repost time.Time
	votes               votes
}

// at returns the latest time.
func (t times) at() time.Time {
	latest := t.post
	for _, other := range []time.Time{t.quote, t.repost} {
		if other.After(latest) {
			latest = other
		}
	}
	return latest
}

func (t times) equal(other times) bool {
	return t.post.Equal(other.post) && t.quote.Equal(other.quote) && t.repost.Equal(other.repost) && t.votes.equal(other.votes)
}

// change is a row of sharers that may be wrong: its current content, and the content by the shares.
type change struct{ folded, truth times }

// changes are the rows of sharers that may be wrong.
type changes map[sharing]change

// pending holds the links and accounts that the rows of pending_counts mark for counting.
type pending struct {
	links        pgtype.FlatArray[*int64]
	dids         pgtype.FlatArray[*string]
	subjectDIDs  pgtype.FlatArray[*string]
	subjectRkeys pgtype.FlatArray[*string]
	everything   bool
}

func (p *pending) add(link *int64, did, subjectDID, subjectRkey *string) {
	p.links, p.dids = append(p.links, link), append(p.dids, did)
	p.subjectDIDs, p.subjectRkeys = append(p.subjectDIDs, subjectDID), append(p.subjectRkeys, subjectRkey)
}

// whole returns the links that are counted as a whole.
func (p *pending) whole() (links []int64) {
	for i, link := range p.links {
		if link != nil && p.dids[i] == nil {
			links = append(links, *link)
		}
	}
	return links
}

// pendingColumns are the columns of pending_counts that distinct reads.
const pendingColumns = `link_id, did, subject_did, subject_rkey`

// distinct reads the rows without duplicates.
func distinct(rows pgx.Rows) (p pending, taken int, err error) {
	type row struct {
		link                         int64
		did, subjectDID, subjectRkey string
	}
	seen := map[row]struct{}{}
	var link *int64
	var did, subjectDID, subjectRkey *string
	_, err = pgx.ForEachRow(rows, []any{&link, &did, &subjectDID, &subjectRkey}, func() error {
		taken++
		if link == nil && did == nil && subjectDID == nil {
			p.everything = true
			return nil
		}
		r := row{orZero(link), orZero(did), orZero(subjectDID), orZero(subjectRkey)}
		if _, ok := seen[r]; !ok {
			seen[r] = struct{}{}
			p.add(link, did, subjectDID, subjectRkey)
		}
		return nil
	})
	return p, taken, err
}

// orZero returns what p points to; nil: the zero value.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// eligible is a condition: the account did counts. A share counts if it has no why in judged_shares.
func eligible(did string) string {
	return ` (SELECT u.why IS NULL FROM why_uncounted(` + did + `) AS u) `
}

// sharesOfPair selects the shares of the link p.link_id by the account p.did. OFFSET keeps a
// condition on their date outside: with it, the planner would rather read all shares of the link.
const sharesOfPair = `(SELECT s.* FROM judged_shares AS s WHERE s.did = p.did AND s.link_id = p.link_id OFFSET 0)`

// readChangesAndVotes reads the rows of sharers that pending asks for, and their correct contents.
func readChangesAndVotes(ctx context.Context, db database, p pending, s state) (changes, error) {
	read, err := readChanges(ctx, db, p, s)
	if err != nil {
		return nil, err
	}
	return read.changes, read.changes.addVotes(ctx, db, read.posts)
}

// readChanges reads the same without the correct votes.
func readChanges(ctx context.Context, db schema.Batcher, p pending, s state) (read changesAndPosts, err error) {
	q := &pgx.Batch{}
	read.queue(q, p, s, unlimited)
	return read, send(ctx, db, q)
}

// changesAndPosts holds changes, and the posts that determine their votes. addVotes adds those
// votes.
type changesAndPosts struct {
	changes changes
	posts   []ownPost
}

// queue queues the query that reads at most limit changes.
func (c *changesAndPosts) queue(q *pgx.Batch, p pending, s state, limit int) {
	c.changes = make(changes, len(p.links))
	if len(p.links) == 0 {
		return
	}
	q.Queue(selectChanges, p.links, p.dids, s.KeptFrom, limit, p.subjectDIDs, p.subjectRkeys).Query(func(rows pgx.Rows) error {
		if err := c.collect(rows); err != nil {
			return fmt.Errorf("read the pending shares: %w", err)
		}
		return nil
	})
}

func (c *changesAndPosts) collect(rows pgx.Rows) error {
	var k sharing
	var found [6]*time.Time
	var title, url nullVote
	var claims []int64
	var named []bool
	var dates []time.Time
	var collections, rkeys []string
	targets := slices.Concat([]any{
		&k.link, &k.did, &found[0], &found[1], &found[2], &found[3], &found[4], &found[5],
	}, title.targets(), url.targets(), []any{&claims, &named, &dates, &collections, &rkeys})
	_, err := pgx.ForEachRow(rows, targets, func() error {
		one := change{timesOf(found[:3]), timesOf(found[3:])}
		one.folded.votes = votes{title.vote(), url.vote()}
		c.changes[k] = one
		for i := range claims {
			c.posts = append(c.posts, ownPost{k, claims[i], named[i], dates[i], collections[i], rkeys[i]})
		}
		return nil
	})
	return err
}

// ofOwn filters the shares s of posts that make a claim about the link.
const ofOwn = `FILTER (WHERE s.subject_did IS NULL AND s.claim_id IS NOT NULL)`

// selectChanges reads the requested rows f of sharers, and their correct contents t, with the posts
// that determine the votes.
const selectChanges = `
WITH asked AS (
    SELECT a.* FROM unnest($1::bigint[], $2::text[], $5::text[], $6::text[]) AS a (link_id, did, subject_did, subject_rkey)
), pairs AS (
    SELECT a.link_id, a.did FROM asked AS a WHERE a.link_id IS NOT NULL AND a.did IS NOT NULL
    UNION
    SELECT s.link_id, a.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT s.link_id FROM sharers AS s WHERE s.did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT s.link_id, a.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id FROM shares AS s WHERE s.did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT a.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT s.did FROM sharers AS s WHERE s.link_id = a.link_id LIMIT $4) AS s
    WHERE a.did IS NULL AND a.link_id IS NOT NULL
    UNION
    SELECT a.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.did FROM shares AS s WHERE s.link_id = a.link_id LIMIT $4) AS s
    WHERE a.did IS NULL AND a.link_id IS NOT NULL
    UNION
    SELECT s.link_id, s.did FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id, s.did FROM shares AS s WHERE s.subject_did = a.did LIMIT $4) AS s WHERE a.link_id IS NULL
    UNION
    SELECT s.link_id, s.did
    FROM asked AS a
    CROSS JOIN LATERAL (SELECT DISTINCT s.link_id, s.did FROM shares AS s
        WHERE s.subject_did = a.subject_did AND s.subject_rkey = a.subject_rkey LIMIT $4) AS s
    WHERE a.subject_did IS NOT NULL
    UNION
    SELECT s.link_id, c.did
    FROM asked AS a
    CROSS JOIN LATERAL (SELECT c.did, c.collection, c.rkey FROM copies AS c
        WHERE c.of_did = a.subject_did AND c.of_rkey = a.subject_rkey LIMIT $4) AS c
    CROSS JOIN LATERAL (SELECT s.link_id FROM shares AS s
        WHERE s.did = c.did AND s.collection = c.collection AND s.rkey = c.rkey LIMIT $4) AS s
    WHERE a.subject_did IS NOT NULL
    LIMIT $4
)
SELECT p.link_id, p.did, f.post_at, f.quote_at, f.repost_at, t.post_at, t.quote_at, t.repost_at,
       f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key, t.claims, t.named, t.dates, t.collections, t.rkeys
FROM pairs AS p
LEFT JOIN LATERAL (
    SELECT f.* FROM sharers AS f WHERE f.did = p.did AND f.link_id = p.link_id LIMIT 1
) AS f ON true
LEFT JOIN LATERAL (
    SELECT max(s.shared_at) FILTER (WHERE s.how = 'post')   AS post_at,
           max(s.shared_at) FILTER (WHERE s.how = 'quote')  AS quote_at,
           max(s.shared_at) FILTER (WHERE s.how = 'repost') AS repost_at,
           array_agg(s.claim_id) ` + ofOwn + ` AS claims, array_agg(s.named_id = s.link_id) ` + ofOwn + ` AS named,
               array_agg(s.shared_at) ` + ofOwn + ` AS dates,
           array_agg(s.collection) ` + ofOwn + ` AS collections, array_agg(s.rkey) ` + ofOwn + ` AS rkeys
    FROM ` + sharesOfPair + ` AS s
    WHERE s.shared_at > $3 AND s.why IS NULL
) AS t ON true`

func timesOf(at []*time.Time) (t times) {
	for i, to := range []*time.Time{&t.post, &t.quote, &t.repost} {
		*to = orZero(at[i])
	}
	return t
}

// crossing is a row of sharers that is in a window at one time and not at another.
type crossing struct {
	sharing
	window int
}

// queueCrossings queues the query that reads the rows of sharers of a network that leave one of the
// windows, or enter it, between two times. It reads at most limit rows.
func queueCrossings(q *pgx.Batch, network Network, from, to time.Time, of []int, limit int, found *[]crossing) {
	if to.Before(from) {
		from, to = to, from
	}
	var window []int
	var after, until pgtype.FlatArray[time.Time]
	for _, i := range of {
		length := Windows()[i].Length
		window, after, until = append(window, i), append(after, from.Add(-length)), append(until, to.Add(-length))
	}
	sql := `
SELECT w.i, s.link_id, s.did
FROM unnest($1::int[], $2::timestamptz[], $3::timestamptz[]) AS w (i, after, until)
CROSS JOIN LATERAL (SELECT s.link_id, s.did FROM sharers AS s
    WHERE s.at > w.after AND s.at <= w.until AND` + network.has("s.did") + `ORDER BY s.at LIMIT $4) AS s
LIMIT $4`
	schema.QueueAll(q, "read who leaves the windows", func(row pgx.CollectableRow) (c crossing, err error) {
		return c, row.Scan(&c.window, &c.link, &c.did)
	}, found, sql, window, after, until, limit)
}

// tally holds the counts of one link.
type tally struct {
	total int       // rows in sharers
	in    perWindow // sharers in each window
	last  time.Time // the latest share
}

// corrected holds the tally of a link as stored, and the tally at another time and with the
// changes.
type corrected struct {
	old, now tally
	row      bool // the table has a row for the link
}

// tallies returns the tallies at end of the links that changes and crossings affect. gone are the
// rows of sharers that the caller deletes. All of these are accounts of the network.
func tallies(
	ctx context.Context, db schema.DB, network Network, s state, end time.Time, c changes, crossings []crossing,
	gone []sharing,
) (map[int64]*corrected, error) {
	touched := make(map[int64]int, len(c)+len(crossings)) // how many of the latest rows of sharers to read, besides the first
	for k, change := range c {
		touched[k.link] += 0
		if change.folded != (times{}) {
			touched[k.link]++
		}
	}
	for _, x := range crossings {
		touched[x.link] += 0
	}
	for _, k := range gone {
		touched[k.link]++
	}
	all, err := readTallies(ctx, db, network, touched, s, c, gone)
	if err != nil {
		return nil, err
	}
	sign := -1
	if end.Before(s.AsOf) {
		sign = 1
	}
	for _, x := range crossings {
		if _, ok := c[x.sharing]; !ok {
			all[x.link].now.in[x.window] += sign
		}
	}
	for k, change := range c {
		t := &all[k.link].now
		if at := change.folded.at(); !at.IsZero() {
			t.total--
			t.in.add(counted(at, s.AsOf), -1)
		}
		if at := change.truth.at(); !at.IsZero() {
			t.total++
			t.in.add(counted(at, end), 1)
			if at.After(t.last) {
				t.last = at
			}
		}
	}
	for _, k := range gone {
		all[k.link].now.total--
	}
	return all, nil
}

// readTallies reads the tallies at s.AsOf. The last share in corrected.now ignores the
// rows of sharers that change or are gone.
func readTallies(
	ctx context.Context, db schema.DB, network Network, touched map[int64]int, s state, c changes, gone []sharing,
) (map[int64]*corrected, error) {
	all := make(map[int64]*corrected, len(touched))
	if len(touched) == 0 {
		return all, nil
	}
	// Only links with fewer than two rows in sharers have no row of counts. Then the one row, if
	// any, is the tally.
	sql := `
SELECT k.link_id, c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at, f.did, f.at
FROM unnest($1::bigint[], $2::int[]) AS k (link_id, n)
LEFT JOIN LATERAL (SELECT c.* FROM ` + network.counts() + ` AS c WHERE c.link_id = k.link_id LIMIT 1) AS c ON true
LEFT JOIN LATERAL (
    SELECT f.did, f.at FROM sharers AS f WHERE f.link_id = k.link_id AND` + network.has("f.did") + `
    ORDER BY f.at DESC
    LIMIT CASE WHEN k.n > 0 OR c.link_id IS NULL THEN k.n + 1 ELSE 0 END
) AS f ON true`
	links := pgtype.FlatArray[int64](slices.Sorted(maps.Keys(touched))) // in the order of the index
	n := make(pgtype.FlatArray[int32], len(links))
	for i, link := range links {
		n[i] = int32(touched[link])
	}
	leaving := make(map[sharing]struct{}, len(gone))
	for _, k := range gone {
		leaving[k] = struct{}{}
	}
	var k sharing
	var did *string
	var sharers, h1, h3, h6, h12, h24, d7 *int
	var last, at *time.Time
	err := schema.Each(ctx, db, "read the counts", []any{&k.link, &sharers, &h1, &h3, &h6, &h12, &h24, &d7, &last, &did, &at}, func() error {
		t := all[k.link]
		if t == nil {
			t = &corrected{row: sharers != nil}
			if t.row {
				t.old = tally{*sharers, perWindow{*h1, *h3, *h6, *h12, *h24, *d7}, *last}
				if touched[k.link] == 0 {
					t.now.last = *last
				}
			}
			all[k.link] = t
		}
		if did == nil {
			return nil
		}
		if !t.row {
			t.old.total++
			t.old.in.add(counted(*at, s.AsOf), 1)
			t.old.last = *at
		}
		k.did = *did
		_, changes := c[k]
		_, leaves := leaving[k]
		if !changes && !leaves && at.After(t.now.last) {
			t.now.last = *at
		}
		return nil
	}, sql, links, n)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		t.now.total, t.now.in = t.old.total, t.old.in
	}
	return all, nil
}
