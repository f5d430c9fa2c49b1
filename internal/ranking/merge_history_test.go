package ranking

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
)

// merge merges and splits links, a few per turn.
func (h *history) merge(ctx context.Context, r *rand.Rand, turns <-chan struct{}) error {
	for range turns {
		err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			x := r.Float64()
			link, into := int64(historyLinks*x*x)+1, r.Int64N(historyLinks)+1
			if r.IntN(3) == 0 {
				return h.fetch(ctx, tx, r, link, into)
			}
			if r.IntN(4) == 0 {
				if err := tx.QueryRow(ctx, `SELECT link_id FROM link_merges WHERE split_at IS NULL ORDER BY random() LIMIT 1`).Scan(&link); err != nil {
					return err
				}
				return SplitLink(ctx, tx, link, h.now())
			}
			return MergeLinks(ctx, tx, Merge{Link: link, Into: into, Why: []string{Redirected, Canonical, ByHand}[r.IntN(3)], Now: h.now()})
		})
		h.steps.Add(1)
		var pgErr *pgconn.PgError
		var merged *MergedError
		expected := errors.As(err, &merged) || errors.Is(err, ErrNotMerged) || errors.Is(err, ErrSplit) || errors.Is(err, ErrLink) ||
			errors.Is(err, pgx.ErrNoRows) ||
			errors.As(err, &pgErr) && slices.Contains([]string{"40P01", "23503"}, pgErr.Code)
		if err != nil && !expected { // a deadlock, a link that another writer deletes
			return err
		}
	}
	return nil
}

// fetch stores a page of a link, which often redirects to another link.
func (h *history) fetch(ctx context.Context, tx pgx.Tx, r *rand.Rand, of, other int64) error {
	f := CardFetch{Link: of, URL: fmt.Sprintf("https://www.host%d.example/x", r.IntN(3))}
	const begin = `
INSERT INTO cards AS c (link_id, sharers, tries) VALUES ($1, 5, 1) ON CONFLICT (link_id) DO UPDATE SET tries = c.tries + 1
RETURNING tries, coalesce((SELECT l.identity FROM links AS l WHERE l.id = $2), 'other.example/' || $2)`
	to := link.Link{URL: "https://to.example/x", Site: "to.example"}
	if err := tx.QueryRow(ctx, begin, of, other).Scan(&f.Try, &to.Identity); err != nil {
		return err
	}
	p := PageCard{
		Title: fmt.Sprint("Page ", r.IntN(30)), Description: []string{"", "d3"}[r.IntN(2)],
		Address: fmt.Sprintf("https://page.example/%d", r.IntN(9)), SameSite: r.IntN(2) == 0,
	}
	switch r.IntN(6) {
	case 0:
		p.To = to
	case 1:
		p.Canonical = to
	case 2:
		p.To, p.Why = to, "a wall"
	case 3:
		p.Title = ""
	}
	return StoreCard(ctx, tx, f, p, h.now())
}

// toldPage is a page whose title counts.
type toldPage struct {
	Link                        int64
	Title, Description, Address string
	SameSite                    bool
}

// withPage returns a headline with the title of the link's page, if that
// counts.
func (l story) withPage(shown said, link int64) said {
	if pages := l.pages[link]; len(pages) > 0 {
		shown.title, shown.description, shown.from = pages[0].Title, cmp.Or(pages[0].Description, shown.description), pages[0].Address
	}
	return shown
}

// readPages reads the pages in order of preference.
func (l *story) readPages(t *testing.T, tx pgx.Tx) {
	t.Helper()
	rows, err := tx.Query(t.Context(), `SELECT link_id FROM link_merges WHERE why IN ('redirect', 'canonical')`)
	require.NoError(t, err)
	led, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(t, err)
	rows, err = tx.Query(t.Context(), `SELECT link_id, title, description, address, same_site FROM cards
		WHERE status = '' AND title <> '' ORDER BY fetched_at, link_id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[toldPage])
	require.NoError(t, err)
	l.pages = map[int64][]toldPage{}
	for _, p := range all {
		switch root := l.root(p.Link); {
		case root == p.Link && p.SameSite:
			l.pages[root] = slices.Insert(l.pages[root], 0, p)
		case root != p.Link && (p.SameSite || slices.Contains(led, p.Link)):
			l.pages[root] = append(l.pages[root], p)
		}
	}
}
