// Package e2e tests whole processes: the real binary against a real Postgres,
// killed, paused, upgraded and cut off, with an oracle that knows what the tables
// must hold. It contains tests only.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// binary is the real one, built once.
var binary string

// TestMain builds the binary, and runs three tests at once for each core: they mostly wait.
func TestMain(m *testing.M) {
	schematest.AtOnce(3)
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "weir-binary-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir) // a temporary folder
		binary = filepath.Join(dir, "weir")
		if err := build(binary, "../cmd/weir"); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// buildArguments are those of the Dockerfile, with CGO_ENABLED=0, so that the tests run the
// deployed binary, except that the linker lets it obey crashpoint.Variable.
func buildArguments(out, what string) []string {
	return []string{"build", "-trimpath", "-ldflags=-s -w " + crashpoint.Linked, "-o", out, what}
}

// raceDetector reports whether these tests were built with -race, as make test-race does. The
// binaries that they build then are too.
var raceDetector = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
})

// build builds a program, with an overlay if more arguments name one.
func build(out, what string, more ...string) error {
	arguments := slices.Insert(buildArguments(out, what), 1, more...)
	cgo := "CGO_ENABLED=0"
	if raceDetector() {
		arguments, cgo = slices.Insert(arguments, 1, "-race"), "CGO_ENABLED=1"
	}
	command := exec.Command("go", arguments...)
	command.Env = append(os.Environ(), cgo)
	if printed, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", what, err, printed)
	}
	return nil
}

// process is a run of the binary.
type process struct {
	cmd    *exec.Cmd
	stdout lockedBuffer
	stderr lockedBuffer
	exited chan struct{}
	ending atomic.Bool // a signal that ends the process was sent
}

// start runs the binary with this environment. Of the test's own environment it passes only PATH.
func start(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return startProgram(t, binary, env, args...)
}

func startProgram(t testing.TB, program string, env []string, args ...string) *process {
	t.Helper()
	return startIn(t, "", program, env, args...)
}

func startIn(t testing.TB, folder, program string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), exited: make(chan struct{})}
	p.cmd.Dir = folder
	p.cmd.Env = append([]string{
		"WEIR_FETCH_CARDS=false", "PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + os.TempDir(), "WEIR_HOME=" + t.TempDir(),
		"WEIR_OPS_LISTEN=127.0.0.1:0", "GORACE=halt_on_error=1",
	}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	require.NoError(t, p.cmd.Start())
	go func() {
		p.cmd.Wait() // the exit code is enough
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if _, report, raced := strings.Cut(p.stderr.String(), "WARNING: DATA RACE"); raced {
			t.Errorf("weir %s has a data race:%s", strings.Join(args, " "), report)
		}
		if t.Failed() {
			t.Logf("weir %s wrote:\n%s%s", strings.Join(args, " "), p.stdout.String(), tail(p.stderr.String(), 4000))
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		p.ending.Store(true)
	}
	p.cmd.Process.Signal(s) // the process may have ended already
}

// pause sends SIGSTOP and waits until the whole process has stopped.
func (p *process) pause(t testing.TB) {
	t.Helper()
	p.signal(syscall.SIGSTOP)
	p.stops(t)
}

// kill sends SIGKILL and waits for the end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// rescued gives the jobs that a killed process was running to other ones now, instead of when they
// have run for too long.
func rescued(t *testing.T, pool *pgxpool.Pool, killed *process) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'available'
		WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] LIKE '%/' || $1::int || '/%'`, killed.cmd.Process.Pid)
	require.NoError(t, err)
}

// wait returns the exit code; the test fails if the process does not end in time.
func (p *process) wait(t testing.TB, within time.Duration) int {
	t.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		require.Fail(t, "the process does not end", p.stderr.String())
		return -1
	}
}

// weir runs the binary to its end.
func weir(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := start(t, env, args...)
	code = p.wait(t, patience)
	return p.stdout.String(), p.stderr.String(), code
}

// succeed runs the binary, which must not fail.
func succeed(t *testing.T, env []string, args ...string) string {
	t.Helper()
	stdout, stderr, code := weir(t, env, args...)
	require.Zero(t, code, stderr)
	return stdout
}

// succeedIn runs the binary in a folder. It must not fail.
func succeedIn(t *testing.T, folder string, env []string, args ...string) string {
	t.Helper()
	p := startIn(t, folder, binary, env, args...)
	require.Zero(t, p.wait(t, patience), p.stderr.String())
	return p.stdout.String()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	_, err := open(t, url).Exec(context.Background(), sql)
	require.NoError(t, err)
}

func count(t *testing.T, pool *pgxpool.Pool, sql string) int {
	t.Helper()
	n, err := countWithin(pool, sql, patience)
	require.NoError(t, err, sql)
	return n
}

// tryCount is count for a database that may be down.
func tryCount(pool *pgxpool.Pool, sql string) (int, error) {
	return countWithin(pool, sql, 10*time.Second)
}

func countWithin(pool *pgxpool.Pool, sql string, within time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var n int
	err := pool.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

// testdata returns the path of a recording in WEIR_TESTDATA, if it is set.
func testdata(name string) (string, bool) {
	dir := os.Getenv("WEIR_TESTDATA")
	if dir == "" {
		return "", false
	}
	path := filepath.Join(dir, name)
	_, err := os.Stat(path)
	return path, !errors.Is(err, os.ErrNotExist)
}
