package ranking

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// describe reads what a page shows of its links, with the current headlines.
func (r *reader) describe(ctx context.Context, entries []entry) ([]TrendingLink, error) {
	if len(entries) == 0 {
		return []TrendingLink{}, nil
	}
	if r.q.Bare {
		return bare(entries, r.q.Sort), nil
	}
	ids := idsOf(entries)
	q := &pgx.Batch{}
	var links []TrendingLink
	var gifts []gift
	// Most links have few sharers, so Postgres would read all sharers of each link with a bitmap,
	// and sort them. Without bitmaps it reads the latest ones from their index.
	q.Queue(`SELECT set_config('enable_bitmapscan', 'off', true)`)
	r.queueDescriptions(q, entries, ids, &links)
	queueGifts(q, ids, &gifts)
	q.Queue(`SELECT set_config('enable_bitmapscan', 'on', true)`)
	if err := send(ctx, r.tx, q); err != nil {
		return nil, err
	}
	for i := range links {
		if n := slices.IndexFunc(gifts, func(g gift) bool { return g.Link == links[i].ID }); n >= 0 {
			links[i].Gift = gifts[n].URL
		}
	}
	names := map[string][]*string{}
	for i := range links {
		for j := range links[i].Faces {
			f := &links[i].Faces[j]
			names[f.DID] = append(names[f.DID], &f.DisplayName)
		}
	}
	if err := addNostrNames(ctx, r.tx, names); err != nil {
		return nil, err
	}
	return links, r.correctHeadlines(ctx, links)
}

// queueDescriptions queues the query that reads what is stored about the links.
func (r *reader) queueDescriptions(q *pgx.Batch, entries []entry, ids []int64, to *[]TrendingLink) {
	byID := make(map[int64]entry, len(entries))
	for _, e := range entries {
		byID[e.ID] = e
	}
	sql, args := describeEveryone(r.q.Network), []any{ids, r.from(), r.q.until(), r.q.OnlyWays()}
	switch {
	case r.watches == nil && r.unread != nil && r.q.OnlyWays() == nil:
		sql, args = describeCounted(r.q.Network), append([]any{ids, r.from()}, r.unreadColumns(byID)...)
	case r.watches != nil:
		var members sharingColumns
		for _, e := range entries {
			for _, did := range e.DIDs {
				members.add(sharing{e.ID, did})
			}
		}
		sql, args = describeMembers, []any{ids, members.links, members.dids}
	}
	schema.QueueAll(q, "describe the links", func(found pgx.CollectableRow) (l TrendingLink, err error) {
		var dids, handles, names, avatars []string
		var unverified, withheld []bool
		var last *time.Time
		err = found.Scan(&l.ID, &l.URL, &l.Site, &l.Title, &l.Description, &l.Image, &l.CardFrom, &l.FirstSeen, &last, &dids,
			&handles, &unverified, &names, &avatars, &withheld)
		l.Sharers, l.LastShared = byID[l.ID].Sharers, byID[l.ID].Last
		if last != nil {
			l.LastShared = *last
		}
		if r.q.Sort == Speed {
			l.Speed = float64(byID[l.ID].Speed) / speedPerHour
		}
		l.SharedBy, l.Faces = []string{}, []Face{}
		for i, did := range dids {
			f := Face{
				DID: did, Handle: handles[i], Unverified: unverified[i], DisplayName: names[i], Avatar: avatars[i],
				Withheld: withheld[i], Network: NetworkOf(did),
			}
			if f.Withheld {
				f = Face{DID: did, Withheld: true, Network: f.Network}
			}
			l.Faces = append(l.Faces, f)
			l.SharedBy = append(l.SharedBy, f.Name())
		}
		return l, err
	}, to, sql, args...)
}

// Name returns the handle, or the DID if no handle is verified.
func (f Face) Name() string {
	if f.Handle != "" && !f.Unverified {
		return f.Handle
	}
	return f.DID
}

// share selects the shares of the link k.id that count in the window.
func share(columns, also string) string {
	return `SELECT ` + columns + ` FROM judged_shares AS s
    WHERE s.link_id = k.id AND s.shared_at > $2 AND s.shared_at <= $3 AND ($4::text[] IS NULL OR s.how = ANY ($4)) AND s.why IS NULL` + also
}

// shownColumns are the columns of a link l that a page shows.
const shownColumns = `l.id, l.url, l.site, l.title, l.description, l.image, l.card_from, l.first_seen`

