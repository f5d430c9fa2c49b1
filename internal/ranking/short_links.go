package ranking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/schema"
)

// ShortLink is a link of a shortener whose target must be looked up.
type ShortLink struct {
	ID    int64
	URL   string
	Tries int // number of failed requests
	Site  string
	Guess bool // the site is not known as a shortener
}

// A site is a shortener from then on if three of its links lead to three different links of other
// sites. At most six of them are asked, and again after a month: a parked domain leads to one.
const (
	learnedAt     = 3
	guessesAtMost = 6
	guessAgain    = 30 * 24 * time.Hour
)

// queueShortLinks stores which of the links are short, after they were added. If one of
// them is new, added is set when the queue has been sent.
func queueShortLinks(q *pgx.Batch, links []link.Link, added *bool) {
	// A pause in the far future was written before the clock was set back.
	const sql = `
INSERT INTO short_links (link_id, resolve_at, guess)
SELECT l.id, greatest(now(), p.until), l.identity = ANY ($2) AND s.shortener_since IS NULL
FROM links AS l
LEFT JOIN paused_shorteners AS p ON p.site = l.site AND p.until <= now() + interval '1 hour'
LEFT JOIN shorteners AS s ON s.site = l.site
WHERE l.identity = ANY ($1)
    AND (l.identity <> ALL ($2) OR s.site IS NULL OR s.shortener_since IS NOT NULL OR s.asked < $3 OR s.asked_at < now() - $4::interval)
ORDER BY l.id
ON CONFLICT (link_id) DO NOTHING`
	short, guesses := pgtype.FlatArray[string]{}, pgtype.FlatArray[string]{}
	for i := range links {
		if links[i].Short || links[i].MayShort {
			short = append(short, links[i].Identity)
		}
		if links[i].MayShort {
			guesses = append(guesses, links[i].Identity)
		}
	}
	if len(short) > 0 {
		q.Queue(sql, short, guesses, guessesAtMost, guessAgain).Exec(func(done pgconn.CommandTag) error {
			*added = *added || done.RowsAffected() > 0
			return nil
		})
	}
}

// DueShortLinks returns at most limit short links that must be resolved now.
func DueShortLinks(ctx context.Context, db schema.DB, limit int) ([]ShortLink, error) {
	const sql = `
SELECT l.id, l.url, s.tries, l.site, s.guess
FROM (SELECT s.link_id, s.resolve_at, s.tries, s.guess FROM short_links AS s WHERE s.resolve_at <= clock_timestamp()
    ORDER BY s.resolve_at, s.link_id LIMIT $1) AS s
JOIN links AS l ON l.id = s.link_id
ORDER BY s.resolve_at, s.link_id`
	return schema.All(ctx, db, "choose the short links to resolve", pgx.RowToStructByPos[ShortLink], sql, limit)
}

// PauseShortener postpones all links of a shortener.
func PauseShortener(ctx context.Context, db schema.Batcher, site string, wait time.Duration) error {
	q := &pgx.Batch{}
	q.Queue(`
INSERT INTO paused_shorteners (site, until) VALUES ($1, now() + $2::interval)
ON CONFLICT (site) DO UPDATE SET until = excluded.until`, site, wait)
	q.Queue(`
UPDATE short_links AS s SET resolve_at = now() + $2::interval
FROM (
    SELECT s.link_id FROM short_links AS s JOIN links AS l ON l.id = s.link_id WHERE l.site = $1 AND s.resolve_at < now() + $2::interval
    ORDER BY s.link_id FOR UPDATE OF s
) AS due
WHERE s.link_id = due.link_id`, site, wait)
	return schema.Send(ctx, db, fmt.Sprintf("leave %s alone", site), q)
}

// MayGuess reports whether another link of a site may be asked that is not known as a shortener.
func MayGuess(ctx context.Context, db schema.DB, site string) (bool, error) {
	const sql = `
SELECT NOT EXISTS (SELECT FROM shorteners
    WHERE site = $1 AND shortener_since IS NULL AND asked >= $2 AND asked_at >= now() - $3::interval)`
	return schema.One(ctx, db, "look up a site that may be a shortener", pgx.RowTo[bool], sql, site, guessesAtMost, guessAgain)
}

// RecordGuess stores where a link of a site leads that may be a shortener: to a link of another site,
// or "". It reports whether the site is one. If it just became one, its other links are asked too.
func RecordGuess(ctx context.Context, tx pgx.Tx, site, identity string) (isShortener bool, err error) {
	const record = `
INSERT INTO shorteners AS s (site, asked, asked_at, targets) VALUES ($1, 1, now(), array_remove(ARRAY[$2::text], ''))
ON CONFLICT (site) DO UPDATE
SET asked = CASE WHEN s.asked_at < now() - $4::interval THEN 1 ELSE s.asked + 1 END, asked_at = now(),
    targets = array_remove(array_append(array_remove(s.targets, $2), $2), ''),
    shortener_since = CASE WHEN cardinality(array_append(array_remove(s.targets, $2), $2)) >= $3 AND $2 <> ''
        THEN coalesce(s.shortener_since, now()) ELSE s.shortener_since END
RETURNING shortener_since IS NOT NULL`
	const others = `
UPDATE short_links AS s SET guess = false, resolve_at = now(), tries = 0
FROM (SELECT s.link_id FROM short_links AS s JOIN links AS l ON l.id = s.link_id WHERE l.site = $1 AND s.guess
    ORDER BY s.link_id FOR UPDATE OF s) AS of
WHERE s.link_id = of.link_id`
	if isShortener, err = schema.One(ctx, tx, "store where a link leads", pgx.RowTo[bool], record, site,
		schema.Text(identity), learnedAt, guessAgain); err != nil || !isShortener {
		return isShortener, err
	}
	if _, err := tx.Exec(ctx, others, site); err != nil {
		return isShortener, fmt.Errorf("have the links of a new shortener resolved: %w", err)
	}
	return isShortener, nil
}

// ResolveShortLink stores where a short link leads and merges it into that link. It adds
// that link if nobody shares it. A merge that somebody has undone stays undone.
func ResolveShortLink(ctx context.Context, tx pgx.Tx, short ShortLink, to link.Link, now time.Time) error {
	if err := waitForMerges(ctx, tx); err != nil { // before links are locked
		return err
	}
	if _, err := mergeInto(ctx, tx, to, Merge{Link: short.ID, Why: Redirected, Now: now}); err != nil {
		return err
	}
	return StoreShortLinkOutcome(ctx, tx, short, to.URL, nil)
}

// StoreShortLinkOutcome stores where a short link leads, or why that is not known, and after how long
// it is resolved again; nil: never.
func StoreShortLinkOutcome(ctx context.Context, db schema.DB, short ShortLink, outcome string, again *time.Duration) error {
	const sql = `
UPDATE short_links
SET outcome = left($2, 2048), resolve_at = now() + $3::interval, tries = CASE WHEN $3::interval IS NULL THEN tries ELSE tries + 1 END
WHERE link_id = $1`
	return schema.Exec(ctx, db, "store the outcome of a short link", sql, short.ID, schema.Text(outcome), again)
}
