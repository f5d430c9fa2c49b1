package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

const (
	// LinksChannel is the channel that is notified when a link enters the top of a window.
	LinksChannel = "weir_links"
	// TopLinks is how many links belong to the top of a window.
	TopLinks = 50

	announceLock = 0x77656972746f70
)

// Announce notifies LinksChannel of every link in the top of a window that was not there at the
// last announcement, by any process. The top follows the counts, which are a second or two old.
// done is false if another process is announcing, if one did so less than interval ago, or if
// nothing is counted.
//
// A transaction that notifies waits at its commit for all others that do. So Announce uses its own
// transaction, and code that stores or processes records does not notify.
func Announce(ctx context.Context, pool *pgxpool.Pool, interval time.Duration) (announced int, done bool, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// If two processes announce, the one that locks first also compares with the later ranking:
		// it reads the ranking after the lock.
		const turn = `
INSERT INTO top_links_state AS s (announced_at)
SELECT now() FROM (SELECT pg_try_advisory_xact_lock($1) AS locked) AS l
WHERE l.locked AND EXISTS (SELECT FROM count_state AS s WHERE s.members_only = EXISTS (SELECT FROM watches))
ON CONFLICT (one) DO UPDATE SET announced_at = excluded.announced_at
WHERE s.announced_at NOT BETWEEN now() - $2::interval AND now()
RETURNING true`
		done, err = schema.One(ctx, tx, "begin to announce links", pgx.RowTo[bool], turn, int64(announceLock), interval)
		if errors.Is(err, schema.ErrNoRows) {
			done = false
			return nil
		}
		if err != nil {
			return err
		}
		announced, err = announce(ctx, tx, pool)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("announce links: %w", err)
	}
	return announced, done, nil
}

func announce(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool) (int, error) {
	var spans pgtype.FlatArray[string]
	var links pgtype.FlatArray[int64]
	if err := topCounted(ctx, pool, TopLinks, func(w Window, link int64) {
		spans, links = append(spans, w.Name), append(links, link)
	}); err != nil {
		return 0, err
	}
	const compare = `
WITH top AS (
    SELECT t.span, t.link_id FROM unnest($1::text[], $2::bigint[]) AS t (span, link_id)
), left_top AS (
    DELETE FROM top_links AS o WHERE NOT EXISTS (SELECT FROM top AS t WHERE t.span = o.span AND t.link_id = o.link_id)
), entered AS (
    INSERT INTO top_links (span, link_id)
    SELECT t.span, t.link_id FROM top AS t WHERE NOT EXISTS (SELECT FROM top_links AS o WHERE o.span = t.span AND o.link_id = t.link_id)
    RETURNING span, link_id
)
SELECT count(pg_notify($3, json_build_object('window', e.span, 'id', e.link_id, 'url', l.url)::text))
FROM entered AS e
JOIN links AS l ON l.id = e.link_id`
	return schema.One(ctx, tx, "compare the top links", pgx.RowTo[int], compare, spans, links, LinksChannel)
}
