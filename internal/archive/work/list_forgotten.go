package work

import (
	"context"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
)

// ListForgotten writes lists of forgotten accounts to the store.
type ListForgotten struct{ worker[ListForgottenArgs] }

// Work stores lists until every forgotten account is on one. If a job dies before it has
// marked the accounts, its list stays, and the next job stores the same list or a longer
// one.
func (w *ListForgotten) Work(ctx context.Context, _ *river.Job[ListForgottenArgs]) error {
	for {
		list, err := catalog.UnlistedAccounts(ctx, w.pool, archive.MaxForgotten)
		if err != nil || len(list) == 0 {
			return err
		}
		if err := w.archive.present(ctx, w.pool); err != nil {
			return err
		}
		if _, err := archive.PutForgotten(ctx, w.archive.Store, list); err != nil {
			return err
		}
		if err := catalog.MarkListed(ctx, w.pool, list); err != nil {
			return err
		}
	}
}
