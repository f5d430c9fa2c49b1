package ranking

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// The pages of links that enough accounts share are fetched. The counter decides which, in
// the transaction that counts the links. The primary key of cards limits this to one fetch
// per link. All times are by the database's clock.

// The limits of fetches, over all processes.
const (
	CardsPerHour = 1000
	CardsAtOnce  = 2
	CardTries    = 4 // the first attempt and three more

	fetchedAt         = 5 // sharers: the page is fetched, whatever titles they give
	fetchedUntitledAt = 2 // sharers: the page is fetched if none of them gives a title, or if there are variants of the link

	mostVariants = 3 // of a link, for each reason, that are looked at

	cardLock  = 0x77656972637264
	cardLease = time.Minute // after this time a fetch is no longer waited for; longer than any fetch
)

// wantedColumns holds links that several accounts share, as columns.
type wantedColumns struct {
	links   pgtype.FlatArray[int64]
	sharers pgtype.FlatArray[int16]
}

func (c *wantedColumns) add(link int64, sharers int) {
	switch {
	case sharers >= fetchedAt:
		c.links, c.sharers = append(c.links, link), append(c.sharers, fetchedAt)
	case sharers >= fetchedUntitledAt:
		c.links, c.sharers = append(c.links, link), append(c.sharers, fetchedUntitledAt)
	}
}

// addTitled adds links that got a title, whose sharers and those of a variant are enough together.
func (c *wantedColumns) addTitled(links []int64) {
	for _, link := range links {
		c.links, c.sharers = append(c.links, link), append(c.sharers, 1)
	}
}

// variantsOf is a query of pairs of the links k and others that may be the same articles, which their
// pages say: a sharer or the page of another link of the site gives the same title, or the path ends
// with the same name of an article.
func variantsOf(k string) string {
	most := ` LIMIT ` + strconv.Itoa(mostVariants)
	titled := `
    FROM ` + k + ` JOIN claim_votes AS v ON v.link_id = k.link_id AND v.titles > 0 AND NOT` + isWall("v") + `
    CROSS JOIN LATERAL `
	return `
    SELECT k.link_id,
        o.link_id AS other` + titled + `(SELECT o.link_id FROM claim_votes AS o
            WHERE o.title_group = v.title_group AND o.link_id <> v.link_id AND o.titles > 0` + most + `) AS o
    UNION
    SELECT k.link_id,
        m.counts_as` + titled + `(SELECT c.link_id FROM cards AS c
            WHERE c.title_group = v.title_group AND c.link_id <> v.link_id AND c.status = ''` + most + `) AS c
    JOIN links AS m ON m.id = c.link_id AND m.counts_as <> k.link_id
    UNION
    SELECT k.link_id, o.counts_as
    FROM ` + k + ` JOIN links AS l ON l.id = k.link_id AND ` + namesArticle("l") + `
    CROSS JOIN LATERAL (SELECT o.counts_as FROM links AS o
        WHERE ` + lastPart("o") + ` = ` + lastPart("l") + ` AND ` + namesArticle("o") + ` AND o.site = l.site
            AND o.counts_as <> l.id` + most + `) AS o`
}

// wantCards returns the statement that adds the links of some rows, and variants of them, to cards if
// they qualify. It locks them. If a link was deleted or merged after the counter's snapshot, the
// counter's step fails and is repeated.
func wantCards(rows string) string {
	return `
WITH k AS (` + rows + `), variants AS (` + variantsOf("k") + `
), wanted AS (
    SELECT a.link_id, max(a.sharers) AS sharers
    FROM (
        SELECT k.link_id, k.sharers FROM k
        WHERE (k.sharers >= ` + strconv.Itoa(fetchedAt) + ` OR k.link_id IN (SELECT a.link_id FROM variants AS a)
               OR k.sharers >= ` + strconv.Itoa(fetchedUntitledAt) + `
                   AND NOT EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = k.link_id AND v.titles > 0 AND NOT` + isWall("v") + `))
          AND NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = k.link_id AND (c.fetch_at IS NULL OR c.sharers >= k.sharers))
        UNION ALL
        SELECT a.other, coalesce((SELECT ` + strconv.Itoa(fetchedUntitledAt) + ` FROM link_counts AS n WHERE n.link_id = a.other), 1)
        FROM variants AS a WHERE NOT EXISTS (SELECT FROM cards AS c WHERE c.link_id = a.other)
    ) AS a
    GROUP BY a.link_id
)
INSERT INTO cards AS c (link_id, sharers, fetch_at)
SELECT l.id, w.sharers, now()
FROM (SELECT * FROM wanted ORDER BY link_id) AS w
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.id = w.link_id AND l.merged_into IS NULL LIMIT 1 FOR KEY SHARE) AS l
ON CONFLICT (link_id) DO UPDATE SET sharers = greatest(c.sharers, excluded.sharers)`
}

