package ranking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// describe reads what a page shows of its links. The dates and the latest sharers come
// from the ledger, so nothing that is pending changes them.
func (r *reader) describe(ctx context.Context, entries []entry) ([]TrendingLink, error) {
	if len(entries) == 0 {
		return []TrendingLink{}, nil
	}
	ids := make([]int64, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	sql, args := describeEveryone, []any{ids, r.from(), r.q.until(), r.q.ways(), r.state.Watching}
	if r.watches != nil {
		var members sharingColumns
		for _, e := range entries {
			for _, did := range e.DIDs {
				members.add(sharing{e.ID, did})
			}
		}
		sql, args = describeMembers, append(args[:4], members.links, members.dids)
	}
	rows, err := r.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("describe the links: %w", err)
	}
	byID := make(map[int64]entry, len(entries))
	for _, e := range entries {
		byID[e.ID] = e
	}
	links, err := pgx.CollectRows(rows, func(found pgx.CollectableRow) (l TrendingLink, err error) {
		var dids, handles, names, avatars []string
		err = found.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &l.FirstShared, &l.LastShared, &dids, &handles, &names, &avatars)
		l.Sharers = byID[l.ID].Sharers
		if r.q.Sort == Speed {
			l.Speed = float64(byID[l.ID].Speed) / speedPerHour
		}
		l.SharedBy, l.Faces = []string{}, []Face{}
		for i, did := range dids {
			f := Face{DID: did, Handle: handles[i], DisplayName: names[i], Avatar: avatars[i]}
			l.Faces = append(l.Faces, f)
			l.SharedBy = append(l.SharedBy, f.Name())
		}
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("describe the links: %w", err)
	}
	return links, nil
}

// Name returns the handle, or the DID if no handle is known.
func (f Face) Name() string {
	if f.Handle != "" {
		return f.Handle
	}
	return f.DID
}

// share selects the shares of the link k.id that count in the window.
func share(columns, also string) string {
	return `SELECT ` + columns + ` FROM shares AS s
    WHERE s.link_id = k.id AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND` + throughLivingSubject + `AND` + eligible("s.did", "$5") + also
}

// describeEveryone finds the latest sharers one after the other: each is the latest who
// is none of those before. Each is one walk down an index, which another sort key would
// turn into a sort of all.
var describeEveryone = `
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, first.at, a.at, f.dids, f.handles, f.names, f.avatars
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
CROSS JOIN LATERAL (SELECT l.* FROM links AS l WHERE l.id = k.id LIMIT 1) AS l
CROSS JOIN LATERAL (` + share("s.shared_at AS at", " ORDER BY s.shared_at LIMIT 1") + `) AS first
CROSS JOIN LATERAL (` + share("s.did, s.shared_at AS at", " ORDER BY s.shared_at DESC LIMIT 1") + `) AS a
LEFT JOIN LATERAL (` + share("s.did, s.shared_at AS at", " AND s.did <> a.did ORDER BY s.shared_at DESC LIMIT 1") + `) AS b ON true
LEFT JOIN LATERAL (` + share("s.did, s.shared_at AS at", " AND s.did <> a.did AND s.did <> b.did ORDER BY s.shared_at DESC LIMIT 1") + `) AS c ON true
CROSS JOIN LATERAL (` + faces("(VALUES (a.did, 1), (b.did, 2), (c.did, 3)) AS f (did, n)") + `) AS f
ORDER BY k.n`

// faces aggregates the profiles of the accounts f, in the order n.
func faces(of string) string {
	return `
    SELECT array_agg(f.did ORDER BY f.n)                        AS dids,
           array_agg(coalesce(p.handle, '') ORDER BY f.n)       AS handles,
           array_agg(coalesce(p.display_name, '') ORDER BY f.n) AS names,
           array_agg(coalesce(p.avatar, '') ORDER BY f.n)       AS avatars
    FROM ` + of + `
    LEFT JOIN LATERAL (SELECT p.handle, p.display_name, p.avatar FROM accounts AS p WHERE p.did = f.did LIMIT 1) AS p ON true
    WHERE f.did IS NOT NULL`
}

// describeMembers reads the shares of the members, who are few beside everyone who
// shares a popular link.
var describeMembers = `
WITH pairs AS MATERIALIZED (
    SELECT p.link_id, p.did, s.first, s.last
    FROM unnest($5::bigint[], $6::text[]) AS p (link_id, did)
    CROSS JOIN LATERAL (
        SELECT min(s.shared_at) AS first, max(s.shared_at) AS last
        FROM ` + sharesOfPair + ` AS s
        WHERE s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND` + throughLivingSubject + `
    ) AS s
    WHERE s.last IS NOT NULL
), of AS MATERIALIZED (
    SELECT p.link_id, min(p.first) AS first, max(p.last) AS last, (array_agg(p.did ORDER BY p.last DESC, p.did))[1:3] AS dids
    FROM pairs AS p
    GROUP BY p.link_id
)
SELECT l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, o.first, o.last, f.dids, f.handles, f.names, f.avatars
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN of AS o ON o.link_id = k.id
CROSS JOIN LATERAL (SELECT l.* FROM links AS l WHERE l.id = k.id LIMIT 1) AS l
CROSS JOIN LATERAL (` + faces("unnest(o.dids) WITH ORDINALITY AS f (did, n)") + `) AS f
ORDER BY k.n`
