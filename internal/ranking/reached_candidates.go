package ranking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

const (
	reachPart  = 500     // links of a list that are checked together
	maxScanned = 500_000 // sharers that a scan passes; links that reached the minimum before these are not found
)

// nextLinks returns further links that may have the minimum. All links that it has not
// returned were last shared at or before after. more is false at the end.
type nextLinks func(ctx context.Context) (links []int64, after time.Time, more bool, err error)

// sharedLink is a link and its latest share.
type sharedLink struct {
	ID   int64
	Last time.Time
}

// candidates returns the links that may have the minimum of sharers, the latest shared
// first. A link reaches the minimum at the moment of a share.
func (r *ReachReader) candidates(ctx context.Context) (nextLinks, error) {
	counted, err := r.countable(), error(nil)
	if counted {
		if counted, err = r.readPending(ctx, 0); err != nil {
			return nil, err
		}
	}
	all, listed, err := r.list(ctx, counted)
	if err != nil {
		return nil, err
	}
	pending := r.unread.links() // not counted yet
	if listed {
		return inParts(all, pending), nil
	}
	return r.scan(counted, pending), nil
}

// list lists all candidates if they are few.
func (r *ReachReader) list(ctx context.Context, counted bool) (all []sharedLink, ok bool, err error) {
	if links := r.listed(); links != nil && len(links) < 5*r.few {
		for _, id := range links {
			all = append(all, sharedLink{id, r.end}) // its latest share is unknown
		}
		return all, true, nil
	}
	if r.q.Site != "" {
		const sql = `SELECT l.id, $3::timestamptz FROM links AS l WHERE l.site = $1 LIMIT $2`
		all, err = schema.All(ctx, r.tx, "list the links of the site", pgx.RowToStructByPos[sharedLink], sql, r.q.Site, r.few, r.end)
		if err != nil || len(all) < r.few {
			return all, true, err
		}
	}
	if r.watches != nil {
		all, err = r.sharedByMembers(ctx, counted)
		return all, true, err
	}
	if !counted || r.q.least() < 2 { // links with one sharer have no counts
		return nil, false, nil
	}
	sql := `SELECT c.link_id, c.last_at FROM ` + r.q.Network.counts() + ` AS c WHERE c.level_7d >= ` +
		levelOf("$1") + ` AND c.in_7d >= $1 LIMIT $2`
	all, err = schema.All(ctx, r.tx, "list the links with the minimum", pgx.RowToStructByPos[sharedLink], sql, r.q.least(), r.few)
	return all, len(all) < r.few, err
}

// sharedByMembers lists the links that enough members of the watches share.
func (r *ReachReader) sharedByMembers(ctx context.Context, counted bool) (all []sharedLink, err error) {
	q := &pgx.Batch{}
	r.queueMembers(q)
	if err := send(ctx, r.tx, q); err != nil {
		return nil, err
	}
	rows, err := r.sharedPairs(ctx, r.q.Network.leaveOutDIDs(r.members), counted)
	if err != nil {
		return nil, err
	}
	type group struct {
		sharers int
		last    time.Time
	}
	groups := make(map[int64]group)
	for _, s := range rows {
		g := groups[s.link]
		groups[s.link] = group{g.sharers + 1, later(g.last, s.at)}
	}
	for id, g := range groups {
		if g.sharers >= r.q.least() {
			all = append(all, sharedLink{id, g.last})
		}
	}
	return all, nil
}

// sharedPairs returns one row for each link that a member shares.
func (r *ReachReader) sharedPairs(ctx context.Context, dids []string, counted bool) ([]pair, error) {
	if counted {
		var rows []pair
		q := &pgx.Batch{}
		r.queueSharedBy(q, dids, &rows)
		return rows, send(ctx, r.tx, q)
	}
	const sql = `
SELECT m.n, s.link_id, s.at
FROM unnest($1::text[]) WITH ORDINALITY AS m (did, n)
CROSS JOIN LATERAL (SELECT s.link_id, max(s.shared_at) AS at FROM shares AS s WHERE s.did = m.did AND s.shared_at > $2
    GROUP BY s.link_id) AS s`
	return schema.All(ctx, r.tx, "read what the members share", func(row pgx.CollectableRow) (s pair, err error) {
		var n int64
		err = row.Scan(&n, &s.link, &s.at)
		s.did = dids[n-1]
		return s, err
	}, sql, dids, r.from())
}

// inParts returns the links of a list, after those that are pending.
func inParts(all []sharedLink, pending []int64) nextLinks {
	slices.SortFunc(all, func(a, b sharedLink) int { return b.Last.Compare(a.Last) })
	return func(context.Context) (links []int64, after time.Time, more bool, err error) {
		part := all[:min(reachPart, len(all))]
		all, links, pending = all[len(part):], pending, nil
		for _, c := range part {
			links = append(links, c.ID)
		}
		if len(all) == 0 {
			return links, after, false, nil
		}
		return links, all[0].Last, true, nil
	}
}

// scan reads the shares of everyone, the latest first. Among counted links, it returns
// only those with the minimum.
func (r *ReachReader) scan(counted bool, pending []int64) nextLinks {
	from, at, enough := `shares AS s`, `s.shared_at`, ``
	if counted {
		from, at = `sharers AS s`, `s.at`
		enough = ` AND ($3 < 2 OR EXISTS (SELECT FROM ` + r.q.Network.counts() + ` AS c WHERE c.link_id = p.link_id AND c.in_7d >= $3))`
	}
	// All shares of the last moment are read: a part may end between two of them.
	sql := `
WITH part AS (
    SELECT s.link_id, ` + at + ` AS at FROM ` + from + ` WHERE ` + at + ` <= $1 AND` + r.q.Network.scanned().has("s.did") + `ORDER BY ` +
		at + ` DESC LIMIT $2
)
SELECT (SELECT min(at) FROM part), (SELECT count(*) FROM part), ARRAY(
    SELECT DISTINCT p.link_id FROM part AS p
    WHERE $3::int IS NOT NULL AND ($4 = '' OR (SELECT l.site FROM links AS l WHERE l.id = p.link_id) = $4)` + enough + `
)`
	until, size, passed := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 5*r.few, 0
	return func(ctx context.Context) (links []int64, after time.Time, more bool, err error) {
		var n int
		var last *time.Time
		if err := r.tx.QueryRow(ctx, sql, until, size, r.q.least(), r.q.Site).Scan(&last, &n, &links); err != nil {
			return nil, after, false, fmt.Errorf("scan the latest shares: %w", err)
		}
		links, pending = append(links, pending...), nil
		passed += n
		if n < size || passed >= maxScanned || last.Before(r.from()) {
			return links, after, false, nil
		}
		if !last.Before(until) { // all of one moment
			size = maxScanned
		}
		until, size = *last, min(2*size, maxScanned)
		return links, until, true, nil
	}
}