// queueCards queues the statements that add links to cards, after their votes.
func queueCards(q *pgx.Batch, of wantedColumns) {
	if len(of.links) > 0 {
		q.Queue(wantCards(`SELECT * FROM unnest($1::bigint[], $2::smallint[]) AS k (link_id, sharers)`), of.links, of.sharers)
	}
}

// queueEveryCard queues the same for all counted links.
func queueEveryCard(q *pgx.Batch) {
	sharers := fmt.Sprintf(`CASE WHEN n.sharers >= %[1]d THEN %[1]d ELSE %[2]d END::smallint`, fetchedAt, fetchedUntitledAt)
	q.Queue(wantCards(`SELECT n.link_id, ` + sharers + ` AS sharers FROM link_counts AS n`))
}

// CardsDue reports whether a page must be fetched now, and the hour's fetches are not used up.
func CardsDue(ctx context.Context, db schema.DB) (bool, error) {
	return schema.One(ctx, db, "look for pages to fetch", pgx.RowTo[bool], `
SELECT EXISTS (SELECT FROM cards AS c WHERE `+dueCard+`)
   AND (SELECT count(*) FROM card_fetches AS f WHERE f.started_at > clock_timestamp() - interval '1 hour') < $1`, CardsPerHour)
}

// CardFetch is a fetch that has started.
type CardFetch struct {
	ID   int64 // in card_fetches
	Link int64
	URL  string
	Try  int // 1: the first attempt
}

// StartCardFetch starts the fetch that is most urgent: that of the link with the most sharers
// or, among equals, of the latest link. It returns nil if no fetch may start. wait is then 0
// if nothing is due or the hour's fetches are used up, and otherwise how long to wait.
func StartCardFetch(ctx context.Context, pool Beginner) (started *CardFetch, wait time.Duration, err error) {
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(cardLock)); err != nil {
			return err
		}
		room, err := roomForCards(ctx, tx)
		if err != nil || room == 0 {
			return err
		}
		if room < 0 {
			wait = cardPause
			return nil
		}
		for started == nil {
			due, unwanted, err := nextCard(ctx, tx)
			if errors.Is(err, schema.ErrNoRows) {
				wait, err = cardsWait(ctx, tx)
				return err
			}
			if err != nil {
				return err
			}
			if unwanted {
				if err := forgetCard(ctx, tx, due); err != nil {
					return err
				}
				continue
			}
			started = &due
		}
		return startCard(ctx, tx, started)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("start the fetch of a page: %w", err)
	}
	return started, wait, nil
}

// cardPause is how long to wait for another fetch to end, or for the turn of a host.
const cardPause = 250 * time.Millisecond

// roomForCards returns how many more fetches may start in this hour, or -1 if some may start
// as soon as another ends.
func roomForCards(ctx context.Context, tx pgx.Tx) (int, error) {
	q := &pgx.Batch{}
	q.Queue(`
DELETE FROM card_fetches WHERE started_at NOT BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp() + interval '1 hour'`)
	q.Queue(`
DELETE FROM card_hosts WHERE next_at NOT BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'`)
	var hour, running int
	q.Queue(`
SELECT count(*),
    count(*) FILTER (WHERE f.ended_at IS NULL AND f.started_at BETWEEN clock_timestamp() - $1::interval
        AND clock_timestamp() + $1::interval)
FROM card_fetches AS f`, cardLease).QueryRow(func(row pgx.Row) error { return row.Scan(&hour, &running) })
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return 0, err
	}
	if hour < CardsPerHour && running >= CardsAtOnce {
		return -1, nil
	}
	return max(0, CardsPerHour-hour), nil
}

// dueCard is a condition: the page of c must be fetched now. A first fetch is due even if the
// clock was set since it was requested. So is one that is due in more than a day.
const dueCard = `c.fetch_at IS NOT NULL AND (c.tries = 0 OR c.fetch_at NOT BETWEEN now() AND now() + interval '1 day')`

// hostOfURL is the SQL expression for the host of l.url.
const hostOfURL = `split_part(split_part(l.url, '/', 3), ':', 1)`

