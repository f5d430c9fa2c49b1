package ranking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// recount ranks the links by counting all stored shares. It does not depend on
// stored counts, and takes long when there are many shares.
func (r *reader) recount(ctx context.Context) ([]entry, error) {
	dids := `'{}'::text[]`
	if r.watches != nil {
		dids = `(array_agg(p.did ORDER BY p.at DESC, p.did) FILTER (WHERE p.at > $8))[1:3]`
	}
	sql := `
WITH pairs AS (
    SELECT s.link_id, s.did, max(s.shared_at) AS at
    FROM judged_shares AS s
    WHERE s.shared_at > $4 AND s.shared_at <= $5 AND s.why IS NULL
      AND ($6::text[] IS NULL OR s.how = ANY ($6)) AND` + r.q.Network.has("s.did") + `
      AND ($7::bigint[] IS NULL OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did AND w.watch_id = ANY ($7)))
    GROUP BY s.link_id, s.did
), links_of AS (
    SELECT p.link_id                             AS id,
           count(*) FILTER (WHERE p.at > $8)     AS sharers,
           ` + speedOf("p.at", "$9") + `         AS speed,
           max(p.at)                             AS last,
           ` + dids + `                          AS dids
    FROM pairs AS p
    GROUP BY p.link_id
)
SELECT k.id, k.sharers, k.speed, k.last, k.dids
FROM (
    SELECT * FROM links_of AS c
    WHERE ($10::text = '' OR EXISTS (SELECT FROM links AS l WHERE l.id = c.id AND l.site = $10))
      AND ($11::bigint[] IS NULL OR c.id = ANY ($11))` + afterPosition(14) + `
    OFFSET 0 -- the text is looked for in this order, until the page is full
) AS k
WHERE (NOT $12::boolean OR` + matches("k.id", fmt.Sprint(anywhere)) + `)
LIMIT $13`
	args := append(r.searchArgs(), r.earliest(), r.q.until(), r.q.OnlyWays(), r.watches, r.from(), r.end, r.q.Site,
		r.listed(), r.text.doubtful(), r.q.Limit+1)
	return schema.All(ctx, r.tx, "recount the links", pgx.RowToStructByPos[entry], sql, append(args, r.positionArgs()...)...)
}

// speedOf returns the speed of the rows of a group whose shares are dated at.
func speedOf(at, end string) string {
	sql := ""
	for i, w := range weights() {
		if w > 0 {
			if i > 0 {
				sql += " + "
			}
			sql += fmt.Sprintf("%d * count(*) FILTER (WHERE %s > %s::timestamptz - interval '%d hours')", w, at, end,
				int(Windows()[i].Length.Hours()))
		}
	}
	return "(" + sql + ")"
}

// afterPosition returns the end of a query of links c: the conditions of the ranking,
// its order, and the position of the page. Its parameters begin with number n; they are
// positionArgs.
func afterPosition(n int) string {
	const sql = `
  AND c.sharers >= $%[1]d AND ($%[2]d::text <> 'speed' OR c.speed > 0)
  AND ($%[3]d::boolean OR (%[7]s, %[8]s, c.id) < ($%[4]d::bigint, $%[5]d::timestamptz, $%[6]d::bigint))
ORDER BY %[7]s DESC, %[8]s DESC, c.id DESC`
	value := fmt.Sprintf(`CASE $%d WHEN 'newest' THEN 0 WHEN 'speed' THEN c.speed ELSE c.sharers END`, n+1)
	stamp := fmt.Sprintf(`CASE $%d WHEN 'newest' THEN 'epoch' ELSE c.last END`, n+1)
	return fmt.Sprintf(sql, n, n+1, n+2, n+3, n+4, n+5, value, stamp)
}

func (r *reader) positionArgs() []any {
	after := entry{}
	if r.after != nil {
		after = *r.after
	}
	stamp := after.Last
	if r.q.Sort == Newest {
		stamp = time.Unix(0, 0)
	}
	return []any{r.q.least(), string(r.q.Sort), r.after == nil, after.value(r.q.Sort), stamp, after.ID}
}

// earliest returns the date after which shares matter to the query.
func (r *reader) earliest() time.Time {
	day := r.end.Add(-Windows()[longestSpeed].Length)
	if from := r.from(); r.q.Sort != Speed || from.Before(day) {
		return from
	}
	return day
}

// value returns the first value by which a link is ranked.
func (e entry) value(sort Sort) int {
	switch sort {
	case Speed:
		return e.Speed
	case Newest:
		return 0
	}
	return e.Sharers
}

// merge returns the first limit links after a position from both lists.
func (r *reader) merge(found, touched []entry, after *entry, limit int) []entry {
	order := func(a, b entry) int { return a.compare(b, r.q.Sort) }
	cut := false // found is sometimes cut to the first limit links, which leaves out most others at once
	for _, e := range touched {
		if after != nil && after.compare(e, r.q.Sort) >= 0 || cut && found[limit-1].compare(e, r.q.Sort) < 0 {
			continue
		}
		if found = append(found, e); len(found) >= 4*limit {
			slices.SortFunc(found, order)
			found, cut = found[:limit], true
		}
	}
	slices.SortFunc(found, order)
	return found[:min(limit, len(found))]
}
