package workers

import (
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
)

// registered are the projections of the weir binary.
func registered(t testing.TB, pool *pgxpool.Pool) *Projections {
	t.Helper()
	p := NewProjections(jobs.Links())
	require.NoError(t, p.Register(t.Context(), pool, slog.New(slog.DiscardHandler)))
	return p
}
