package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-social/weir/schema"
)

// Difference is a count that differs from the shares.
type Difference struct {
	Link     int64
	DID      string // for a row of sharers; empty: for the counts
	Network  Network
	Kept     string // the stored row; empty: there is none
	Expected string // the result of a recount; empty: no row
}

// String returns the difference in one line.
func (d Difference) String() string {
	what := fmt.Sprintf("link %d", d.Link)
	if d.DID != "" {
		what += ", sharer " + d.DID
	}
	if d.Network != BothNetworks {
		what += " in " + string(d.Network)
	}
	for _, side := range []*string{&d.Kept, &d.Expected} {
		if *side == "" {
			*side = "nothing"
		}
	}
	return what + ": kept " + d.Kept + ", recounted " + d.Expected
}

// Checked says what a check compared.
type Checked struct {
	Pending bool // everything is waiting to be counted again: nothing was compared
	Sharers int  // rows that pending_counts asks for, and that were skipped: readers correct them
}

// Check compares sharers with the shares, the counts and claim_votes with sharers, and the
// headlines with claim_votes, all in one snapshot. It skips pending changes.
func Check(ctx context.Context, db Beginner, found func(Difference)) (Checked, error) {
	return check(ctx, db, nil, found)
}

// CheckSample compares the counts of n random links, and stores how many differ in
// count_checks.
func CheckSample(ctx context.Context, db DB, n int, now time.Time, found func(Difference)) (wrong int, err error) {
	const choose = `
SELECT DISTINCT l.id
FROM (SELECT (random() * m.last)::bigint AS id FROM (SELECT coalesce(max(id), 0) AS last FROM links) AS m, generate_series(1, $1)) AS r
CROSS JOIN LATERAL (SELECT l.id FROM links AS l WHERE l.id >= r.id ORDER BY l.id LIMIT 1) AS l`
	links, err := schema.All(ctx, db, "choose links", pgx.RowTo[int64], choose, n)
	if err != nil || len(links) == 0 {
		return 0, err
	}
	done, err := check(ctx, db, links, func(d Difference) {
		wrong++
		found(d)
	})
	if err != nil || done.Pending {
		return 0, err
	}
	const store = `
INSERT INTO count_checks (checked_at, links, wrong) VALUES ($1, $2, $3)
ON CONFLICT (one) DO UPDATE SET checked_at = excluded.checked_at, links = excluded.links, wrong = excluded.wrong`
	if _, err := db.Exec(ctx, store, now, len(links), wrong); err != nil {
		return wrong, fmt.Errorf("store the check of the counts: %w", err)
	}
	return wrong, nil
}

func check(ctx context.Context, db Beginner, links []int64, found func(Difference)) (done Checked, err error) {
	err = readOnlyTx(ctx, db, func(tx pgx.Tx) error { done, err = checkIn(ctx, tx, links, found); return err })
	if err != nil {
		return done, fmt.Errorf("check the counts: %w", err)
	}
	return done, nil
}

func checkIn(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) (done Checked, err error) {
	s, err := readState(ctx, tx)
	if err != nil {
		return done, err
	}
	rows, err := tx.Query(ctx, `SELECT `+pendingColumns+` FROM pending_counts`)
	if err != nil {
		return done, fmt.Errorf("read what is pending: %w", err)
	}
	p, _, err := distinct(rows)
	if err != nil {
		return done, fmt.Errorf("read what is pending: %w", err)
	}
	if !s.Counted || s.MembersOnly != s.Watching || p.everything {
		return Checked{Pending: true}, nil
	}
	read, err := readChanges(ctx, tx, p, s)
	if err != nil {
		return done, err
	}
	done.Sharers = len(read.changes)
	counted := func(d Difference) { // by now
		if _, pending := read.changes[sharing{d.Link, d.DID}]; !pending {
			found(d)
		}
	}
	for _, check := range []func() error{
		func() error { return checkSharers(ctx, tx, s, links, counted) },
		func() error { return checkCounts(ctx, tx, BothNetworks, s, links, found) },
		func() error { return checkCounts(ctx, tx, Nostr, s, links, found) },
		func() error { return checkVotes(ctx, tx, s, links, counted) },
		func() error { return checkSums(ctx, tx, links, found) },
		func() error { return checkWalls(ctx, tx, links, found) },
		func() error { return checkHeadlines(ctx, tx, links, found) },
	} {
		if err := check(); err != nil {
			return done, err
		}
	}
	return done, nil
}

// differ is a query of the rows that differ between two queries with the same columns and a key. did is the
// account of a row, if it has one; also is a further condition for a stored row k.
func differ(kept, truth, key, did, also string) string {
	return `
WITH k AS (` + kept + `), t AS (` + truth + `)
SELECT link_id, ` + did + `, coalesce(to_jsonb(k)::text, ''), coalesce(to_jsonb(t)::text, '')
FROM k FULL JOIN t USING (` + key + `)
WHERE k IS DISTINCT FROM t` + also + `
ORDER BY 1, 2`
}

