package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Window is a span that ends now and that the ranking is shown for.
type Window struct {
	Name   string // as it is asked for
	Length time.Duration
}

// Windows are those there are, the shortest first.
func Windows() []Window {
	return []Window{{"1h", time.Hour}, {"3h", 3 * time.Hour}, {"6h", 6 * time.Hour}, {"12h", 12 * time.Hour}, {"24h", LongestWindow}}
}

// TrendingLink is one line of the ranking.
type TrendingLink struct {
	URL         string    `json:"url"`
	Site        string    `json:"site"`
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	Image       string    `json:"image,omitempty"`     // blob:<did>/<cid>
	CardFrom    string    `json:"card_from,omitempty"` // AT-URI of the post the card came from
	Sharers     int       `json:"sharers"`             // distinct accounts inside the window
	FirstShared time.Time `json:"first_shared"`        // inside the window
	LastShared  time.Time `json:"last_shared"`
	SharedBy    []string  `json:"shared_by"` // the latest sharers, at most three: handles, DIDs where no handle is known
}

// TrendingLinks ranks the links shared in the window that ends at now by how
// many distinct accounts shared them; ties go to the link shared last, then to
// the smaller URL. Hidden accounts do not count, nor, where there are watches,
// those that no watch brings. At most limit links.
func TrendingLinks(ctx context.Context, db DB, now time.Time, window time.Duration, limit int) ([]TrendingLink, error) {
	const sql = `
WITH ranked AS (
    SELECT s.link_id             AS link_id,
           count(DISTINCT s.did) AS sharers,
           min(s.shared_at)      AS first_shared,
           max(s.shared_at)      AS last_shared
    FROM shares AS s
    WHERE s.shared_at > $1 AND s.shared_at <= $2
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
      AND (NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watched AS w WHERE w.did = s.did))
    GROUP BY s.link_id
    ORDER BY sharers DESC, last_shared DESC
    FETCH FIRST $3 ROWS WITH TIES
)
SELECT l.url             AS url,
       l.site            AS site,
       l.title           AS title,
       l.description     AS description,
       l.image           AS image,
       l.card_from       AS card_from,
       r.sharers         AS sharers,
       r.first_shared    AS first_shared,
       r.last_shared     AS last_shared,
       latest.shared_by  AS shared_by
FROM ranked AS r
JOIN links AS l ON l.id = r.link_id
CROSS JOIN LATERAL (
    SELECT coalesce(array_agg(sharer.name ORDER BY sharer.at DESC, sharer.name), '{}') AS shared_by
    FROM (
        SELECT coalesce(a.handle, s.did) AS name, max(s.shared_at) AS at
        FROM shares AS s
        LEFT JOIN accounts AS a ON a.did = s.did
        WHERE s.link_id = r.link_id AND s.shared_at > $1 AND s.shared_at <= $2
          AND coalesce(a.status, 'active') = 'active'
          AND (NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watched AS w WHERE w.did = s.did))
        GROUP BY 1
        ORDER BY 2 DESC, 1
        LIMIT 3
    ) AS sharer
) AS latest
ORDER BY r.sharers DESC, r.last_shared DESC, l.url
LIMIT $3`
	return all(ctx, db, "rank the links", pgx.RowToStructByName[TrendingLink], sql, now.Add(-window), now, limit)
}
