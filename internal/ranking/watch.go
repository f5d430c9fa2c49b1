package ranking

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// watched ranks the links that the members of the watches share. There are no counts for a
// watch: the rows of sharers of its members are few enough to read.
func (r *reader) watched(ctx context.Context) (chosen []entry, exact bool, err error) {
	dids := r.q.Network.leaveOutDIDs(r.members)
	var rows []pair
	q := &pgx.Batch{}
	r.queueSharedBy(q, dids, &rows)
	if exact, err := r.readUnread(ctx, q); err != nil || !exact {
		return nil, false, err
	}
	rows = slices.DeleteFunc(rows, func(s pair) bool { _, changes := r.unread[s.sharing]; return changes })
	is := make(map[string]bool, len(dids))
	for _, did := range dids {
		is[did] = true
	}
	for k, change := range r.unread {
		if at := r.q.latestOf(change.truth); is[k.did] && at.After(r.earliest()) {
			rows = append(rows, pair{k, at})
		}
	}
	all := *r
	all.q.Ways, all.q.Network = nil, BothNetworks // the rows already contain only shares by these ways, of this network
	w := &rankScan{reader: &all, touched: make([]entry, 0, len(rows)), only: []int64{}}
	place := make(map[int64]int, len(rows)) // index in w.touched
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
	chosen, err = w.first(ctx, r.after, r.q.Limit+1)
	nameSharers(chosen, rows, r.from())
	return chosen, true, err
}

// pair is an account's latest share of a link.
type pair struct {
	sharing
	at time.Time
}

// nameSharers sets the latest three sharers of each link in the window. The speed of a link
// may count others.
func nameSharers(links []entry, rows []pair, from time.Time) {
	of := make(map[int64][]pair, len(links))
	for _, e := range links {
		of[e.ID] = nil
	}
	for _, s := range rows {
		if list, ok := of[s.link]; ok && s.at.After(from) {
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

// queueSharedBy queues the query that reads the members' rows of sharers. Grouping the rows
// here is faster than in SQL.
func (r *reader) queueSharedBy(q *pgx.Batch, dids []string, to *[]pair) {
	at, after := r.q.latest("s"), ""
	if r.q.OnlyWays() != nil {
		after = ` AND ` + at + ` > $2`
	}
	sql := `
SELECT m.n, s.link_id, s.at
FROM unnest($1::text[]) WITH ORDINALITY AS m (did, n)
CROSS JOIN LATERAL (SELECT s.link_id, ` + at + ` AS at FROM sharers AS s WHERE s.did = m.did AND s.at > $2` + after + ` OFFSET 0) AS s`
	q.Queue(sql, dids, r.earliest()).Query(func(found pgx.Rows) error {
		rows := make([]pair, 0, 16*len(dids))
		var n int64
		var s pair
		_, err := pgx.ForEachRow(found, []any{&n, &s.link, &s.at}, func() error {
			s.did = dids[n-1]
			rows = append(rows, s)
			return nil
		})
		if err != nil {
			return fmt.Errorf("read what the members share: %w", err)
		}
		*to = rows
		return nil
	})
}