// checkSharers compares sharers with the shares. It ignores dates before the longest
// window, because their shares may have expired.
func checkSharers(ctx context.Context, tx pgx.Tx, s state, links []int64, found func(Difference)) error {
	sql := differ(`
    SELECT f.did, f.link_id, f.at,
           CASE WHEN f.post_at > $1 THEN f.post_at END     AS post_at,
           CASE WHEN f.quote_at > $1 THEN f.quote_at END   AS quote_at,
           CASE WHEN f.repost_at > $1 THEN f.repost_at END AS repost_at
    FROM sharers AS f
    WHERE f.at > $1 AND `+among("f.link_id", 2, links), everySharer(among("s.link_id", 2, links)), "did, link_id", "did", "")
	return differences(ctx, tx, found, sql, later(s.KeptFrom, s.AsOf.Add(-LongestWindow)), links)
}

// checkCounts compares the counts of a network with sharers.
func checkCounts(ctx context.Context, tx pgx.Tx, network Network, s state, links []int64, found func(Difference)) error {
	sql := differ(`
    SELECT c.link_id, c.sharers, c.in_1h, c.in_3h, c.in_6h, c.in_12h, c.in_24h, c.in_7d, c.last_at
    FROM `+network.counts()+` AS c
    WHERE `+among("c.link_id", 2, links), everyCount(among("f.link_id", 2, links)+` AND`+network.has("f.did")), "link_id", "''", "")
	return differences(ctx, tx, func(d Difference) {
		d.Network = network
		found(d)
	}, sql, s.AsOf, links)
}

// checkVotes compares the votes in sharers with the shares. It ignores votes from before the longest window,
// because their shares may have expired.
func checkVotes(ctx context.Context, tx pgx.Tx, s state, links []int64, found func(Difference)) error {
	votes := func(of string) string {
		return `
    SELECT f.link_id, f.did, f.title_claim, f.title_at, f.title_key, f.url_claim, f.url_at, f.url_key FROM ` + of + ` AS f
    WHERE num_nonnulls(f.title_claim, f.url_claim) > 0`
	}
	kept := votes("sharers") + ` AND ` + among("f.link_id", 2, links)
	truth := `
    WITH own AS (` + ownPosts(among("s.link_id", 2, links)) + `),` + everyVote + votes("votes")
	sql := differ(kept, truth, "did, link_id", "did", ` AND coalesce(least(k.title_at, k.url_at) > $3, true)`)
	return differences(ctx, tx, found, sql, s.KeptFrom, links, s.AsOf.Add(-LongestWindow))
}

// checkSums compares claim_votes with sharers.
func checkSums(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) error {
	sql := differ(`
    SELECT v.claim_id, v.link_id, v.titles, v.title_at, v.title_from, v.urls, v.url_at, v.url_from
    FROM claim_votes AS v
    WHERE `+among("v.link_id", 1, links), sumOfVotes("sharers AS f WHERE "+among("f.link_id", 1, links)), "claim_id, link_id", "''", "")
	return differences(ctx, tx, found, sql, links)
}

// checkHeadlines compares the headlines with claim_votes. A link without votes for a title may
// keep its card. It skips links with a vote for a claim that has expired: the vote's share is
// gone, and the vote is pending.
func checkHeadlines(ctx context.Context, tx pgx.Tx, links []int64, found func(Difference)) error {
	sql := `
WITH v AS (
    SELECT v.* FROM claim_votes AS v WHERE ` + among("v.link_id", 1, links) + `
),` + chosen(1, links) + `
SELECT l.id, '',
    jsonb_build_object('url', l.url, 'site', l.site, 'title', l.title, 'description', l.description, 'image', l.image,
        'card_from', l.card_from)::text,
       jsonb_build_object('url', h.url, 'site', h.site, 'title', h.title, 'description', h.description, 'image', h.image,
           'card_from', h."from")::text
FROM chosen AS h
JOIN links AS l ON l.id = h.link
WHERE ` + headlineDiffers + `
  AND NOT EXISTS (SELECT FROM v WHERE v.link_id = l.id AND NOT EXISTS (SELECT FROM claims AS c WHERE c.id = v.claim_id))
ORDER BY 1`
	return differences(ctx, tx, found, sql, links)
}

// among is a condition: the link is one of those in parameter n. If links is empty, it is
// true for every link.
func among(column string, n int, links []int64) string {
	if links == nil {
		return fmt.Sprintf("$%d::bigint[] IS NULL", n)
	}
	return fmt.Sprintf("%s = ANY ($%d)", column, n)
}

func differences(ctx context.Context, tx pgx.Tx, found func(Difference), sql string, args ...any) error {
	var d Difference
	return schema.Each(ctx, tx, "compare", []any{&d.Link, &d.DID, &d.Kept, &d.Expected}, func() error { found(d); return nil }, sql, args...)
}

// Overtaken reports whether a transaction failed because another one committed after its
// snapshot. A repeated transaction sees that commit.
func Overtaken(err error) bool {
	failed, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failed.Code == "40001"
}
