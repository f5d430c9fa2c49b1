package e2e

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// findPgBouncer looks in PATH and where scripts/pgbouncer.sh installs it.
func findPgBouncer(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path
	}
	for _, path := range []string{"/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", filepath.Join(project, ".weir/pgbouncer/pgbouncer")} {
		if _, err := os.Stat(path); err == nil {
			path, err = filepath.Abs(path)
			require.NoError(t, err)
			return path
		}
	}
	require.Fail(t, "PgBouncer is missing: `make pgbouncer` installs it")
	return ""
}

// pooled starts a PgBouncer in transaction mode in front of a database, with few
// connections to it, and returns the URL through it.
func pooled(t *testing.T, database string) string {
	t.Helper()
	return pooledIn(t, "transaction", database)
}

// pooledIn is pooled in another of PgBouncer's modes.
func pooledIn(t *testing.T, mode, database string) string {
	t.Helper()
	to, err := url.Parse(database)
	require.NoError(t, err)
	password, _ := to.User.Password()
	size := 6
	if mode == "session" {
		size = 60 // session mode: each client keeps a connection
	}
	dir, err := os.MkdirTemp("", "weir-pgbouncer-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777)) // PgBouncer does not run as root
	ini := filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(ini, fmt.Appendf(nil, `
[databases]
weir = host=%s port=%s dbname=%s user=%s password='%s'
[pgbouncer]
listen_port = 6432
unix_socket_dir = %s
auth_type = any
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
`, to.Hostname(), to.Port(), strings.TrimPrefix(to.Path, "/"), to.User.Username(), password, dir, mode, size), 0o644))

	args := []string{ini}
	if os.Geteuid() == 0 { // PgBouncer refuses to run as root
		nobody, err := user.Lookup("nobody")
		require.NoError(t, err)
		args = append([]string{"-u", nobody.Username}, args...)
	}
	cmd := exec.Command(findPgBouncer(t), args...)
	var output lockedBuffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		cmd.Wait() // its log has the details
		close(exited)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill() // the process may have ended already
		<-exited
		if t.Failed() {
			t.Log(tail(output.String(), 2000))
		}
	})
	eventually.True(t, func() bool {
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.6432"))
		if err == nil {
			conn.Close() // PgBouncer is listening
		}
		return err == nil
	}, 20*time.Millisecond, "PgBouncer does not listen")
	return "postgres://weir@/weir?sslmode=disable&port=6432&host=" + url.QueryEscape(dir)
}

// TestThroughPgBouncer runs in transaction mode, with a sixth of the
// connections that Weir opens. Everything works as without a pooler:
// migrations, kills, retention, and a watch that is added while the stream
// runs.
//
// Without WEIR_POOLER it fails: prepared statements are missing.
func TestThroughPgBouncer(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, server := busyNetwork(t), schematest.Server(t)
	through := pooled(t, server.URL("weir"))
	k := prepare(t, n, server, through, through, "WEIR_POOLER=transaction")
	stop := live(t, k.net, 100)
	k.killedAt(8, "commit: before its end") // PgBouncer has to end the transaction
	k.process = start(t, k.env, "serve")
	k.progress(3)
	direct := open(t, server.URL("weir"))
	const sessions = `SELECT count(*) FROM pg_stat_activity WHERE datname = 'weir' AND application_name = 'weir'`
	require.Positive(t, count(t, direct, sessions))
	// The session of a killed process ends when its statement does.
	eventually.True(t, func() bool { return count(t, direct, sessions) <= 6 }, 20*time.Millisecond, "PgBouncer opens too many connections")
	require.Zero(t,
		count(t, direct, `
			SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE l.locktype = 'advisory' AND a.state = 'idle'`),
		"an idle session holds an advisory lock")
	stop()
	k.compare()
}

// TestWatchesThroughPgBouncer shows that without LISTEN the running consumer
// requests the accounts of a new watch before their past is read.
func TestWatchesThroughPgBouncer(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	watchFillsThePage(t, func(database string) []string {
		return []string{"DATABASE_URL=" + pooled(t, database), "WEIR_POOLER=transaction"}
	})
}
