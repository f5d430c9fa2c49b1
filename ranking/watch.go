package ranking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// watched ranks the links that the members of the watches share. Nothing is counted
// ahead for a watch: the rows of sharers of its members are few enough to group.
func (r *reader) watched(ctx context.Context, c changes) ([]entry, error) {
	if err := r.keepMembers(ctx, c); err != nil {
		return nil, err
	}
	touched := map[int64]*entry{}
	for k := range c {
		touched[k.link] = &entry{ID: k.link}
	}
	rows, err := r.groupMembers(ctx, c, touched)
	if err != nil {
		return nil, err
	}
	found := make([]entry, 0, len(rows)+len(touched))
	for _, e := range rows {
		if touched[e.ID] != nil {
			*touched[e.ID] = e
		} else {
			found = append(found, e)
		}
	}
	for k, change := range c {
		if r.addTruth(touched[k.link], change.truth) {
			touched[k.link].DIDs = append(touched[k.link].DIDs, k.did)
		}
	}
	w := &walk{reader: r}
	for _, e := range touched {
		if w.qualifies(*e) {
			w.touched = append(w.touched, *e)
		}
	}
	if r.q.Site != "" {
		if err := w.keepSite(ctx); err != nil {
			return nil, err
		}
	}
	return r.merge(found, w.touched, r.after, r.q.Limit+1), nil
}

// groupMembers counts the members' rows of sharers that do not change. Links with
// pending changes are returned wherever they rank, the others from the position on.
func (r *reader) groupMembers(ctx context.Context, c changes, touched map[int64]*entry) ([]entry, error) {
	ids := make([]int64, 0, len(touched)) // not nil: that is NULL
	for id := range touched {
		ids = append(ids, id)
	}
	args := append([]any{r.watches, r.earliest(), ids, r.from(), r.q.Site}, r.positionArgs()...)
	speed, unchanged := `0`, ``
	if r.q.Sort == Speed {
		args = append(args, r.end)
		speed = speedOf("p.at", fmt.Sprintf("$%d", len(args)))
	}
	if len(c) > 0 {
		var pending sharingColumns
		for k := range c {
			pending.add(k)
		}
		args = append(args, pending.links, pending.dids)
		unchanged = fmt.Sprintf(`WHERE (s.link_id, m.did) NOT IN (SELECT * FROM unnest($%d::bigint[], $%d::text[]))`, len(args)-1, len(args))
	}
	at := r.q.latest("s")
	sql := `
WITH members AS MATERIALIZED (
    SELECT DISTINCT m.did FROM watch_members AS m WHERE m.watch_id = ANY ($1)
), pairs AS MATERIALIZED (
    SELECT s.link_id, m.did, s.at
    FROM members AS m
    CROSS JOIN LATERAL (SELECT s.link_id, ` + at + ` AS at FROM sharers AS s WHERE s.did = m.did AND s.at > $2 AND ` + at + ` > $2 OFFSET 0) AS s
    ` + unchanged + `
), links_of AS MATERIALIZED (
    SELECT p.link_id AS id, count(*) FILTER (WHERE p.at > $4) AS sharers, ` + speed + ` AS speed, max(p.at) AS last
    FROM pairs AS p
    GROUP BY p.link_id
), chosen AS MATERIALIZED (
    (SELECT c.* FROM links_of AS c WHERE c.id = ANY ($3))
    UNION ALL
    (SELECT c.* FROM links_of AS c WHERE c.id <> ALL ($3) AND ($5 = '' OR (SELECT l.site FROM links AS l WHERE l.id = c.id) = $5)` + afterPosition(6) + `)
)
SELECT c.id, c.sharers, c.speed, c.last, array_agg(p.did)
FROM chosen AS c
JOIN pairs AS p ON p.link_id = c.id
GROUP BY c.id, c.sharers, c.speed, c.last`
	return schema.All(ctx, r.tx, "count the members' links", pgx.RowToStructByPos[entry], sql, args...)
}

// keepMembers removes the changes of accounts that are not members of the watches.
func (r *reader) keepMembers(ctx context.Context, c changes) error {
	dids := map[string]bool{}
	for k := range c {
		dids[k.did] = false
	}
	if len(dids) == 0 {
		return nil
	}
	all := make([]string, 0, len(dids))
	for did := range dids {
		all = append(all, did)
	}
	members, err := schema.All(ctx, r.tx, "find the members", pgx.RowTo[string], `SELECT m.did FROM watch_members AS m WHERE m.did = ANY ($1) AND m.watch_id = ANY ($2)`, all, r.watches)
	for _, did := range members {
		dids[did] = true
	}
	for k := range c {
		if !dids[k.did] {
			delete(c, k)
		}
	}
	return err
}
