package e2e

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weir-social/weir/internal/crashpoint"
)

// killAt is the variable of a process that kills itself at the nth of the named points.
func killAt(nth int, point string) string {
	return fmt.Sprintf("%s=kill %d %s", crashpoint.Variable, nth, point)
}

// stopAt is the variable of a process that stops itself there, until it gets SIGCONT.
func stopAt(nth int, point string) string {
	return fmt.Sprintf("%s=stop %d %s", crashpoint.Variable, nth, point)
}

// dies waits until the process has killed itself.
func (p *process) dies(t testing.TB) {
	t.Helper()
	p.ending.Store(true)
	p.wait(t, patience)
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.Equal(t, syscall.SIGKILL, status.Signal(), p.stderr.String())
}

// stops waits until the whole process has stopped: until then, its other threads may continue.
func (p *process) stops(t testing.TB) {
	t.Helper()
	for {
		err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		require.NoError(t, err, "wait until the process is stopped")
		return
	}
}
