package ranking

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// merge merges and splits links, a few at each turn.
func (h *history) merge(ctx context.Context, r *rand.Rand, turns <-chan struct{}) error {
	for range turns {
		err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			x := r.Float64()
			link, into := int64(historyLinks*x*x)+1, r.Int64N(historyLinks)+1
			if r.IntN(4) == 0 {
				if err := tx.QueryRow(ctx, `SELECT link_id FROM link_merges WHERE split_at IS NULL ORDER BY random() LIMIT 1`).Scan(&link); err != nil {
					return err
				}
				return SplitLink(ctx, tx, link, h.now())
			}
			return MergeLinks(ctx, tx, Merge{Link: link, Into: into, Why: []string{Redirected, ByHand}[r.IntN(2)], Now: h.now()})
		})
		h.steps.Add(1)
		var pgErr *pgconn.PgError
		var merged *MergedError
		expected := errors.As(err, &merged) || errors.Is(err, ErrNotMerged) || errors.Is(err, ErrSplit) || errors.Is(err, ErrLink) || errors.Is(err, pgx.ErrNoRows) ||
			errors.As(err, &pgErr) && slices.Contains([]string{"40P01", "23503"}, pgErr.Code)
		if err != nil && !expected { // a deadlock, a link that another writer deletes
			return err
		}
	}
	return nil
}
