package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// clientTool is a PostgreSQL client program of the same version as the server of
// the tests.
func clientTool(t *testing.T, name string) string {
	t.Helper()
	bin, version, err := devpg.Find()
	require.NoError(t, err)
	path := filepath.Join(bin, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err = exec.LookPath(name)
	require.NoError(t, err, "%s of PostgreSQL %d is missing: `make postgres` installs it, or install PostgreSQL's client", name, version)
	return path
}

func runs(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", filepath.Base(program), out)
}

// TestRestoredBackupResumesWithoutLoss follows docs/operations.md: a dump is
// taken while Weir runs, the stream continues, and the whole cluster is lost.
// The dump is restored in a new cluster, where Weir rereads the events since
// the dump, because the cursor is restored with the records.
//
// The test fails if the restored database is given the lost database's cursor.
func TestRestoredBackupResumesWithoutLoss(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	lost, fresh := schematest.Server(t), schematest.Server(t)
	withRoles(t, lost.URL("weir"))
	k := begin(t, busyNetwork(t), lost, as(t, "weir_owner", lost.URL("weir")), as(t, "weir_app", lost.URL("weir")))
	stop := live(t, k.net, 100)
	k.progress(10)
	// pg_dump reads some of the catalog as of its start, and some as it is: no partition may be renamed
	// meanwhile
	made := open(t, lost.URL("weir"))
	eventually.True(t, func() bool {
		return count(t, made, `SELECT count(DISTINCT parent) FROM partitions WHERE NOT ahead AND ends > now() + interval '47 hours'`) == 2
	}, 50*time.Millisecond, "the partitions of posts and shares are not made")
	dump := filepath.Join(t.TempDir(), "weir.dump")
	runs(t, clientTool(t, "pg_dump"), "--format=custom", "--file="+dump, lost.URL("weir"))
	k.progress(10)
	k.process.kill()
	cursor := count(t, open(t, lost.URL("weir")), `SELECT cursor FROM streams`)

	withRoles(t, fresh.URL("weir"))
	runs(t, clientTool(t, "pg_restore"), "--exit-on-error", "--single-transaction", "--dbname="+fresh.URL("weir"), dump)
	withRoles(t, fresh.URL("weir"))
	require.Less(t, count(t, open(t, fresh.URL("weir")), `SELECT cursor FROM streams`), cursor, "the dump is older than what was lost")
	k.server, k.env = fresh, append(k.env, "DATABASE_URL="+as(t, "weir_app", fresh.URL("weir")))
	k.process = start(t, k.env, "serve")
	k.progress(10)
	stop()
	k.compare()
}
