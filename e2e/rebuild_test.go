package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestKilledRebuildOfLinks deletes all shares and subjects, rebuilds them while posts are written,
// edited and deleted, and kills the process in the middle. Afterwards the tables and the ranking
// are those of the oracle.
func TestKilledRebuildOfLinks(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	server := schematest.Server(t)
	k := prepare(t, busyNetwork(t), server, server.URL("weir"), server.URL("weir"))
	pool := open(t, server.URL("weir"))
	k.process = start(t, k.env, "serve")
	k.drain(pool)
	k.process.kill()
	require.Positive(t, count(t, pool, `SELECT count(*) FROM shares`))
	execute(t, k.server.URL("weir"), `DELETE FROM shares; DELETE FROM subjects`)
	require.Contains(t, succeed(t, k.env, "rebuild", "--projection", "links", "--detach"), "rebuilds links")
	stop := live(t, k.net, 100)
	k.killedAt(2, "rebuild: before a page's end")
	rescued(t, pool, k.process)
	k.process = start(t, k.env, "serve")
	k.progress(5)
	stop()
	finishes(t, 50*time.Millisecond, func() (int, error) {
		return tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'run_projection' AND finalized_at IS NULL`)
	}, "the rebuild does not end: %s", tail(k.process.stderr.String(), 2000))
	k.compare()
}
