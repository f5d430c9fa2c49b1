package ranking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// LongestWindow is the longest window that the ranking shows: nothing inside it
// may expire.
const LongestWindow = 24 * time.Hour

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

// counting follows one link, c.link_id, and says how many accounts count as its
// sharers in the window, and when it was shared.
const counting = `
CROSS JOIN LATERAL (
    SELECT count(DISTINCT s.did) AS sharers,
           min(s.shared_at)      AS first_shared,
           max(s.shared_at)      AS last_shared
    FROM shares AS s
    WHERE s.link_id = c.link_id AND s.shared_at > $1 AND s.shared_at <= $2
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
      AND (NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did))
) AS honest`

// TrendingLinks ranks the links shared in the window that ends at now by how
// many distinct accounts shared them; ties go to the link shared last, then to
// the smaller URL. Hidden accounts do not count, nor, where there are watches,
// those that no watch brings. At most limit links.
//
// Telling accounts apart is what costs, and most links are shared once or
// twice. So all shares of the window are only counted, and the accounts are
// told apart for the links that can get into the ranking: those with at least
// as many shares as the last of a first ranking has sharers.
func TrendingLinks(ctx context.Context, db schema.DB, now time.Time, window time.Duration, limit int) ([]TrendingLink, error) {
	const sql = `
WITH counted AS MATERIALIZED (
    SELECT s.link_id        AS link_id,
           count(*)         AS shares,
           max(s.shared_at) AS last_shared
    FROM shares AS s
    WHERE s.shared_at > $1 AND s.shared_at <= $2
    GROUP BY s.link_id
), least AS MATERIALIZED (
    SELECT honest.sharers AS sharers, honest.last_shared AS last_shared
    FROM (SELECT link_id FROM counted ORDER BY shares DESC, last_shared DESC LIMIT $3) AS c` + counting + `
    WHERE honest.sharers > 0
    ORDER BY honest.sharers DESC, honest.last_shared DESC
    OFFSET $3 - 1
), ranked AS (
    SELECT c.link_id           AS link_id,
           honest.sharers      AS sharers,
           honest.first_shared AS first_shared,
           honest.last_shared  AS last_shared
    FROM counted AS c` + counting + `
    WHERE honest.sharers > 0
      AND (NOT EXISTS (SELECT FROM least) OR (c.shares, c.last_shared) >= (SELECT sharers, last_shared FROM least))
    ORDER BY honest.sharers DESC, honest.last_shared DESC
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
          AND (NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did))
        GROUP BY 1
        ORDER BY 2 DESC, 1
        LIMIT 3
    ) AS sharer
) AS latest
ORDER BY r.sharers DESC, r.last_shared DESC, l.url
LIMIT $3`
	return schema.All(ctx, db, "rank the links", pgx.RowToStructByName[TrendingLink], sql, now.Add(-window), now, limit)
}
