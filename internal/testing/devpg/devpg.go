// Package devpg runs a Postgres server from the binaries on this machine, for
// development, the demo and the tests. The server listens on a socket in a
// folder that only its user can enter, and on a free port of 127.0.0.1 with a
// password. It stops when the process that started it ends, even if that process
// is killed.
package devpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/testing/loopback"
)

// Options describe a server.
type Options struct {
	Dir       string            // the folder for its files; "": a temporary folder, in memory where that has room and Fsync is false
	Ephemeral bool              // start empty, and delete the files at the end
	Fsync     bool              // survive a crash of the machine, but run slower
	Settings  map[string]string // as in postgresql.conf
	StandbyOf *Server           // start as a hot standby of this server, with its roles, passwords and databases; nil: a server of its own
	Logger    *slog.Logger
}

// Server is a running Postgres. Its methods are not safe for concurrent use.
type Server struct {
	options  Options
	bin      string
	dir      string // data, log and sockets
	user     *account
	sockets  string // the folder of the socket
	port     *loopback.Port
	password string
	lock     *os.File

	process *exec.Cmd
	exited  chan struct{} // closed when the process is gone
	guard   *guard
}

// superuser is the name of the superuser and of the database that Start creates.
const superuser = "weir"

// startTimeout bounds a start, including recovery after a kill. A busy machine may take more than a minute.
const startTimeout = 5 * time.Minute

// Start creates the cluster if it does not exist and starts its server. Only one
// process at a time can run a cluster. Start removes what an earlier process left
// behind when it was killed.
func Start(ctx context.Context, o Options) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	bin, _, err := Find()
	if err != nil {
		return nil, err
	}
	s := &Server{options: o, bin: bin}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if err := s.publish(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// prepare locks the folder, creates the cluster and reserves the port.
func (s *Server) prepare(ctx context.Context) error {
	if s.options.Dir == "" {
		dir, err := os.MkdirTemp(s.options.temporary(), "weir-postgres-")
		if err != nil {
			return fmt.Errorf("make a folder for Postgres: %w", err)
		}
		s.options.Dir, s.options.Ephemeral = dir, true
	}
	var err error
	if s.user, err = serverAccount(); err != nil {
		return err
	}
	if err := s.lockFolder(); err != nil {
		return err
	}
	if err := s.removeLeftovers(ctx); err != nil {
		return err
	}
	if s.port, err = loopback.Reserve("127.0.0.1:0"); err != nil {
		return err
	}
	return s.initCluster(ctx)
}

// temporary returns where to make a temporary folder. A server that need not survive
// a crash of the machine is faster in memory: creating and dropping a database makes
// and removes hundreds of files. A TMPDIR that is set wins.
func (o Options) temporary() string {
	const memory, room = "/dev/shm", 4 << 30 // bytes: a container may have as little as 64 MB
	var fs syscall.Statfs_t
	if o.Fsync || os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < room {
		return os.TempDir()
	}
	return memory
}

// lockFolder makes the folder if it does not exist, and locks it for this process.
func (s *Server) lockFolder() error {
	dir, err := filepath.Abs(s.options.Dir)
	if err != nil {
		return fmt.Errorf("find the folder of Postgres: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of Postgres, of which WEIR_HOME chooses another one: %w", err)
	}
	s.options.Dir = dir
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close() // nothing was written
		return fmt.Errorf("another process runs the Postgres in %s: stop it first, or set WEIR_HOME to another folder", dir)
	}
	s.lock = lock
	s.dir, err = s.user.home(dir)
	return err
}

// data returns the cluster's folder.
func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// initCluster runs initdb unless a cluster exists.
func (s *Server) initCluster(ctx context.Context) error {
	secret := filepath.Join(s.options.Dir, "password")
	if known, err := os.ReadFile(secret); err == nil && exists(filepath.Join(s.data(), "PG_VERSION")) {
		s.password = string(known)
		return nil
	}
	if err := os.RemoveAll(s.data()); err != nil { // left by an interrupted initdb
		return fmt.Errorf("remove the old cluster: %w", err)
	}
	if s.options.StandbyOf != nil {
		return s.copyPrimary(ctx)
	}
	s.password = rand.Text()
	pwfile := filepath.Join(s.dir, "pwfile")
	if err := s.user.write(pwfile, s.password); err != nil {
		return err
	}
	defer os.Remove(pwfile) // in a folder of our own
	args := []string{"--pgdata=" + s.data(), "--username=" + superuser, "--pwfile=" + pwfile, "--auth-local=trust",
		"--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C"}
	if !s.options.Fsync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.dir, environment(), s.user.attributes()
	if out, err := cmd.CombinedOutput(); ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return fmt.Errorf("create a Postgres cluster in %s: %w\n%s", s.data(), err, out)
	}
	if err := os.WriteFile(secret, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("store the password of Postgres: %w", err)
	}
	return nil
}

// copyPrimary makes the cluster a copy of the primary's, which goes on receiving what the primary commits.
func (s *Server) copyPrimary(ctx context.Context) error {
	primary := s.options.StandbyOf
	s.password = primary.password
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "pg_basebackup"), "--pgdata="+s.data(), "--dbname="+primary.URL("postgres"),
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.dir, environment(), s.user.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the primary into %s: %w\n%s", s.data(), err, out)
	}
	return nil
}

