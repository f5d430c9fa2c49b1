package ranking

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// LongestWindow is the longest window that a ranking can have. If shares are kept for
// less, it begins at CompleteSince.
const LongestWindow = 7 * 24 * time.Hour

// Window is a time span of the ranking that ends now.
type Window struct {
	Name   string // the name in requests
	Length time.Duration
}

// Windows returns the windows of the ranking, shortest first.
func Windows() []Window {
	return []Window{{"1h", time.Hour}, {"3h", 3 * time.Hour}, {"6h", 6 * time.Hour}, {"12h", 12 * time.Hour}, {"24h", 24 * time.Hour}}
}

// TrendingLink is one entry of the ranking.
type TrendingLink struct {
	URL         string    `json:"url"`
	Site        string    `json:"site"`
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	Image       string    `json:"image,omitempty"`     // blob:<did>/<cid>
	CardFrom    string    `json:"card_from,omitempty"` // AT-URI of the post the card came from
	Sharers     int       `json:"sharers"`             // distinct accounts inside the window
	FirstShared time.Time `json:"first_shared"`        // first share inside the window
	LastShared  time.Time `json:"last_shared"`
	SharedBy    []string  `json:"shared_by"` // the latest three sharers: handles, or DIDs if no handle is known
}

// counting joins the number of accounts that count as sharers of the link c.link_id in
// the window, and the times of the first and last share.
const counting = `
CROSS JOIN LATERAL (
    SELECT count(DISTINCT s.did) AS sharers,
           min(s.shared_at)      AS first_shared,
           max(s.shared_at)      AS last_shared
    FROM shares AS s
    WHERE s.link_id = c.link_id AND s.shared_at > $1 AND s.shared_at <= $2 AND` + throughLivingSubject + `
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
      AND (NOT EXISTS (SELECT FROM watches) OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = s.did))
) AS counting`

// TrendingLinks returns at most limit links shared in the window that ends at now,
// ranked by the number of distinct accounts that shared them. Ties are broken by the
// latest share, then by URL. Hidden accounts do not count, nor do reposts and quotes of
// posts that are deleted or hidden. If there are watches, only followed accounts count.
//
// Counting distinct accounts is expensive, and most links are shared once or twice. So
// the query first counts all shares in the window. It counts distinct accounts only for
// the links that can get into the ranking: those with at least as many shares as the
// last link of a preliminary ranking has sharers.
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
    SELECT counting.sharers AS sharers, counting.last_shared AS last_shared
    FROM (SELECT link_id FROM counted ORDER BY shares DESC, last_shared DESC LIMIT $3) AS c` + counting + `
    WHERE counting.sharers > 0
    ORDER BY counting.sharers DESC, counting.last_shared DESC
    OFFSET $3 - 1
), ranked AS (
    SELECT c.link_id           AS link_id,
           counting.sharers      AS sharers,
           counting.first_shared AS first_shared,
           counting.last_shared  AS last_shared
    FROM counted AS c` + counting + `
    WHERE counting.sharers > 0
      AND (NOT EXISTS (SELECT FROM least) OR (c.shares, c.last_shared) >= (SELECT sharers, last_shared FROM least))
    ORDER BY counting.sharers DESC, counting.last_shared DESC
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
        WHERE s.link_id = r.link_id AND s.shared_at > $1 AND s.shared_at <= $2 AND` + throughLivingSubject + `
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
