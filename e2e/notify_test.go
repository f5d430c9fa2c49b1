package e2e

import (
	"io"
	"net"
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

// systemd is a notification socket.
type systemd struct {
	t      *testing.T
	conn   *net.UnixConn
	path   string
	status string // the last one received
}

func newSystemd(t *testing.T) *systemd {
	t.Helper()
	dir, err := os.MkdirTemp("", "weir-notify-") // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return &systemd{t: t, conn: conn, path: path}
}

// ignore reads everything: a full socket would block its writers.
func (s *systemd) ignore() { go io.Copy(io.Discard, s.conn) }

// hear returns the next message that is more than a status, or "" if none
// arrives in time.
func (s *systemd) hear(within time.Duration) string {
	s.t.Helper()
	for deadline := time.Now().Add(within); ; {
		if state, heard := s.read(deadline); state != "" || !heard {
			return state
		}
	}
}

// heard returns the messages so far that are more than a status.
func (s *systemd) heard() (messages []string) {
	s.t.Helper()
	const last = "LAST=1" // a message of the test's own
	conn, err := net.Dial("unixgram", s.path)
	require.NoError(s.t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(last))
	require.NoError(s.t, err)
	for {
		message := s.hear(patience)
		if message == last || message == "" {
			return messages
		}
		messages = append(messages, message)
	}
}

// read stores the status of the next message, and returns the rest of the
// message.
func (s *systemd) read(deadline time.Time) (state string, heard bool) {
	s.t.Helper()
	require.NoError(s.t, s.conn.SetReadDeadline(deadline))
	message := make([]byte, 4096)
	n, err := s.conn.Read(message)
	if err != nil {
		require.ErrorIs(s.t, err, os.ErrDeadlineExceeded)
		return "", false
	}
	state, status, found := strings.Cut("\n"+string(message[:n]), "\nSTATUS=")
	if found {
		require.NotContains(s.t, status, "\n", "systemd shows one line")
		s.status = status
	}
	return strings.TrimPrefix(state, "\n"), true
}

// hearStatus reads messages until the status begins with these words.
func (s *systemd) hearStatus(words string) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !strings.HasPrefix(s.status, words); {
		_, heard := s.read(deadline)
		require.True(s.t, heard, "the status is %q, not %q", s.status, words)
	}
}

// TestEveryCommandNotifiesSystemd shows that every command reports that it is
// ready, alive, and stopping.
func TestEveryCommandNotifiesSystemd(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for _, command := range []string{"serve", "consume", "work", "web"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			s := newSystemd(t)
			env := append(reads(network(t, 50), schematest.NewURL(t)), "NOTIFY_SOCKET="+s.path, "WATCHDOG_USEC=4000000")
			p := start(t, env, command)
			require.Equal(t, "READY=1", s.hear(patience))
			require.Equal(t, "WATCHDOG=1", s.hear(patience))
			p.signal(syscall.SIGTERM)
			eventually.True(t, func() bool { return s.hear(time.Second) == "STOPPING=1" }, time.Millisecond)
			require.Contains(t, s.status, "stopping")
			require.Zero(t, p.wait(t, patience))
		})
	}
}

// TestFailedStartEndsUnderSystemd shows that a process that cannot start exits,
// so that systemd restarts it instead of waiting for a readiness that never
// comes.
func TestFailedStartEndsUnderSystemd(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	database := schematest.NewURL(t)
	for _, command := range []string{"serve", "consume", "work", "web"} {
		env := append(reads(network(t, 50), database), "NOTIFY_SOCKET="+newSystemd(t).path, "WATCHDOG_USEC=4000000",
			"WEIR_OPS_LISTEN="+taken.Addr().String())
		_, stderr, code := weir(t, env, command)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "choose another address, or off")
	}
}

// TestConsumerWithoutTheLeaseIsReady shows that a standby reports that it is
// ready: otherwise systemd would never finish starting it.
func TestConsumerWithoutTheLeaseIsReady(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, database := network(t, 50), schematest.NewURL(t)
	s := newSystemd(t)
	for range 2 {
		start(t, append(keeping(reads(n, database)), "NOTIFY_SOCKET="+s.path), "consume")
		require.Equal(t, "READY=1", s.hear(patience))
	}
}

// TestSystemdStatusIsTheHealth shows that systemctl displays the same status as
// `weir status`. It changes when the database is down, and when it is back.
func TestSystemdStatusIsTheHealth(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	s := newSystemd(t)
	n, direct := network(t, 50), schematest.NewURL(t)
	defer live(t, n, 20)()
	between := newProxy(t, "Postgres", hostOf(t, direct))
	database := strings.Replace(direct, hostOf(t, direct), between.Listen, 1)
	start(t, append(reads(n, database), "NOTIFY_SOCKET="+s.path), "serve")
	s.hearStatus("healthy: live")
	between.down()
	s.hearStatus("unhealthy: unknown; the database does not respond: ")
	between.up()
	s.hearStatus("healthy: live")
}

// TestStuckConsumerStopsTheWatchdog shows that while the heartbeat hangs,
// systemd receives no watchdog message and would restart the process. The
// messages return with the heartbeat. The rest of the process is alive all the
// time.
func TestStuckConsumerStopsTheWatchdog(t *testing.T) {
	t.Parallel()
	s := newSystemd(t)
	database := schematest.NewURL(t)
	env := append(reads(network(t, 50), database), "NOTIFY_SOCKET="+s.path, "WATCHDOG_USEC=4000000", "WEIR_LEASE_TTL=1h")
	serve := start(t, env, "serve")
	require.Equal(t, "READY=1", s.hear(patience))
	require.Equal(t, "WATCHDOG=1", s.hear(patience))

	pool := open(t, database)
	failed := func(more int) {
		t.Helper()
		checks := func() int { return strings.Count(serve.stderr.String(), "liveness_check_failed") }
		before := checks()
		eventually.True(t, func() bool { return checks() >= before+more }, 20*time.Millisecond)
	}
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // the transaction has been rolled back already
	_, err = tx.Exec(t.Context(), `SELECT FROM streams FOR UPDATE`)
	require.NoError(t, err)
	eventually.True(t, func() bool { return schematest.Blocks(t, pool, tx) }, 20*time.Millisecond)
	failed(2)
	s.heard()
	failed(2)
	require.Empty(t, s.heard(), "the watchdog messages go on")
	require.NoError(t, tx.Rollback(t.Context()))
	require.Equal(t, "WATCHDOG=1", s.hear(patience))
}
