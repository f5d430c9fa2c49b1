package ranking

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// archivedMerge is a row of link_merges in the archive.
type archivedMerge struct {
	Identity  string     `json:"identity"`
	URL       string     `json:"url"`
	Site      string     `json:"site"`
	First     time.Time  `json:"first_seen"`
	Into      string     `json:"into_identity"`
	IntoURL   string     `json:"into_url"`
	IntoSite  string     `json:"into_site"`
	IntoFirst time.Time  `json:"into_first_seen"`
	Why       string     `json:"why"`
	MergedAt  time.Time  `json:"merged_at"`
	SplitAt   *time.Time `json:"split_at"`
}

// MergesSnapshot returns how the merges are archived: with the links themselves, because
// every database numbers its own.
func MergesSnapshot() schema.SnapshotTable {
	return schema.SnapshotTable{Name: "link_merges", Restore: restoreMerges, Read: `
SELECT to_jsonb(k) FROM (
    SELECT l.identity, l.url, l.site, l.first_seen, i.identity AS into_identity, i.url AS into_url, i.site AS into_site,
        i.first_seen AS into_first_seen,
           m.why, m.merged_at, m.split_at
    FROM link_merges AS m JOIN links AS l ON l.id = m.link_id JOIN links AS i ON i.id = m.into_id
    ORDER BY m.merged_at, l.identity
) AS k`}
}

// restoreMerges merges and splits the links of a database as the archive says, in the
// order in which they were merged. It adds links that are missing: a post that is fetched
// later may name them, and they expire otherwise.
func restoreMerges(ctx context.Context, pool *pgxpool.Pool, rows []json.RawMessage) error {
	for _, row := range rows {
		var m archivedMerge
		if err := json.Unmarshal(row, &m); err != nil {
			return fmt.Errorf("read an archived merge: %w", err)
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return m.restore(ctx, tx) }); err != nil {
			return fmt.Errorf("restore the merge of %s: %w", m.Identity, err)
		}
	}
	return nil
}

func (m *archivedMerge) restore(ctx context.Context, tx pgx.Tx) error {
	if err := waitForMerges(ctx, tx); err != nil {
		return err
	}
	link, err := ensureLink(ctx, tx, m.Identity, m.URL, m.Site, m.First)
	if err != nil {
		return err
	}
	into, err := ensureLink(ctx, tx, m.Into, m.IntoURL, m.IntoSite, m.IntoFirst)
	if err != nil {
		return err
	}
	if m.SplitAt == nil {
		return MergeLinks(ctx, tx, Merge{Link: link, Into: into, Why: m.Why, Now: m.MergedAt})
	}
	const split = `
INSERT INTO link_merges (link_id, into_id, why, merged_at, split_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (link_id) DO NOTHING`
	return schema.Exec(ctx, tx, "restore a split", split, link, into, m.Why, m.MergedAt, m.SplitAt)
}

// ensureLink returns the id of a link, and adds it if it is missing.
func ensureLink(ctx context.Context, tx pgx.Tx, identity, url, site string, first time.Time) (int64, error) {
	if _, err := tx.Exec(ctx, insertLinks, []string{identity}, []string{url}, []string{site}, first); err != nil {
		return 0, fmt.Errorf("add the link: %w", err)
	}
	return schema.One(ctx, tx, "find the link", pgx.RowTo[int64], `SELECT id FROM links WHERE identity = $1`, identity)
}
