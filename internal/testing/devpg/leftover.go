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

// urlFile is the name of the file that holds the URL of a running server.
const urlFile = "url"

// Running returns the URL of the most recently started server that runs in a folder
// under root.
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
		if address, ok := reachable(file); ok {
			return address, true
		}
	}
	return "", false
}

// RunningIn returns the URL of the server whose files are in dir, if it runs.
func RunningIn(dir string) (string, bool) { return reachable(filepath.Join(dir, urlFile)) }

// reachable returns the URL in a file if a server accepts connections there.
func reachable(file string) (address string, ok bool) {
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
	conn.Close() // nothing was sent
	return string(text), true
}

// removeLeftovers removes what an earlier process left behind when it was killed.
// This process holds the folder's lock, so a server that still runs here has lost
// its owner.
func (s *Server) removeLeftovers(ctx context.Context) error {
	pidFile := filepath.Join(s.data(), "postmaster.pid")
	if text, err := os.ReadFile(pidFile); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && isServer(pid, s.data()) {
			s.options.Logger.Warn("leftover_postgres_found", "pid", pid)
			if err := terminate(ctx, pid, s.data()); err != nil {
				return err
			}
		}
		// Another process may have this ID now; the server would then refuse to
		// start.
		if err := os.Remove(pidFile); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("remove a stale lock: %w", err)
		}
	}
	if s.options.Ephemeral {
		if err := os.RemoveAll(s.data()); err != nil {
			return fmt.Errorf("remove the old cluster: %w", err)
		}
	}
	return nil
}

// isServer reports whether a process is the Postgres server of this cluster.
func isServer(pid int, data string) bool {
	command, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		if command, err = exec.Command("ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output(); err != nil {
			return false
		}
	}
	return strings.Contains(string(command), "postgres") && strings.Contains(string(command), data)
}

// terminate stops a process with increasingly strong signals.
func terminate(ctx context.Context, pid int, data string) error {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		syscall.Kill(pid, signal) // it has ended already
		for range 200 {
			if !isServer(pid, data) {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(25 * time.Millisecond):
			}
		}
	}
	return fmt.Errorf("a Postgres server from an earlier run (process %d) does not stop: stop it by hand", pid)
}

// guard is a process that stops the server when this process ends, even if this
// process is killed: the guard waits for the end of a pipe whose other end this
// process holds.
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
		ours.Close() // nothing was written
		return nil, fmt.Errorf("guard Postgres: %w", err)
	}
	return &guard{process: cmd, pipe: ours}, nil
}

// dismiss ends the guard before it acts.
func (g *guard) dismiss() {
	if g == nil || g.pipe == nil {
		return
	}
	g.process.Process.Kill() // nothing else ends the guard
	g.process.Wait()         // killed
	g.pipe.Close()           // nothing was written
	g.pipe = nil
}
