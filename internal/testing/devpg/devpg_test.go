package devpg_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
)

// TestMain is also the process that startAndKill starts and kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv("DEVPG_TEST_DIR"); dir != "" {
		server, err := devpg.Start(context.Background(), devpg.Options{Dir: dir})
		if err != nil {
			os.Stdout.WriteString("error " + err.Error()) // the parent then reads nothing
			os.Exit(1)
		}
		os.Stdout.WriteString(strconv.Itoa(server.PID()) + "\n") // the parent then reads nothing
		select {}
	}
	os.Exit(m.Run())
}

// folder returns a folder that the server's account can enter if the tests run
// as root. The testing package's folders are closed to other users.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devpg-test-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "pg")
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context()) // nothing more is sent
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&value))
	return value
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer conn.Close(t.Context()) // nothing more is sent
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
}

func alive(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return exec.Command("kill", "-0", strconv.Itoa(pid)).Run() == nil && !zombie(pid)
	}
	return !strings.Contains(string(text), ") Z ")
}

func zombie(pid int) bool {
	out, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return err != nil || bytes.HasPrefix(out, []byte("Z"))
}

func TestClusterSurvivesItsServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: skipped by -short")
	}
	dir := folder(t)
	first, err := devpg.Start(t.Context(), devpg.Options{Dir: dir, Fsync: true})
	require.NoError(t, err)
	execute(t, first.URL("weir"), `CREATE TABLE kept AS SELECT 1`)
	found, ok := devpg.Running(filepath.Dir(dir))
	require.True(t, ok)
	require.Equal(t, first.URL("weir"), found)
	require.NoError(t, first.Stop(t.Context()))
	_, ok = devpg.Running(filepath.Dir(dir))
	require.False(t, ok)

	second, err := devpg.Start(t.Context(), devpg.Options{Dir: dir, Fsync: true})
	require.NoError(t, err)
	require.Equal(t, "1", query(t, second.URL("weir"), `SELECT count(*)::text FROM kept`))
	require.Equal(t, "on", query(t, second.URL("weir"), `SHOW fsync`))
	require.NoError(t, second.Stop(t.Context()))
}

func TestOneProcessRunsACluster(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	first, err := devpg.Start(t.Context(), devpg.Options{Dir: dir})
	require.NoError(t, err)
	defer first.Stop(t.Context()) // the test is over
	_, err = devpg.Start(t.Context(), devpg.Options{Dir: dir})
	require.ErrorContains(t, err, "another process runs the Postgres in "+dir)
	require.Equal(t, "1", query(t, first.URL("weir"), `SELECT '1'`), "the first server still runs")
	_, ok := devpg.Running(filepath.Dir(dir))
	require.True(t, ok, "Running still finds it")
}

func TestEphemeralLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	server, err := devpg.Start(t.Context(), devpg.Options{Dir: dir, Ephemeral: true})
	require.NoError(t, err)
	require.NoError(t, server.Stop(t.Context()))
	require.NoDirExists(t, dir)
}

func TestPasswordIsRequired(t *testing.T) {
	t.Parallel()
	server, err := devpg.Start(t.Context(), devpg.Options{})
	require.NoError(t, err)
	defer server.Stop(t.Context()) // the test is over
	cfg, err := pgx.ParseConfig(server.URL("weir"))
	require.NoError(t, err)
	cfg.Password = "guess"
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	require.ErrorContains(t, err, "password authentication failed")
	sockets := query(t, server.URL("weir"), `SHOW unix_socket_directories`)
	info, err := os.Stat(sockets)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestRestartImmediateKeepsCommittedData(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: skipped by -short")
	}
	server, err := devpg.Start(t.Context(), devpg.Options{Settings: map[string]string{"work_mem": "7MB"}})
	require.NoError(t, err)
	defer server.Stop(t.Context()) // the test is over
	url, pid := server.URL("weir"), server.PID()
	require.Equal(t, "7MB", query(t, url, `SHOW work_mem`))
	execute(t, url, `CREATE TABLE kept AS SELECT 1`)
	require.NoError(t, server.RestartImmediate(t.Context()))
	require.NotEqual(t, pid, server.PID())
	require.Equal(t, "1", query(t, url, `SELECT count(*)::text FROM kept`), "the server must be back at the same address")
}

// TestServerStopsWithItsProcess kills the process that started the server.
func TestServerStopsWithItsProcess(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	pid := startAndKill(t, dir)
	eventually.True(t, func() bool { return !alive(pid) }, 20*time.Millisecond)
}

// TestStaleLockIsRemoved kills the server and writes the ID of a running process,
// its own, into the lock file that the server left behind.
func TestStaleLockIsRemoved(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	server, err := devpg.Start(t.Context(), devpg.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(server.PID(), syscall.SIGKILL))
	require.NoError(t, server.Stop(t.Context()))
	lock := filepath.Join(dir, "data", "postmaster.pid")
	text, err := os.ReadFile(lock)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "\n")
	require.NoError(t, os.WriteFile(lock, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600))
	server, err = devpg.Start(t.Context(), devpg.Options{Dir: dir})
	require.NoError(t, err)
	require.NoError(t, server.Stop(t.Context()))
}

// startAndKill starts a server in another process, kills that process and returns
// the server's process ID.
func startAndKill(t *testing.T, dir string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DEVPG_TEST_DIR="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	require.NoError(t, err, string(line[:n]))
	require.True(t, alive(pid))
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait() // killed
	return pid
}

func TestFindReturnsAServer(t *testing.T) {
	t.Parallel()
	bin, version, err := devpg.Find()
	require.NoError(t, err)
	require.GreaterOrEqual(t, version, 15)
	out, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), strconv.Itoa(version))
}
