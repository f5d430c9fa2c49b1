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

// Difference is a count that differs from the ledger.
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

// Check compares sharers with the ledger, the counts and claim_votes with sharers, and the
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
	err = snapshot(ctx, db, func(tx pgx.Tx) error { done, err = checkIn(ctx, tx, links, found); return err })
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
	if err := checkSharers(ctx, tx, s, read.changes, links, found); err != nil {
		return done, err
	}
	for _, network := range []Network{BothNetworks, Nostr} {
		if err := checkCounts(ctx, tx, network, s, links, found); err != nil {
			return done, err
		}
	}
	return done, checkVotes(ctx, tx, s, read.changes, links, found)
}

// checkSharers compares sharers with the ledger. It ignores dates before the longest
// window, because their shares may have expired.
func checkSharers(ctx context.Context, tx pgx.Tx, s state, c changes, links []int64, found func(Difference)) error {
	sql := `
WITH truth AS MATERIALIZED (` + everySharer(among("s.link_id", 2, links)) + `), kept AS MATERIALIZED (
    SELECT f.did, f.link_id, f.at,
           CASE WHEN f.post_at > $1 THEN f.post_at END     AS post_at,
           CASE WHEN f.quote_at > $1 THEN f.quote_at END   AS quote_at,
           CASE WHEN f.repost_at > $1 THEN f.repost_at END AS repost_at
    FROM sharers AS f
    WHERE f.at > $1 AND ` + among("f.link_id", 2, links) + `
)
SELECT coalesce(k.link_id, t.link_id), coalesce(k.did, t.did),
       CASE WHEN k.did IS NULL THEN '' ELSE jsonb_build_object('at', k.at, 'post', k.post_at, 'quote', k.quote_at, 'repost', k.repost_at)::text END,
       CASE WHEN t.did IS NULL THEN '' ELSE jsonb_build_object('at', t.at, 'post', t.post_at, 'quote', t.quote_at, 'repost', t.repost_at)::text END
FROM kept AS k
FULL JOIN truth AS t ON t.did = k.did AND t.link_id = k.link_id
WHERE (k.at, k.post_at, k.quote_at, k.repost_at) IS DISTINCT FROM (t.at, t.post_at, t.quote_at, t.repost_at)
ORDER BY 1, 2`
	return differences(ctx, tx, func(d Difference) {
		if _, pending := c[sharing{d.Link, d.DID}]; !pending {
			found(d)
		}
	}, sql, later(s.KeptFrom, s.AsOf.Add(-LongestWindow)), links)
}

// checkCounts compares the counts of a network with sharers.
func checkCounts(ctx context.Context, tx pgx.Tx, network Network, s state, links []int64, found func(Difference)) error {
	const fields = `CASE WHEN %[1]s.link_id IS NULL THEN '' ELSE jsonb_build_object('sharers', %[1]s.sharers, '1h', %[1]s.in_1h, '3h', %[1]s.in_3h, '6h', %[1]s.in_6h, '12h', %[1]s.in_12h,
        '24h', %[1]s.in_24h, '7d', %[1]s.in_7d, 'last', %[1]s.last_at)::text END`
	sql := `
WITH truth AS MATERIALIZED (` + everyCount(among("f.link_id", 2, links)+` AND`+network.has("f.did")) + `), kept AS MATERIALIZED (
    SELECT c.* FROM ` + network.counts() + ` AS c WHERE ` + among("c.link_id", 2, links) + `
)
SELECT coalesce(k.link_id, t.link_id), '', ` + fmt.Sprintf(fields, "k") + `, ` + fmt.Sprintf(fields, "t") + `
FROM kept AS k
FULL JOIN truth AS t ON t.link_id = k.link_id
WHERE (k.sharers, k.in_1h, k.in_3h, k.in_6h, k.in_12h, k.in_24h, k.in_7d, k.last_at)
      IS DISTINCT FROM (t.sharers, t.in_1h, t.in_3h, t.in_6h, t.in_12h, t.in_24h, t.in_7d, t.last_at)
ORDER BY 1`
	return differences(ctx, tx, func(d Difference) {
		d.Network = network
		found(d)
	}, sql, s.AsOf, links)
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
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("check the counts: %w", err)
	}
	var d Difference
	if _, err := pgx.ForEachRow(rows, []any{&d.Link, &d.DID, &d.Kept, &d.Expected}, func() error { found(d); return nil }); err != nil {
		return fmt.Errorf("check the counts: %w", err)
	}
	return nil
}

// Overtaken reports whether a transaction failed because another one committed after its
// snapshot. A repeated transaction sees that commit.
func Overtaken(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "40001"
}
