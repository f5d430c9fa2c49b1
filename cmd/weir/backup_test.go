package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/devpg"
)

// clientTool is a program of PostgreSQL's client, of the version of the server
// that the tests run.
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

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", filepath.Base(program), out)
}

// TestRestoredBackupResumesWithoutLoss: a dump is taken while everything works,
// the stream goes on, the database is lost. Weir on the restored dump reads again
// what the dump had not seen, since the cursor came back with the records.
//
// It has been seen to fail with the cursor moved on, by hand, after the restore.
func TestRestoredBackupResumesWithoutLoss(t *testing.T) {
	t.Parallel()
	k := newKilling(t)
	stop := live(t, k.net, 800)
	k.progress(10)
	dump := filepath.Join(t.TempDir(), "weir.dump")
	run(t, clientTool(t, "pg_dump"), "--format=custom", "--file="+dump, k.server.URL("weir"))
	k.progress(10)
	k.process.kill()
	lost := open(t, k.server.URL("weir"))
	cursor := count(t, lost, `SELECT cursor FROM streams`)
	_, err := open(t, k.server.URL("postgres")).Exec(t.Context(), `CREATE DATABASE restored`)
	require.NoError(t, err)

	run(t, clientTool(t, "pg_restore"), "--exit-on-error", "--single-transaction", "--no-owner", "--dbname="+k.server.URL("restored"), dump)
	require.Less(t, count(t, open(t, k.server.URL("restored")), `SELECT cursor FROM streams`), cursor, "the dump is older than what was lost")
	k.database, k.env = "restored", append(k.env, "DATABASE_URL="+k.server.URL("restored"))
	k.process = start(t, k.env, "serve")
	k.progress(10)
	stop()
	k.judge(0)
}
