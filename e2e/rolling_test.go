package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// nextBinary builds the next version: this one with one more migration.
func nextBinary(t *testing.T) (path string, version int) {
	t.Helper()
	dir := t.TempDir()
	folder, err := filepath.Abs(filepath.Join(project, "schema/migrations"))
	require.NoError(t, err)
	released, err := os.ReadDir(folder)
	require.NoError(t, err)
	version = len(released) + 1
	migration, overlay := filepath.Join(dir, "next.sql"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(migration, []byte(`
		ALTER TABLE accounts ADD COLUMN next text; ALTER TABLE streams ADD COLUMN next int NOT NULL DEFAULT 1;`), 0o600))
	text, err := json.Marshal(map[string]any{
		"Replace": map[string]string{filepath.Join(folder, fmt.Sprintf("%04d_next.sql", version)): migration},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	path = filepath.Join(dir, "weir")
	require.NoError(t, build(path, "../cmd/weir", "-overlay", overlay))
	return path, version
}

// TestRollingRestart has the next version migrate while this one serves, and
// this one continues. Both run side by side: one reads the stream, both process
// jobs. This one exits, and the next takes over. After the migration this
// version refuses to start, and reports why.
func TestRollingRestart(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	next, version := nextBinary(t)
	n, server := busyNetwork(t), schematest.Server(t)
	k := begin(t, n, server, server.URL("weir"), server.URL("weir"), "WEIR_LEASE_TTL=1h")
	stop := live(t, k.net, 100)
	k.progress(5)
	migrate := startProgram(t, next, k.env, "migrate")
	require.Zero(t, migrate.wait(t, patience), migrate.stderr.String())
	require.Contains(t, migrate.stdout.String(), fmt.Sprintf("pending  core/%04d_next\n", version))
	k.progress(5)
	responds(t, k.process.opsURL(t)+"/readyz", http.StatusOK)

	_, refusal, code := weir(t, k.env, "serve")
	require.Equal(t, 1, code)
	require.Contains(t, refusal,
		fmt.Sprintf("the database is at core migration %d, this binary knows %d at most: run the newer binary", version, version-1))

	after := startProgram(t, next, k.env, "serve")
	pool := open(t, k.server.URL("weir"))
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(DISTINCT attempted_by[1]) FROM river_job WHERE kind = 'process_posts' AND state = 'completed'`) == 2
	}, 50*time.Millisecond, "both work")
	eventually.True(t, func() bool { return strings.Contains(after.stderr.String(), "waiting_for_lease") }, 20*time.Millisecond)
	k.process.signal(syscall.SIGTERM)
	require.Zero(t, k.process.wait(t, patience))
	k.process = after
	k.progress(5)
	stop()
	require.Equal(t, 2, count(t, pool, `SELECT max(epoch) FROM streams`))
	// the comparison runs this version
	execute(t, k.server.URL("weir"), fmt.Sprintf(`DELETE FROM weir_migration WHERE part = 'core' AND version = %d`, version))
	k.compare()
}
