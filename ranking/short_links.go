package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// ShortLink is a link of a shortener whose target must be looked up.
type ShortLink struct {
	ID    int64
	URL   string
	Tries int // number of failed requests
}

// queueShortLinks stores which of the links are short, after they were added. If one of
// them is new, added is set when the queue has been sent.
func queueShortLinks(q *pgx.Batch, shares []Share, now time.Time, added *bool) {
	// A pause in the far future was written by a clock that was ahead.
	const sql = `
INSERT INTO short_links (link_id, resolve_at)
SELECT l.id, greatest($2::timestamptz, p.until)
FROM links AS l
LEFT JOIN paused_shorteners AS p ON p.site = l.site AND p.until <= $2::timestamptz + interval '1 hour'
WHERE l.identity = ANY ($1)
ORDER BY l.id
ON CONFLICT (link_id) DO NOTHING`
	var short pgtype.FlatArray[string]
	for i := range shares {
		if shares[i].Short {
			short = append(short, shares[i].Identity)
		}
	}
	if len(short) > 0 {
		q.Queue(sql, short, now).Exec(func(done pgconn.CommandTag) error {
			*added = *added || done.RowsAffected() > 0
			return nil
		})
	}
}

// DueShortLinks returns at most limit short links that must be resolved at now.
func DueShortLinks(ctx context.Context, db schema.DB, now time.Time, limit int) ([]ShortLink, error) {
	const sql = `
SELECT l.id, l.url, s.tries
FROM (SELECT s.link_id, s.resolve_at, s.tries FROM short_links AS s WHERE s.resolve_at <= $1 ORDER BY s.resolve_at, s.link_id LIMIT $2) AS s
JOIN links AS l ON l.id = s.link_id
ORDER BY s.resolve_at, s.link_id`
	return schema.All(ctx, db, "choose the short links to resolve", pgx.RowToStructByPos[ShortLink], sql, now, limit)
}

// PauseShortener postpones all links of a shortener until a time.
func PauseShortener(ctx context.Context, db batcher, site string, until time.Time) error {
	q := &pgx.Batch{}
	q.Queue(`INSERT INTO paused_shorteners (site, until) VALUES ($1, $2) ON CONFLICT (site) DO UPDATE SET until = excluded.until`, site, until)
	q.Queue(`
UPDATE short_links AS s SET resolve_at = $2
FROM (
    SELECT s.link_id FROM short_links AS s JOIN links AS l ON l.id = s.link_id WHERE l.site = $1 AND s.resolve_at < $2 ORDER BY s.link_id FOR UPDATE OF s
) AS due
WHERE s.link_id = due.link_id`, site, until)
	if err := db.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("leave %s alone: %w", site, err)
	}
	return nil
}

// ResolveShortLink stores where a short link leads and merges it into that link. It adds
// that link if nobody shares it. A merge that somebody has undone stays undone.
func ResolveShortLink(ctx context.Context, tx pgx.Tx, short ShortLink, to Share, now time.Time) error {
	if err := waitForMerges(ctx, tx); err != nil { // before links are locked
		return err
	}
	q := &pgx.Batch{}
	queueLinks(q, []Share{to}, now)
	var into int64
	q.Queue(`SELECT l.id FROM links AS l WHERE l.identity = $1 FOR KEY SHARE`, to.Identity).QueryRow(func(row pgx.Row) error { return row.Scan(&into) })
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("add the link to which a short link leads: %w", err)
	}
	err := MergeLinks(ctx, tx, Merge{Link: short.ID, Into: into, Why: Redirected, Now: now})
	var elsewhere *MergedError
	if err != nil && !errors.As(err, &elsewhere) && !errors.Is(err, ErrSplit) {
		return err
	}
	return StoreShortLinkOutcome(ctx, tx, short, to.URL, nil)
}

// StoreShortLinkOutcome stores where a short link leads, or why that is not known, and when it is
// resolved again; nil: never.
func StoreShortLinkOutcome(ctx context.Context, db schema.DB, short ShortLink, outcome string, again *time.Time) error {
	const sql = `UPDATE short_links SET outcome = left($2, 2048), resolve_at = $3, tries = CASE WHEN $3::timestamptz IS NULL THEN tries ELSE tries + 1 END WHERE link_id = $1`
	if _, err := db.Exec(ctx, sql, short.ID, schema.Text(outcome), again); err != nil {
		return fmt.Errorf("store the outcome of a short link: %w", err)
	}
	return nil
}
