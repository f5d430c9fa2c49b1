package ranking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/schema"
)

// A link that is merged into another counts as that one. links.counts_as names it, and the foreign
// key of shares changes their link_id with it. named_id stays the link that the record names, so a
// split restores everything. No other code knows of merges: the counter sees shares whose link has
// changed.

// mergeLock is the advisory lock for merging and splitting: each transaction reads what the others
// have merged.
const mergeLock = 0x776569726d7267

// The reasons of merges, as link_merges has them.
const (
	Redirected = "redirect"
	Canonical  = "canonical"
	ByHand     = "by hand"
)

// Merge states that a link is the same as another one.
type Merge struct {
	Link, Into int64
	Why        string // Redirected, Canonical or ByHand
	Now        time.Time
}

// MergedError means that a link is merged into another.
type MergedError struct {
	Link, Into int64
}

func (e *MergedError) Error() string {
	return fmt.Sprintf("link %d is merged into link %d", e.Link, e.Into)
}

// ErrNotMerged means that the link is not merged.
var ErrNotMerged = errors.New("the link is not merged into another")

// ErrSplit means that the link was split before. Only a person may merge it again.
var ErrSplit = errors.New("the link was split from another")

// MergeLinks merges a link, and all links that are merged into it, into another. If both already
// count as one, it does nothing. It returns ErrLink if one of them does not exist, a *MergedError
// if the link is merged elsewhere or the other is merged into it, and ErrSplit if the link was
// split before and the merge is not by hand.
func MergeLinks(ctx context.Context, tx pgx.Tx, m Merge) error {
	counts, err := lockMerges(ctx, tx, m.Link, m.Into)
	switch {
	case err != nil:
		return err
	case m.Link != m.Into && counts[m.Into] == m.Link:
		return &MergedError{m.Into, m.Link}
	case counts[m.Link] == counts[m.Into]:
		return nil
	case counts[m.Link] != m.Link:
		return &MergedError{m.Link, counts[m.Link]}
	}
	const store = `
INSERT INTO link_merges AS m (link_id, into_id, why, merged_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (link_id) DO UPDATE SET into_id = excluded.into_id, why = excluded.why, merged_at = excluded.merged_at, split_at = NULL
WHERE m.split_at IS NULL OR excluded.why = $5`
	done, err := tx.Exec(ctx, store, m.Link, m.Into, m.Why, m.Now, ByHand)
	if err != nil {
		return fmt.Errorf("store the merge: %w", err)
	}
	if done.RowsAffected() == 0 {
		return ErrSplit
	}
	// The link that takes its place inherits why it was kept.
	q := &pgx.Batch{}
	q.Queue(`UPDATE links SET merged_into = $2 WHERE id = $1 OR merged_into = $1`, m.Link, counts[m.Into])
	q.Queue(`
UPDATE links AS l SET kept_sharers = greatest(l.kept_sharers, m.kept_sharers), kept_at = greatest(l.kept_at, m.kept_at)
FROM links AS m WHERE m.id = $1 AND m.kept_at IS NOT NULL AND l.id = $2`, m.Link, counts[m.Into])
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("merge link %d into link %d: %w", m.Link, m.Into, err)
	}
	return refreshHeadlines(ctx, tx, m.Link, counts[m.Into])
}

// mergeInto merges a link into the link of an address, adds that if nobody shares it, and returns its id. A link
// that is merged elsewhere, or was split, stays as it is.
func mergeInto(ctx context.Context, tx pgx.Tx, to link.Link, m Merge) (into int64, err error) {
	q := &pgx.Batch{}
	queueLinks(q, []link.Link{to}, m.Now)
	q.Queue(`
SELECT l.id FROM links AS l
WHERE l.identity = $1 FOR KEY SHARE`, to.Identity).QueryRow(func(row pgx.Row) error { return row.Scan(&m.Into) })
	if err := schema.Send(ctx, tx, "add the link to which another one leads", q); err != nil {
		return 0, err
	}
	err = MergeLinks(ctx, tx, m)
	var elsewhere *MergedError
	if errors.As(err, &elsewhere) || errors.Is(err, ErrSplit) {
		err = nil
	}
	return m.Into, err
}

// SplitLink undoes the merge of a link into another: the link counts by itself again, with the
// links that were merged into it. It returns ErrLink or ErrNotMerged.
func SplitLink(ctx context.Context, tx pgx.Tx, link int64, now time.Time) error {
	counts, err := lockMerges(ctx, tx, link)
	if err != nil {
		return err
	}
	done, err := tx.Exec(ctx, `UPDATE link_merges SET split_at = $2 WHERE link_id = $1 AND split_at IS NULL`, link, now)
	if err != nil {
		return fmt.Errorf("undo the merge: %w", err)
	}
	if done.RowsAffected() == 0 {
		return ErrNotMerged
	}
	const split = `
WITH RECURSIVE members AS (
    SELECT $1::bigint AS id
    UNION
    SELECT m.link_id FROM members AS o JOIN link_merges AS m ON m.into_id = o.id WHERE m.split_at IS NULL
)
UPDATE links AS l SET merged_into = nullif($1, l.id) FROM members AS m WHERE l.id = m.id`
	if _, err := tx.Exec(ctx, split, link); err != nil {
		return fmt.Errorf("split link %d: %w", link, err)
	}
	return refreshHeadlines(ctx, tx, link, counts[link])
}

// lockMerges keeps other transactions from merging the links, and the links from expiring, until
// the transaction ends. It returns the link as which each counts, or ErrLink if a link does not
// exist.
func lockMerges(ctx context.Context, tx pgx.Tx, links ...int64) (counts map[int64]int64, err error) {
	if err := waitForMerges(ctx, tx); err != nil {
		return nil, err
	}
	counts = map[int64]int64{}
	for _, id := range links {
		as, err := schema.One(ctx, tx, "read as what the link counts", pgx.RowTo[int64],
			`SELECT counts_as FROM links WHERE id = $1 FOR KEY SHARE`, id)
		if errors.Is(err, schema.ErrNoRows) {
			return nil, fmt.Errorf("link %d: %w", id, ErrLink)
		}
		if err != nil {
			return nil, err
		}
		counts[id] = as
	}
	return counts, nil
}

// waitForMerges waits until no other transaction merges, and blocks others until the transaction
// ends. Call it before adding or locking links. Otherwise the transaction waits while holding these
// locks, and everyone who shares these links waits too: a merge takes time proportional to its
// shares.
func waitForMerges(ctx context.Context, tx pgx.Tx) error {
	return schema.Exec(ctx, tx, "wait for other merges", `SELECT pg_advisory_xact_lock($1)`, int64(mergeLock))
}

// MergedLink is a link that is merged into another.
type MergedLink struct {
	ID       int64     `json:"id"`
	URL      string    `json:"url"`
	Into     int64     `json:"into"` // the link itself, or another link that is merged into it
	Why      string    `json:"why"`
	MergedAt time.Time `json:"merged_at"`
}

// mergedInto returns the links that are merged into a link, the latest first.
func mergedInto(ctx context.Context, db schema.DB, link int64) ([]MergedLink, error) {
	const sql = `
SELECT l.id, l.url, m.into_id, m.why, m.merged_at
FROM links AS l
JOIN link_merges AS m ON m.link_id = l.id
WHERE l.merged_into = $1
ORDER BY m.merged_at DESC, l.id DESC
LIMIT 100`
	return schema.All(ctx, db, "read which links are merged", pgx.RowToStructByPos[MergedLink], sql, link)
}
