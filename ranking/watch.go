package ranking

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// watched ranks the links that the members of the watches share. Nothing is counted
// ahead for a watch: the rows of sharers of its members are few enough to read.
func (r *reader) watched(ctx context.Context, c changes) ([]entry, error) {
	const members = `SELECT DISTINCT m.did FROM watch_members AS m WHERE m.watch_id = ANY ($1)`
	dids, err := schema.All(ctx, r.tx, "read the members", pgx.RowTo[string], members, r.watches)
	if err != nil {
		return nil, err
	}
	dids = r.q.Network.leaveOutDIDs(dids)
	rows, err := r.sharedBy(ctx, dids, c)
	if err != nil {
		return nil, err
	}
	is := make(map[string]bool, len(dids))
	for _, did := range dids {
		is[did] = true
	}
	for k, change := range c {
		if at := r.q.latestOf(change.truth); is[k.did] && at.After(r.earliest()) {
			rows = append(rows, pair{k, at})
		}
	}
	all := *r
	all.q.Ways, all.q.Network = nil, BothNetworks // rows have only shares by these ways, of this network
	w := &walk{reader: &all, touched: make([]entry, 0, len(rows)), complete: true}
	place := make(map[int64]int, len(rows)) // in w.touched
	for _, s := range rows {
		n, ok := place[s.link]
		if !ok {
			n = len(w.touched)
			place[s.link] = n
			w.touched = append(w.touched, entry{ID: s.link})
		}
		r.add(&w.touched[n], s.at)
	}
	w.touched = r.leaveOut(slices.DeleteFunc(w.touched, func(e entry) bool { return !w.qualifies(e) }))
	chosen, err := w.first(ctx, r.after, r.q.Limit+1)
	nameSharers(chosen, rows)
	return chosen, err
}

// pair is an account's latest share of a link.
type pair struct {
	sharing
	at time.Time
}

// nameSharers sets the latest three sharers of each link.
func nameSharers(links []entry, rows []pair) {
	of := make(map[int64][]pair, len(links))
	for _, e := range links {
		of[e.ID] = nil
	}
	for _, s := range rows {
		if list, ok := of[s.link]; ok {
			of[s.link] = append(list, s)
		}
	}
	for i := range links {
		list := of[links[i].ID]
		slices.SortFunc(list, func(a, b pair) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.did, b.did)) })
		for _, s := range list[:min(3, len(list))] {
			links[i].DIDs = append(links[i].DIDs, s.did)
		}
	}
}

// sharedBy reads the members' rows of sharers that do not change. Grouping them here
// takes less time than in SQL.
func (r *reader) sharedBy(ctx context.Context, dids []string, c changes) ([]pair, error) {
	at := r.q.latest("s")
	sql := `
SELECT m.n, s.link_id, s.at
FROM unnest($1::text[]) WITH ORDINALITY AS m (did, n)
CROSS JOIN LATERAL (SELECT s.link_id, ` + at + ` AS at FROM sharers AS s WHERE s.did = m.did AND s.at > $2 AND ` + at + ` > $2 OFFSET 0) AS s`
	found, err := r.tx.Query(ctx, sql, dids, r.earliest())
	if err != nil {
		return nil, fmt.Errorf("read what the members share: %w", err)
	}
	rows := make([]pair, 0, 16*len(dids))
	var n int64
	var s pair
	_, err = pgx.ForEachRow(found, []any{&n, &s.link, &s.at}, func() error {
		s.did = dids[n-1]
		if _, changes := c[s.sharing]; !changes {
			rows = append(rows, s)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what the members share: %w", err)
	}
	return rows, nil
}
