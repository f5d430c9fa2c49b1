package ranking

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// archivedMerge is a row of link_merges in the archive.
type archivedMerge struct {
	Identity  string     `json:"identity"`
	Into      string     `json:"into_identity"`
	IntoURL   string     `json:"into_url"`
	IntoSite  string     `json:"into_site"`
	IntoFirst time.Time  `json:"into_first_seen"`
	Why       string     `json:"why"`
	MergedAt  time.Time  `json:"merged_at"`
	SplitAt   *time.Time `json:"split_at"`
}

// RestoreMerges merges and splits the links of a database as the archive says, in the
// order in which they were merged. Links that are not stored are left out. Restoring
// twice changes nothing the second time.
func RestoreMerges(ctx context.Context, pool *pgxpool.Pool, rows []json.RawMessage) error {
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
	link, err := schema.One(ctx, tx, "find the link", pgx.RowTo[int64], `SELECT id FROM links WHERE identity = $1`, m.Identity)
	if errors.Is(err, schema.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, insertLinks, []string{m.Into}, []string{m.IntoURL}, []string{m.IntoSite}, m.IntoFirst); err != nil {
		return fmt.Errorf("add the link: %w", err)
	}
	into, err := schema.One(ctx, tx, "find the link", pgx.RowTo[int64], `SELECT id FROM links WHERE identity = $1`, m.Into)
	if err != nil {
		return err
	}
	if m.SplitAt == nil {
		return MergeLinks(ctx, tx, Merge{Link: link, Into: into, Why: m.Why, Now: m.MergedAt})
	}
	const split = `INSERT INTO link_merges (link_id, into_id, why, merged_at, split_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (link_id) DO NOTHING`
	if _, err := tx.Exec(ctx, split, link, into, m.Why, m.MergedAt, m.SplitAt); err != nil {
		return fmt.Errorf("restore a split: %w", err)
	}
	return nil
}
