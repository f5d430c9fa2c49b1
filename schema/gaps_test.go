package schema_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestGapKeepsAccountsDeactivatedMeanwhile shows that the gap waits for an
// account that becomes inactive, or that the account is read later.
func TestGapKeepsAccountsDeactivatedMeanwhile(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO watches (target) VALUES ('w')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) SELECT id, did FROM watches, unnest('{active,falls,gone}'::text[]) AS did`)
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('active', 'active'), ('falls', 'active'), ('gone', 'deactivated')`)
	execute(t, pool, `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', $1, $2, '', $2)`, noon().Add(-time.Hour),
		noon())

	holder, err := pool.Begin(t.Context())
	require.NoError(t, err)
	execute(t, holder, `SELECT FROM gaps FOR UPDATE`)
	var started schema.StartedGap
	ended := make(chan error, 1)
	go func() {
		ended <- pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
			started, _, err = schema.StartGap(t.Context(), tx, 1, noon())
			return err
		})
	}()
	eventually.True(t, func() bool { return schematest.Blocks(t, pool, holder) }, 10*time.Millisecond)
	execute(t, pool, `UPDATE accounts SET status = 'deactivated' WHERE did = 'falls'`)
	require.NoError(t, holder.Rollback(t.Context()))
	require.NoError(t, <-ended)
	require.Equal(t, []string{"active", "falls"}, started.DIDs)
	require.Equal(t, 1, started.Later)
	require.Equal(t, []string{"2 1"}, column(t, pool, `SELECT concat_ws(' ', accounts, later) FROM gaps WHERE closed_at IS NULL`))
}
