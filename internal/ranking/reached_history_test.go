package ranking

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// compareReached compares the newest links with the minimum with a fold in Go.
func (h *history) compareReached(t *testing.T, tx pgx.Tx, l story, q Query, limit limits) {
	t.Helper()
	s, err := readState(t.Context(), tx)
	require.NoError(t, err)
	q.At, q.Window, q.Sort = later(q.At, s.AsOf), LongestWindow, Sharers
	inner, err := tx.Begin(t.Context())
	require.NoError(t, err)
	r, err := NewReachReader(t.Context(), inner, q)
	require.NoError(t, err)
	r.limits = limit
	links, err := r.Newest(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, inner.Rollback(t.Context()))
	var got []string
	for _, e := range links {
		got = append(got, reachedLine(e.ID, e.At, e.Identity, e.Title))
	}
	require.Equal(t, l.foldReached(q), got, "%+v", q)
}

func reachedLine(id int64, at time.Time, identity, title string) string {
	return fmt.Sprintf("link %d (%s, %q) at %s", id, identity, title, at.UTC().Format(time.RFC3339Nano))
}

// foldReached returns the newest links of a story that reached the minimum, one per line.
func (l story) foldReached(q Query) (lines []string) {
	first := map[int64]map[string]time.Time{}
	who := l.members[joined(q.Watch, string(q.Degree))]
	found, by := l.found(q.Text), l.by(q)
	for _, s := range l.shares {
		if l.counts(s, q) && s.At.After(q.At.Add(-LongestWindow)) && (q.Watch == "" || who[s.DID]) {
			if first[s.Link] == nil {
				first[s.Link] = map[string]time.Time{}
			}
			if at, ok := first[s.Link][s.DID]; !ok || s.At.Before(at) {
				first[s.Link][s.DID] = s.At
			}
		}
	}
	var all []entry
	for id, sharers := range first {
		if (q.By != "" && !by[id]) || (q.Site != "" && l.sites[id] != q.Site) || (q.Text != "" && !found[id]) || len(sharers) < q.least() {
			continue
		}
		var times []time.Time
		for _, at := range sharers {
			times = append(times, at)
		}
		slices.SortFunc(times, time.Time.Compare)
		at := times[q.least()-1]
		if at.After(q.At) {
			at = q.At
		}
		all = append(all, entry{ID: id, Last: at})
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Or(b.Last.Compare(a.Last), int(b.ID-a.ID)) })
	for _, e := range all[:min(len(all), q.Limit)] {
		lines = append(lines, reachedLine(e.ID, e.Last, l.identities[e.ID], l.headline(q, e.ID).title))
	}
	return lines
}

func joined(watch, degree string) string {
	if degree == "" {
		return watch
	}
	return watch + " " + degree
}

// TestReachedInOneMoment covers many links that were first shared at the same time. Those with the
// highest ids come first, in whatever order they are found.
func TestReachedInOneMoment(t *testing.T) {
	t.Parallel()
	const links = 40
	p := newPopularity(t, links)
	p.exec(p.pool, `DELETE FROM shares`)
	// The scan passes the row written last first.
	p.exec(p.pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || 1000 - id, 'c', 'r', id, id, 'post', $1 FROM links ORDER BY links.id DESC`, p.now)
	for _, counted := range []bool{false, true} {
		if counted {
			p.count()
		}
		require.NoError(t, readOnlyTx(t.Context(), p.pool, func(tx pgx.Tx) error {
			r, err := NewReachReader(t.Context(), tx, Query{At: p.now, Window: LongestWindow, Sort: Sharers, AtLeast: 1, Limit: 3})
			require.NoError(t, err)
			r.limits = limits{pending: 5000, few: 1}
			newest, err := r.Newest(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, newest, 3)
			require.Equal(t, []int64{links, links - 1, links - 2}, []int64{newest[0].ID, newest[1].ID, newest[2].ID})
			return nil
		}))
	}
}
