package ranking

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// reached is a link, and when it reached the minimum of sharers.
type reached struct {
	id int64
	at time.Time
}

func sortReached(all []reached) {
	slices.SortFunc(all, func(a, b reached) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.id, a.id)) })
}

// known returns the newest links that the feed has published and that still belong to it,
// with the dates under which they were published.
func (r *feedReader) known(ctx context.Context) (found []reached, err error) {
	all := make([]reached, 0, len(r.remembered))
	for id, p := range r.remembered {
		all = append(all, reached{id, p.At})
	}
	sortReached(all)
	for size := r.q.Limit; len(all) > 0 && len(found) < r.q.Limit; all = all[min(size, len(all)):] {
		part := all[:min(size, len(all))]
		ids := make([]int64, len(part))
		for i := range part {
			ids[i] = part[i].id
		}
		reach, err := r.reach(ctx, ids)
		if err != nil {
			return nil, err
		}
		still := idsOf(reach)
		for _, link := range part {
			if slices.Contains(still, link.id) {
				found = append(found, link)
			}
		}
	}
	return found[:min(len(found), r.q.Limit)], nil
}

// fresh returns the newest links that the feed has not published yet.
func (r *feedReader) fresh(ctx context.Context) (found []reached, err error) {
	next, err := r.candidates(ctx)
	if err != nil {
		return nil, err
	}
	seen := make(map[int64]bool)
	for {
		links, after, more, err := next(ctx)
		if err != nil {
			return nil, err
		}
		links = slices.DeleteFunc(links, func(id int64) bool {
			_, published := r.remembered[id]
			skip := seen[id] || published
			seen[id] = true
			return skip
		})
		part, err := r.reach(ctx, links)
		if err != nil {
			return nil, err
		}
		if part, err = r.leaveOutKept(ctx, part); err != nil {
			return nil, err
		}
		found = append(found, part...)
		sortReached(found)
		found = found[:min(len(found), r.q.Limit)]
		if !more || len(found) == r.q.Limit && found[r.q.Limit-1].at.After(after) {
			return found, nil
		}
	}
}

// leaveOutKept removes links that had the minimum before some of their shares expired.
// This is known only for the shares of everyone.
func (r *feedReader) leaveOutKept(ctx context.Context, of []reached) ([]reached, error) {
	if len(of) == 0 || r.watches != nil || r.q.ways() != nil || r.q.Network != BothNetworks {
		return of, nil
	}
	const sql = `SELECT l.id FROM links AS l WHERE l.id = ANY ($1) AND l.kept_sharers >= $2`
	before, err := schema.All(ctx, r.tx, "find links that were published before", pgx.RowTo[int64], sql, idsOf(of), r.q.least())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(of, func(l reached) bool { return slices.Contains(before, l.id) }), nil
}

func idsOf(all []reached) []int64 {
	ids := make([]int64, len(all))
	for i := range all {
		ids[i] = all[i].id
	}
	return ids
}

// someShares is how many of a link's earliest shares are read for each sharer that it
// needs. Most accounts share a link once.
const someShares = 4

// reach returns the links that pass the filters and have the minimum of sharers, and when
// they reached it: the time of the first share by the last of the required accounts.
func (r *feedReader) reach(ctx context.Context, links []int64) (all []reached, err error) {
	entries := make([]entry, len(links))
	for i, id := range links {
		entries[i] = entry{ID: id}
	}
	links = links[:0:0]
	for _, e := range r.leaveOut(entries) {
		links = append(links, e.ID)
	}
	for limit := someShares * (r.q.least() + 4); len(links) > 0; limit = math.MaxInt32 {
		part, undecided, err := r.reachWithin(ctx, links, limit)
		if err != nil {
			return nil, err
		}
		all, links = append(all, part...), undecided
	}
	return r.filter(ctx, all)
}

// filter removes the links that the filters leave out.
func (r *feedReader) filter(ctx context.Context, of []reached) ([]reached, error) {
	entries := make([]entry, len(of))
	for i := range of {
		entries[i] = entry{ID: of[i].id}
	}
	kept, err := r.keep(ctx, entries)
	if err != nil {
		return nil, err
	}
	is := make(map[int64]bool, len(kept))
	for _, e := range kept {
		is[e.ID] = true
	}
	return slices.DeleteFunc(of, func(l reached) bool { return !is[l.id] }), nil
}

// reachWithin reads at most limit shares of each link. undecided are the links for which
// that is not enough.
func (r *feedReader) reachWithin(ctx context.Context, links []int64, limit int) (all []reached, undecided []int64, err error) {
	sql := `
SELECT k.id, f.at, coalesce(f.read, 0)
FROM unnest($1::bigint[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT (array_agg(d.at ORDER BY d.at))[$2::int] AS at, sum(d.n)::bigint AS read
    FROM (
        SELECT p.did, min(p.at) AS at, count(*) AS n
        FROM (
            SELECT s.did, s.shared_at AS at
            FROM shares AS s
            WHERE s.link_id = k.id AND s.shared_at > $7 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND` + living + `AND` + r.q.Network.has("s.did") + `AND` + eligible("s.did", "$5") + `
              AND ($6::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($6)))
            ORDER BY s.shared_at
            LIMIT $3
        ) AS p
        GROUP BY p.did
    ) AS d
) AS f`
	rows, err := r.tx.Query(ctx, sql, links, r.q.least(), limit, r.q.ways(), r.state.Watching, r.watches, r.from())
	if err != nil {
		return nil, nil, fmt.Errorf("read when links reached the minimum: %w", err)
	}
	var id, read int64
	var at *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at, &read}, func() error {
		switch {
		case at != nil:
			all = append(all, reached{id, earlier(*at, r.end)}) // clocks may be ahead
		case read >= int64(limit):
			undecided = append(undecided, id)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read when links reached the minimum: %w", err)
	}
	return all, undecided, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
