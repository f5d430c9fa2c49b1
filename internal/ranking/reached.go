package ranking

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// ReachReader reads, in one transaction, which links have reached the minimum of sharers of a query, and
// when, from the shares.
type ReachReader struct{ reader }

// Reached is a link that has the minimum.
type Reached struct {
	LinkCard
	Identity string
	At       time.Time // the date of the share with which it reached the minimum
}

// OfStoredShares returns the query for the links of all stored shares, whatever its window, its order and its page
// are. The error means that it is not a query.
func (q Query) OfStoredShares() (Query, error) {
	q.Window, q.Sort, q.After, q.Past = LongestWindow, Sharers, "", false
	if q.At.IsZero() {
		q.At = time.Now()
	}
	q.At = q.At.Truncate(time.Microsecond)
	return q, q.check()
}

// NewReachReader begins to read. It returns ErrWatch if there is no such watch.
func NewReachReader(ctx context.Context, tx pgx.Tx, q Query) (*ReachReader, error) {
	r := &ReachReader{reader{q: q, end: q.At, limits: usualLimits(), window: windows - 1}}
	return r, r.begin(ctx, tx)
}

// At returns the time of what is read.
func (r *ReachReader) At() time.Time { return r.end }

// Newest returns the newest links with the minimum, the latest first. Links that were published before
// keep their dates, which are given by the link.
func (r *ReachReader) Newest(ctx context.Context, published map[int64]time.Time) ([]Reached, error) {
	if err := r.readSearch(ctx); err != nil {
		return nil, err
	}
	if err := r.readBy(ctx); err != nil {
		return nil, err
	}
	old, err := r.stillReached(ctx, published)
	if err != nil {
		return nil, err
	}
	fresh, err := r.fresh(ctx, published)
	if err != nil {
		return nil, err
	}
	all := append(old, fresh...)
	sortReached(all)
	return r.describe(ctx, all[:min(len(all), r.q.Limit)])
}

// sortReached sorts links by when they reached the minimum of sharers, which is their Last here.
func sortReached(all []entry) {
	slices.SortFunc(all, func(a, b entry) int { return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(b.ID, a.ID)) })
}

// stillReached returns the newest links that were published and still have the minimum, with the dates under
// which they were published.
func (r *ReachReader) stillReached(ctx context.Context, published map[int64]time.Time) (found []entry, err error) {
	all := make([]entry, 0, len(published))
	for id, at := range published {
		all = append(all, entry{ID: id, Last: at})
	}
	sortReached(all)
	for size := r.q.Limit; len(all) > 0 && len(found) < r.q.Limit; all = all[min(size, len(all)):] {
		part := all[:min(size, len(all))]
		reach, err := r.reach(ctx, idsOf(part))
		if err != nil {
			return nil, err
		}
		still := idsOf(reach)
		for _, link := range part {
			if slices.Contains(still, link.ID) {
				found = append(found, link)
			}
		}
	}
	return found[:min(len(found), r.q.Limit)], nil
}

// fresh returns the newest links that were not published yet.
func (r *ReachReader) fresh(ctx context.Context, published map[int64]time.Time) (found []entry, err error) {
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
			_, before := published[id]
			skip := seen[id] || before
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
		if !more || len(found) == r.q.Limit && found[r.q.Limit-1].Last.After(after) {
			return found, nil
		}
	}
}

// leaveOutKept removes links that had the minimum before some of their shares expired.
// This is known only for the shares of everyone.
func (r *ReachReader) leaveOutKept(ctx context.Context, of []entry) ([]entry, error) {
	if len(of) == 0 || r.watches != nil || r.q.OnlyWays() != nil || r.q.Network != BothNetworks {
		return of, nil
	}
	const sql = `SELECT l.id FROM links AS l WHERE l.id = ANY ($1) AND l.kept_sharers >= $2`
	before, err := schema.All(ctx, r.tx, "find links that were published before", pgx.RowTo[int64], sql, idsOf(of), r.q.least())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(of, func(l entry) bool { return slices.Contains(before, l.ID) }), nil
}

func idsOf(all []entry) []int64 {
	ids := make([]int64, len(all))
	for i := range all {
		ids[i] = all[i].ID
	}
	return ids
}

// describe reads the cards of links.
func (r *ReachReader) describe(ctx context.Context, of []entry) ([]Reached, error) {
	const sql = `
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.identity
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
ORDER BY k.n`
	identities := make(map[int64]string, len(of))
	links, err := schema.All(ctx, r.tx, "read the links with the minimum", func(row pgx.CollectableRow) (l TrendingLink, err error) {
		var identity string
		err = row.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &identity)
		identities[l.ID] = identity
		return l, err
	}, sql, idsOf(of))
	if err != nil {
		return nil, err
	}
	if err := r.correctHeadlines(ctx, links); err != nil {
		return nil, err
	}
	at := make(map[int64]time.Time, len(of))
	for _, l := range of {
		at[l.ID] = l.Last
	}
	all := make([]Reached, len(links))
	for i, l := range links {
		all[i] = Reached{LinkCard: l.LinkCard, Identity: identities[l.ID], At: at[l.ID]}
	}
	return all, nil
}

// someShares is how many of a link's earliest shares are read for each sharer that it
// needs. Most accounts share a link once.
const someShares = 4

// reach returns the links that pass the filters and have the minimum of sharers, and when
// they reached it: the time of the first share by the last of the required accounts.
func (r *ReachReader) reach(ctx context.Context, links []int64) (all []entry, err error) {
	entries := make([]entry, len(links))
	for i, id := range links {
		entries[i] = entry{ID: id}
	}
	links = idsOf(r.leaveOut(entries))
	for limit := someShares * (r.q.least() + 4); len(links) > 0; limit = math.MaxInt32 {
		part, undecided, err := r.reachWithin(ctx, links, limit)
		if err != nil {
			return nil, err
		}
		all, links = append(all, part...), undecided
	}
	return r.keep(ctx, all)
}

// reachWithin reads at most limit shares of each link. undecided are the links for which
// that is not enough.
func (r *ReachReader) reachWithin(ctx context.Context, links []int64, limit int) (all []entry, undecided []int64, err error) {
	sql := `
SELECT k.id, f.at, coalesce(f.read, 0)
FROM unnest($1::bigint[]) AS k (id)
CROSS JOIN LATERAL (
    SELECT (array_agg(d.at ORDER BY d.at))[$2::int] AS at, sum(d.n)::bigint AS read
    FROM (
        SELECT p.did, min(p.at) AS at, count(*) AS n
        FROM (
            SELECT s.did, s.shared_at AS at
            FROM judged_shares AS s
            WHERE s.link_id = k.id AND s.shared_at > $6 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL
                AND` + r.q.Network.has("s.did") + `
              AND ($5::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($5)))
            ORDER BY s.shared_at
            LIMIT $3
        ) AS p
        GROUP BY p.did
    ) AS d
) AS f`
	var id, read int64
	var at *time.Time
	err = schema.Each(ctx, r.tx, "read when links reached the minimum", []any{&id, &at, &read}, func() error {
		switch {
		case at != nil:
			all = append(all, entry{ID: id, Last: earlier(*at, r.end)}) // clocks may be ahead
		case read >= int64(limit):
			undecided = append(undecided, id)
		}
		return nil
	}, sql, links, r.q.least(), limit, r.q.OnlyWays(), r.watches, r.from())
	if err != nil {
		return nil, nil, err
	}
	return all, undecided, nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
