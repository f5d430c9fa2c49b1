package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/eventually"
	"github.com/weir-social/weir/schema/schematest"
)

// TestKilledRebuildOfLinks deletes all shares and subjects, rebuilds them while posts are written,
// edited and deleted, and kills the process in the middle. Afterwards the tables and the ranking
// are those of the oracle.
func TestKilledRebuildOfLinks(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	k := newKilling(t)
	stop := live(t, k.net, 100)
	k.progress(10)
	pool := open(t, k.server.URL("weir"))

	// A transaction locks a post from the second half of the pages.
	const middle = `
SELECT did || ' ' || rkey FROM posts WHERE did >= (SELECT did FROM posts ORDER BY did OFFSET (SELECT count(*) / 2 FROM posts) LIMIT 1)
AND EXISTS (SELECT FROM shares AS s WHERE s.did = posts.did AND s.rkey = posts.rkey) ORDER BY did, rkey LIMIT 1`
	var did, rkey string
	eventually.True(t, func() bool { // posts are stored before their shares
		return pool.QueryRow(t.Context(), `SELECT split_part(m, ' ', 1), split_part(m, ' ', 2) FROM (`+middle+`) AS m (m)`).Scan(&did, &rkey) == nil
	}, 20*time.Millisecond)
	execute(t, k.server.URL("weir"), `DELETE FROM shares; DELETE FROM subjects`)
	held, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer held.Rollback(t.Context()) //nolint:errcheck // finished, or the test has failed
	_, err = held.Exec(t.Context(), `SELECT FROM posts WHERE did = $1 AND rkey = $2 FOR UPDATE`, did, rkey)
	require.NoError(t, err)
	require.Contains(t, succeed(t, k.env, "rebuild", "--projection", "links", "--detach"), "rebuilds links")
	eventually.True(t, func() bool {
		n, err := tryCount(pool, fmt.Sprintf(`
SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid)) AND EXISTS (SELECT FROM shares WHERE did < '%s')`, held.Conn().PgConn().PID(), did))
		return err == nil && n > 0
	}, 10*time.Millisecond, "no job waits for the post: %s", tail(k.process.stderr.String(), 2000))
	k.process.kill()
	require.NoError(t, held.Rollback(t.Context()))
	k.process = start(t, k.env, "serve")
	k.progress(5)
	stop()
	finishes(t, 50*time.Millisecond, func() (int, error) {
		return tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'run_projection' AND finalized_at IS NULL`)
	}, "the rebuild does not end: %s", tail(k.process.stderr.String(), 2000))
	k.compare()
}