// describeCounted describes links by the sharers of a network. $3, $4 and $5 are the rows of
// sharers that do not match the shares yet, and the shares that they should have; NULL: none.
func describeCounted(network Network) string {
	return `
SELECT ` + shownColumns + `, latest.at, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (
    SELECT array_agg(s.did ORDER BY s.at DESC) AS dids, max(s.at) AS at
    FROM (
        SELECT * FROM (
            SELECT s.did, s.at FROM sharers AS s
            WHERE s.link_id = k.id AND s.at > $2 AND (s.link_id, s.did) NOT IN (SELECT * FROM unnest($3::bigint[], $4::text[]))
                AND` + network.has("s.did") + `
            ORDER BY s.at DESC LIMIT 3
        ) AS s
        UNION ALL
        SELECT u.did, u.at FROM unnest($3::bigint[], $4::text[], $5::timestamptz[]) AS u (id, did, at)
        WHERE u.id = k.id AND u.at > $2 AND` + network.has("u.did") + `
        ORDER BY at DESC LIMIT 3
    ) AS s
) AS latest
CROSS JOIN LATERAL (` + faces("unnest(latest.dids) WITH ORDINALITY AS f (did, n)") + `) AS f
ORDER BY k.n`
}

// unreadColumns returns the parameters of describeCounted for the pending changes of some links.
func (r *reader) unreadColumns(of map[int64]entry) []any {
	var pending sharingColumns
	var at pgtype.FlatArray[*time.Time]
	for k, c := range r.unread {
		if _, shown := of[k.link]; shown {
			pending.add(k)
			at = append(at, schema.NullTime(c.truth.at()))
		}
	}
	return []any{pending.links, pending.dids, at}
}

// describeEveryone describes links by the shares of a network. It finds the latest sharers one
// after the other: each is the latest account that is none of the earlier ones. Each is one scan
// down an index; another sort key would turn that into a sort of everything.
func describeEveryone(network Network) string {
	latest := func(also string) string {
		return share("s.did, s.shared_at AS at", ` AND`+network.has("s.did")+also+` ORDER BY s.shared_at DESC LIMIT 1`)
	}
	return `
SELECT ` + shownColumns + `, a.at, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (` + latest("") + `) AS a
LEFT JOIN LATERAL (` + latest(" AND s.did <> a.did") + `) AS b ON true
LEFT JOIN LATERAL (` + latest(" AND s.did <> a.did AND s.did <> b.did") + `) AS c ON true
CROSS JOIN LATERAL (` + faces("(VALUES (a.did, 1), (b.did, 2), (c.did, 3)) AS f (did, n)") + `) AS f
ORDER BY k.n`
}

// faces aggregates the profiles of the accounts f, in the order n.
func faces(of string) string {
	return `
    SELECT array_agg(f.did ORDER BY f.n)                        AS dids,
           array_agg(coalesce(p.handle, '') ORDER BY f.n)       AS handles,
           array_agg(coalesce(p.handle_unverified AND p.handle <> '', false) ORDER BY f.n) AS unverified,
           array_agg(coalesce(p.display_name, '') ORDER BY f.n) AS names,
           array_agg(coalesce(p.avatar, '') ORDER BY f.n)       AS avatars,
           array_agg(` + schema.Withheld("f.did") + ` ORDER BY f.n) AS withheld
    FROM ` + of + `
    LEFT JOIN LATERAL (SELECT nullif(p.handle, 'handle.invalid') AS handle, p.handle_unverified, p.display_name, p.avatar
        FROM accounts AS p WHERE p.did = f.did LIMIT 1) AS p ON true
    WHERE f.did IS NOT NULL`
}

// describeMembers reads the profiles of the accounts $3 that shared the links $2, in
// order.
var describeMembers = `
SELECT ` + shownColumns + `, NULL::timestamptz, f.dids, f.handles, f.unverified, f.names, f.avatars, f.withheld
FROM unnest($1::bigint[]) WITH ORDINALITY AS k (id, n)
JOIN links AS l ON l.id = k.id
CROSS JOIN LATERAL (` + faces(`(
    SELECT f.did, f.n FROM unnest($2::bigint[], $3::text[]) WITH ORDINALITY AS f (id, did, n) WHERE f.id = k.id
    ) AS f`) + `) AS f
ORDER BY k.n`
