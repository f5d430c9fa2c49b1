package devpg

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// urlFile holds the URL of a server that runs.
const urlFile = "url"

// Running answers the URL of a server that some process runs in a folder under
// root, the latest started first.
func Running(root string) (string, bool) {
	files, err := filepath.Glob(filepath.Join(root, "*", urlFile))
	if err != nil {
		return "", false
	}
	started := func(path string) time.Time {
		info, err := os.Stat(path)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	slices.SortFunc(files, func(a, b string) int { return started(b).Compare(started(a)) })
	for _, file := range files {
		if address, ok := answering(file); ok {
			return address, true
		}
	}
	return "", false
}

// RunningIn is Running of the one server that keeps its files in dir.
func RunningIn(dir string) (string, bool) { return answering(filepath.Join(dir, urlFile)) }

// answering is the address in a file, where a server answers there.
func answering(file string) (string, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", false
	}
	u, err := url.Parse(string(text))
	if err != nil {
		return "", false
	}
	conn, err := net.DialTimeout("tcp", u.Host, time.Second)
	if err != nil {
		return "", false
	}
	conn.Close() //nolint:errcheck // only looked
	return string(text), true
}

// clear removes what an earlier process left when it was killed. We hold the
// folder's lock: a server that still runs here is nobody's.
func (s *Server) clear(ctx context.Context) error {
	pidFile := filepath.Join(s.data(), "postmaster.pid")
	if text, err := os.ReadFile(pidFile); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && serves(pid, s.data()) {
			s.options.Logger.Warn("postgres_left_over", "pid", pid)
			if err := end(ctx, pid, s.data()); err != nil {
				return err
			}
		}
		// A number that another process has now would keep the server from
		// starting.
		if err := os.Remove(pidFile); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("clear a stale lock: %w", err)
		}
	}
	if s.options.Ephemeral {
		if err := os.RemoveAll(s.data()); err != nil {
			return fmt.Errorf("clear the cluster: %w", err)
		}
	}
	return nil
}

// serves answers whether the process is a Postgres on this cluster.
func serves(pid int, data string) bool {
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		if command, err = exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output(); err != nil {
			return false
		}
	}
	return strings.Contains(string(command), "postgres") && strings.Contains(string(command), data)
}

func end(ctx context.Context, pid int, data string) error {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		syscall.Kill(pid, signal) //nolint:errcheck // it has ended already
		for range 200 {
			if !serves(pid, data) {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(25 * time.Millisecond):
			}
		}
	}
	return fmt.Errorf("a Postgres from before (process %d) does not end: stop it by hand", pid)
}

// guard is a process that outlives ours for as long as it takes to end the
// server, however we end: it waits for the end of a pipe of which we hold the
// other side.
type guard struct {
	process *exec.Cmd
	pipe    *os.File
}

func newGuard(pid int, remove []string) (*guard, error) {
	const script = `
pid=$1; shift
cat >/dev/null
kill -INT "$pid" 2>/dev/null
while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
[ $# -eq 0 ] || rm -rf -- "$@"`
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard Postgres: %w", err)
	}
	defer theirs.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh", strconv.Itoa(pid)}, remove...)...)
	cmd.Stdin, cmd.SysProcAttr = theirs, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		ours.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("guard Postgres: %w", err)
	}
	return &guard{process: cmd, pipe: ours}, nil
}

// dismiss ends the guard before it does anything.
func (g *guard) dismiss() {
	if g == nil || g.pipe == nil {
		return
	}
	g.process.Process.Kill() //nolint:errcheck // it is the only one to end it
	g.process.Wait()         //nolint:errcheck // killed
	g.pipe.Close()           //nolint:errcheck // nothing was written
	g.pipe = nil
}