// nextCard returns the most urgent page of a host that may be asked now. unwanted is true if
// the link now counts as another one, or if a sharer has given a title meanwhile and no
// variant is known.
func nextCard(ctx context.Context, tx pgx.Tx) (due CardFetch, unwanted bool, err error) {
	sql := `
SELECT c.link_id, l.url, c.tries + 1,
       l.merged_into IS NOT NULL OR c.sharers < $1 AND c.tries = 0
         AND NOT EXISTS (` + variantsOf(`(SELECT c.link_id) AS k`) + `)
         AND EXISTS (SELECT FROM claim_votes AS v WHERE v.link_id = c.link_id AND v.titles > 0 AND NOT` + isWall("v") + `)
FROM cards AS c
JOIN links AS l ON l.id = c.link_id
WHERE ` + dueCard + ` AND NOT EXISTS (SELECT FROM card_hosts AS h WHERE h.host = ` + hostOfURL + ` AND h.next_at > clock_timestamp())
ORDER BY c.sharers DESC, c.fetch_at DESC
LIMIT 1
FOR UPDATE OF c SKIP LOCKED`
	due, err = schema.One(ctx, tx, "choose the page to fetch", func(row pgx.CollectableRow) (f CardFetch, err error) {
		return f, row.Scan(&f.Link, &f.URL, &f.Try, &unwanted)
	}, sql, fetchedAt)
	return due, unwanted, err
}

// cardsWait returns how long to wait for the turn of a host; 0: nothing is due.
func cardsWait(ctx context.Context, tx pgx.Tx) (wait time.Duration, err error) {
	due, err := schema.One(ctx, tx, "look for pages to fetch", pgx.RowTo[bool], `SELECT EXISTS (SELECT FROM cards AS c WHERE `+dueCard+`)`)
	if due {
		wait = cardPause
	}
	return wait, err
}

// forgetCard cancels the fetch of a page. The counter may request it again if it was never
// fetched.
func forgetCard(ctx context.Context, tx pgx.Tx, due CardFetch) error {
	q := &pgx.Batch{}
	q.Queue(`DELETE FROM cards WHERE link_id = $1 AND tries = 0`, due.Link)
	q.Queue(`UPDATE cards SET fetch_at = NULL WHERE link_id = $1`, due.Link)
	return tx.SendBatch(ctx, q).Close()
}

// startCard records a start. If the process dies, the next attempt comes after the lease.
func startCard(ctx context.Context, tx pgx.Tx, f *CardFetch) error {
	q := &pgx.Batch{}
	q.Queue(`
UPDATE cards SET tries = $2, fetch_at = CASE WHEN $2 < $3::int THEN now() + 2 * $4::interval END
WHERE link_id = $1`, f.Link, f.Try, CardTries, cardLease)
	q.Queue(`INSERT INTO card_fetches (link_id) VALUES ($1) RETURNING id`, f.Link).QueryRow(func(row pgx.Row) error { return row.Scan(&f.ID) })
	return tx.SendBatch(ctx, q).Close()
}

// EndCardFetch records the end of a fetch, so that another may start.
func EndCardFetch(ctx context.Context, db schema.DB, f CardFetch) error {
	return schema.Exec(ctx, db, "end the fetch of a page", `UPDATE card_fetches SET ended_at = clock_timestamp() WHERE id = $1`, f.ID)
}

// InterruptCardFetch puts back a fetch that ended with its process. It does not count as an
// attempt.
func InterruptCardFetch(ctx context.Context, db schema.DB, f CardFetch) error {
	return schema.Exec(ctx, db, "put back the fetch of a page",
		`UPDATE cards SET tries = tries - 1, fetch_at = now() WHERE link_id = $1 AND tries = $2`, f.Link, f.Try)
}

// FailCardFetch stores why a page could not be read. The next attempt comes after again; 0:
// never.
func FailCardFetch(ctx context.Context, db schema.DB, f CardFetch, why string, again time.Duration) error {
	const sql = `
UPDATE cards
SET status = left($3, 300), fetched_at = now(), fetch_at = CASE WHEN $4::interval > interval '0' AND tries < $5
    THEN now() + $4::interval END
WHERE link_id = $1 AND tries = $2`
	return schema.Exec(ctx, db, "store why a page could not be read", sql, f.Link, f.Try, schema.Text(why), again, CardTries)
}

// TakeHostTurn reserves the start of a request to a host, and returns how long to wait for
// it. All processes together start requests at least spacing apart.
func TakeHostTurn(ctx context.Context, db schema.DB, host string, spacing time.Duration) (time.Duration, error) {
	// A turn in the far future was reserved before the clock was set back.
	const sql = `
INSERT INTO card_hosts AS h (host, next_at) VALUES (left($1, 253), clock_timestamp() + $2::interval)
ON CONFLICT (host) DO UPDATE
SET next_at = CASE WHEN h.next_at < clock_timestamp() + interval '1 minute' THEN greatest(h.next_at, clock_timestamp())
    ELSE clock_timestamp() END + $2::interval
RETURNING h.next_at - $2::interval - clock_timestamp()`
	return schema.One(ctx, db, "wait for the turn of "+host, pgx.RowTo[time.Duration], sql, schema.Text(host), spacing)
}
