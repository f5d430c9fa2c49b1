package ranking

import (
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
	found := map[int64]*shared{}
	earliest := r.earliest()
	add := func(link int64, did string, at time.Time) {
		e := found[link]
		if e == nil {
			e = &shared{entry: entry{ID: link}}
			found[link] = e
		}
		r.add(&e.entry, at)
		e.by(did, at)
	}
	if err := r.sharedBy(ctx, dids, c, add); err != nil {
		return nil, err
	}
	is := make(map[string]bool, len(dids))
	for _, did := range dids {
		is[did] = true
	}
	for k, change := range c {
		if at := r.q.latestOf(change.truth); is[k.did] && at.After(earliest) {
			add(k.link, k.did, at)
		}
	}
	w := &walk{reader: r}
	for _, e := range found {
		if w.qualifies(e.entry) {
			e.DIDs = slices.DeleteFunc(e.latest[:], func(did string) bool { return did == "" })
			w.touched = append(w.touched, e.entry)
		}
	}
	if r.q.Site != "" {
		if err := w.keepSite(ctx); err != nil {
			return nil, err
		}
	}
	return r.merge(nil, w.touched, r.after, r.q.Limit+1), nil
}

// shared is a link with its latest three sharers, the latest first.
type shared struct {
	entry
	latest [3]string
	at     [3]time.Time
}

func (s *shared) by(did string, at time.Time) {
	for i := range s.latest {
		if s.latest[i] == "" || at.After(s.at[i]) || at.Equal(s.at[i]) && did < s.latest[i] {
			did, s.latest[i] = s.latest[i], did
			at, s.at[i] = s.at[i], at
			if did == "" {
				return
			}
		}
	}
}

// sharedBy calls add for each row of sharers of the members that does not change.
// Grouping them here takes less time than in SQL.
func (r *reader) sharedBy(ctx context.Context, dids []string, c changes, add func(link int64, did string, at time.Time)) error {
	at := r.q.latest("s")
	sql := `
SELECT m.n, s.link_id, s.at
FROM unnest($1::text[]) WITH ORDINALITY AS m (did, n)
CROSS JOIN LATERAL (SELECT s.link_id, ` + at + ` AS at FROM sharers AS s WHERE s.did = m.did AND s.at > $2 AND ` + at + ` > $2 OFFSET 0) AS s`
	rows, err := r.tx.Query(ctx, sql, dids, r.earliest())
	if err != nil {
		return fmt.Errorf("read what the members share: %w", err)
	}
	var n, link int64
	var shared time.Time
	_, err = pgx.ForEachRow(rows, []any{&n, &link, &shared}, func() error {
		did := dids[n-1]
		if _, changes := c[sharing{link, did}]; !changes {
			add(link, did, shared)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what the members share: %w", err)
	}
	return nil
}
