package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestGapOfTheWholeNetworkIsNoDeadLetter shows that the gap's job succeeds. The
// gap stays open with its reason until an operator accepts it, or follows
// accounts and closes it again.
func TestGapOfTheWholeNetworkIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool)
	done := func(jobs int) {
		t.Helper()
		eventually.True(t, func() bool {
			var n int
			require.NoError(t, pool.QueryRow(t.Context(), `
				SELECT count(*) FROM river_job WHERE kind = 'close_gap' AND state = 'completed' AND errors IS NULL`).Scan(&n))
			return n == jobs
		}, 20*time.Millisecond)
	}
	execute(t, pool,
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 h', now(), 'too old', now())`)
	done(1)
	r, err := health.Read(t.Context(), pool, time.Now(), health.Limits{})
	require.NoError(t, err)
	require.Zero(t, r.DeadLetters)
	require.EqualValues(t, 1, r.OpenGaps)
	require.InDelta(t, 3600, r.GapSeconds, 1)
	require.EqualValues(t, 1, r.Unclosable)
	says := ""
	for _, c := range r.Conditions {
		if c.Name == "WeirGapOpen" {
			says = c.Message
		}
	}
	require.Contains(t, says, "1 cannot be closed: the whole network is followed")

	execute(t, pool, `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	// the watch's own sync may have done it
	execute(t, pool, `INSERT INTO watch_members SELECT id, target FROM watches ON CONFLICT DO NOTHING`)
	execute(t, pool, `SELECT enqueue_job('close_gap', 'network', '{"gap": 1}')`)
	done(2)
	r, err = health.Read(t.Context(), pool, time.Now(), health.Limits{})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.OpenGaps)
	require.Zero(t, r.Unclosable)
	require.Len(t, backfillsOf(t, pool, alice), 1)
}
