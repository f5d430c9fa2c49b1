package ranking

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// readBy finds the links that the account of the query shares; none if it is withheld. It uses
// only the shares, so pending changes do not affect it.
func (r *reader) readBy(ctx context.Context) (err error) {
	if r.q.By == "" {
		return nil
	}
	const find = `SELECT $1::text UNION (` + schema.HandleOwner + `)`
	dids, err := schema.All(ctx, r.tx, "find the account", pgx.RowTo[string], find, r.q.By)
	if err != nil {
		return err
	}
	sql := `
SELECT DISTINCT s.link_id
FROM judged_shares AS s
WHERE s.did = ANY ($1) AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL
    AND NOT` + schema.Withheld("s.did") + `
ORDER BY s.link_id`
	r.by, err = schema.All(ctx, r.tx, "find the links of the account", pgx.RowTo[int64], sql, dids, r.from(), r.q.until(), r.q.OnlyWays())
	r.by = nonNil(r.by)
	return err
}

// leaveOut removes links that cannot match.
func (r *reader) leaveOut(of []entry) []entry {
	if r.by == nil && (r.text == nil || r.text.other != 0) {
		return of
	}
	return slices.DeleteFunc(of, func(e entry) bool { return !r.listsID(e.ID) })
}

// listsID reports whether a link may match.
func (r *reader) listsID(id int64) bool {
	if r.by != nil {
		if _, is := slices.BinarySearch(r.by, id); !is {
			return false
		}
	}
	return r.text == nil || r.text.other != 0 || r.text.places[id] != 0
}

// listed returns the links that may match; nil: all may.
func (r *reader) listed() []int64 {
	if r.by == nil {
		return r.text.found()
	}
	return slices.DeleteFunc(slices.Clone(r.by), func(id int64) bool { return !r.listsID(id) })
}