// start starts the server and waits until it accepts connections. The children of a
// killed server end shortly after it, and no other server can start before that.
func (s *Server) start(ctx context.Context) error {
	for began := time.Now(); ; {
		err := s.startOnce(ctx)
		if err == nil || !strings.Contains(err.Error(), "pre-existing shared memory block") || time.Since(began) > startTimeout {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Server) startOnce(ctx context.Context) error {
	if err := s.makeSockets(); err != nil {
		return err
	}
	logPath := filepath.Join(s.options.Dir, "postgres.log")
	output, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the Postgres log: %w", err)
	}
	defer output.Close()

	cmd := exec.Command(filepath.Join(s.bin, "postgres"), s.arguments()...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = s.dir, environment(), s.user.attributes()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait() // the log has the cause
		close(exited)
	}()
	s.process, s.exited = cmd, exited
	if s.guard, err = newGuard(cmd.Process.Pid, s.disposable()); err != nil {
		return errors.Join(err, s.halt(ctx, syscall.SIGQUIT))
	}
	if err := s.waitReady(ctx); err != nil {
		text, _ := os.ReadFile(logPath) // without the log, the error is shorter
		return errors.Join(fmt.Errorf("%w\n%s", err, tail(string(text), 2000)), s.halt(ctx, syscall.SIGQUIT))
	}
	return nil
}

// makeSockets makes the folder for the socket: beside the data or, if that path is
// too long for a socket, among the temporary files.
func (s *Server) makeSockets() error {
	const maxFolder = 80 // bytes; the kernel limits the whole path to about 100
	if s.sockets == "" {
		s.sockets = filepath.Join(s.dir, "s")
	}
	if len(s.sockets) > maxFolder {
		var err error
		if s.sockets, err = os.MkdirTemp("", "weir-pg-"); err != nil {
			return fmt.Errorf("make a folder for the Postgres socket: %w", err)
		}
	}
	return s.user.makeFolder(s.sockets)
}

func (s *Server) arguments() []string {
	args := []string{"-D", s.data(), "-k", s.sockets, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port.Number()),
		"-c", "max_connections=200", "-c", "timezone=UTC", "-c", "unix_socket_permissions=0700"}
	if !s.options.Fsync { // a server for tests: compiling one of their queries takes longer than running it
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "jit=off")
	}
	for name, value := range s.options.Settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// waitReady waits until the server accepts connections.
func (s *Server) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			return errors.New("the Postgres server stopped during its start")
		case <-ctx.Done():
			return fmt.Errorf("wait for Postgres: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// publish creates the database weir and writes its URL to a file where other
// processes find it.
func (s *Server) publish(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(ctx) // nothing more is sent
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, superuser).Scan(&exists); err != nil {
		return fmt.Errorf("read the list of databases: %w", err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, `CREATE DATABASE `+superuser); err != nil {
			return fmt.Errorf("create the database: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.options.Dir, urlFile), []byte(s.URL(superuser)), 0o600); err != nil {
		return fmt.Errorf("write the URL of Postgres: %w", err)
	}
	return nil
}

// URL returns the connection URL of one of the server's databases.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: s.port.Address(), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// PID returns the process ID of the server.
func (s *Server) PID() int { return s.process.Process.Pid }

// Stop shuts the server down: it ends the sessions at once and closes the files
// cleanly. If ctx ends first, Stop kills the server, and the next start recovers.
func (s *Server) Stop(ctx context.Context) error {
	return errors.Join(s.halt(ctx, syscall.SIGINT), s.release())
}

// RestartImmediate stops the server as a crash would and starts it again on the
// same port.
func (s *Server) RestartImmediate(ctx context.Context) error {
	if err := s.Crash(ctx); err != nil {
		return err
	}
	return s.Resume(ctx)
}

// Crash stops the server as a crash would. Resume starts it again on the same port.
func (s *Server) Crash(ctx context.Context) error { return s.halt(ctx, syscall.SIGQUIT) }

// Resume starts a server that Crash has stopped.
func (s *Server) Resume(ctx context.Context) error { return s.start(ctx) }

// halt stops the process with a signal, and kills it if ctx ends first.
func (s *Server) halt(ctx context.Context, signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	s.guard.dismiss()
	s.process.Process.Signal(signal) // it has ended already
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
	}
	s.process.Process.Signal(syscall.SIGQUIT) // it has ended already
	select {
	case <-s.exited:
	case <-time.After(5 * time.Second):
		s.process.Process.Kill() // it has ended already
		<-s.exited
	}
	return fmt.Errorf("stop Postgres cleanly: %w", ctx.Err())
}

// release removes the disposable folders and unlocks the server's folder.
func (s *Server) release() error {
	var err error
	for _, path := range s.disposable() {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if s.port != nil {
		err = errors.Join(err, s.port.Release())
	}
	if s.lock != nil { // otherwise the folder belongs to another process
		os.Remove(filepath.Join(s.options.Dir, urlFile)) // it may not exist
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// disposable returns the folders to delete when the server stops.
func (s *Server) disposable() []string {
	var paths []string
	if s.sockets != "" {
		paths = append(paths, s.sockets)
	}
	if s.options.Ephemeral && s.dir != "" {
		paths = append(paths, s.dir, s.options.Dir)
	}
	return paths
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// environment returns this process's environment without the PG* variables, which
// could direct the server or libpq elsewhere.
func environment() []string {
	var kept []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "PG") {
			kept = append(kept, pair)
		}
	}
	return append(kept, "LC_ALL=C", "TZ=UTC")
}
