// Package devpg runs a throwaway Postgres from the machine's own binaries, for
// development, the demo and the tests. The server listens on a socket in a
// folder that only its user can enter, and on 127.0.0.1 at a free port with a
// password. It ends with the process that started it, however that ends.
package devpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options describe a server.
type Options struct {
	Dir       string            // the folder of its files; a temporary one when ""
	Ephemeral bool              // start empty, and leave nothing behind
	Fsync     bool              // survive a crash of the machine, at the price of speed
	Settings  map[string]string // of postgresql.conf
	Logger    *slog.Logger
}

// Server is a running Postgres. Its methods are for one goroutine at a time.
type Server struct {
	options  Options
	bin      string
	dir      string // data, log and sockets
	user     *account
	sockets  string // the folder of the socket
	port     int
	password string
	lock     *os.File

	process *exec.Cmd
	exited  chan struct{} // closed when the process is gone
	guard   *guard
}

// superuser is the name of the superuser, and of the database that is always
// there.
const superuser = "weir"

// startWithin bounds a start; recovery after a kill is part of it.
const startWithin = 60 * time.Second

// Start makes the cluster where there is none and starts its server. Only one
// process at a time can start it; what an earlier one left behind when it was
// killed is cleared away.
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
		return nil, errors.Join(err, s.leave())
	}
	if err := s.launch(ctx); err != nil {
		return nil, errors.Join(err, s.leave())
	}
	if err := s.announce(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// prepare makes everything the server needs but the server.
func (s *Server) prepare(ctx context.Context) error {
	if s.options.Dir == "" {
		dir, err := os.MkdirTemp("", "weir-postgres-")
		if err != nil {
			return fmt.Errorf("make a folder for Postgres: %w", err)
		}
		s.options.Dir, s.options.Ephemeral = dir, true
	}
	var err error
	if s.user, err = serverAccount(); err != nil {
		return err
	}
	if err := s.own(); err != nil {
		return err
	}
	if err := s.clear(ctx); err != nil {
		return err
	}
	return s.cluster(ctx)
}

// own takes the folder for this process, and makes it if need be.
func (s *Server) own() error {
	dir, err := filepath.Abs(s.options.Dir)
	if err != nil {
		return fmt.Errorf("find the folder of Postgres: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of Postgres: %w", err)
	}
	s.options.Dir = dir
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close() //nolint:errcheck // nothing was written
		return fmt.Errorf("another process runs the Postgres in %s: stop it first, or set WEIR_HOME to another folder", dir)
	}
	s.lock = lock
	s.dir, err = s.user.home(dir)
	return err
}

// data is the cluster's folder.
func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// cluster runs initdb where that has not been done.
func (s *Server) cluster(ctx context.Context) error {
	secret := filepath.Join(s.options.Dir, "password")
	if known, err := os.ReadFile(secret); err == nil && exists(filepath.Join(s.data(), "PG_VERSION")) {
		s.password = string(known)
		return nil
	}
	if err := os.RemoveAll(s.data()); err != nil { // an initdb that was interrupted
		return fmt.Errorf("clear the cluster: %w", err)
	}
	s.password = rand.Text()
	pwfile := filepath.Join(s.dir, "pwfile")
	if err := s.user.write(pwfile, s.password); err != nil {
		return err
	}
	defer os.Remove(pwfile) //nolint:errcheck // in a folder of our own
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
		return fmt.Errorf("make a Postgres cluster in %s: %w\n%s", s.data(), err, out)
	}
	if err := os.WriteFile(secret, []byte(s.password), 0o600); err != nil {
		return fmt.Errorf("keep the password of Postgres: %w", err)
	}
	return nil
}

// launch starts the server and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	var err error
	for range 3 { // a port that was free may be taken a moment later
		if s.port == 0 {
			if s.port, err = freePort(); err != nil {
				return err
			}
		}
		if err = s.start(ctx); err == nil || !strings.Contains(err.Error(), "Address already in use") {
			return err
		}
		s.port = 0
	}
	return err
}

func (s *Server) start(ctx context.Context) error {
	if err := s.makeSockets(); err != nil {
		return err
	}
	logPath := filepath.Join(s.options.Dir, "postgres.log")
	output, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of Postgres: %w", err)
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
		cmd.Wait() //nolint:errcheck // its log says more
		close(exited)
	}()
	s.process, s.exited = cmd, exited
	if s.guard, err = newGuard(cmd.Process.Pid, s.disposable()); err != nil {
		return errors.Join(err, s.halt(ctx, syscall.SIGQUIT))
	}
	if err := s.ready(ctx); err != nil {
		text, _ := os.ReadFile(logPath) //nolint:errcheck // then the error says less
		return errors.Join(fmt.Errorf("%w\n%s", err, tail(string(text), 2000)), s.halt(ctx, syscall.SIGQUIT))
	}
	return nil
}

// makeSockets makes the folder of the socket: beside the data, or, where that
// path is too long for a socket's, among the temporary files.
func (s *Server) makeSockets() error {
	const longest = 80 // the kernel's limit for the whole path is near 100 bytes
	if s.sockets == "" {
		s.sockets = filepath.Join(s.dir, "s")
	}
	if len(s.sockets) > longest {
		var err error
		if s.sockets, err = os.MkdirTemp("", "weir-pg-"); err != nil {
			return fmt.Errorf("make a folder for the socket of Postgres: %w", err)
		}
	}
	return s.user.folder(s.sockets)
}

func (s *Server) arguments() []string {
	args := []string{"-D", s.data(), "-k", s.sockets, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port),
		"-c", "max_connections=200", "-c", "timezone=UTC", "-c", "unix_socket_permissions=0700"}
	if !s.options.Fsync {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	for name, value := range s.options.Settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// ready waits until the server answers.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			return errors.New("the Postgres server ended while it started")
		case <-ctx.Done():
			return fmt.Errorf("wait for Postgres: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// announce makes the database named weir, and lets other processes find it.
func (s *Server) announce(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing left to say
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, superuser).Scan(&there); err != nil {
		return fmt.Errorf("look for the database: %w", err)
	}
	if !there {
		if _, err := conn.Exec(ctx, `CREATE DATABASE `+superuser); err != nil {
			return fmt.Errorf("make the database: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.options.Dir, urlFile), []byte(s.URL(superuser)), 0o600); err != nil {
		return fmt.Errorf("write down where Postgres is: %w", err)
	}
	return nil
}

// URL leads to one of the server's databases.
func (s *Server) URL(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// PID is the server's process.
func (s *Server) PID() int { return s.process.Process.Pid }

// Stop ends the server: its sessions at once, its files in order. When ctx ends
// first it is ended without order, which the next start repairs.
func (s *Server) Stop(ctx context.Context) error {
	return errors.Join(s.halt(ctx, syscall.SIGINT), s.leave())
}

// RestartImmediate ends the server as a crash would and starts it again at the
// same port.
func (s *Server) RestartImmediate(ctx context.Context) error {
	if err := s.Crash(ctx); err != nil {
		return err
	}
	return s.Resume(ctx)
}

// Crash ends the server as a crash would: Resume starts it again at the same
// port.
func (s *Server) Crash(ctx context.Context) error { return s.halt(ctx, syscall.SIGQUIT) }

// Resume starts a server that Crash has ended.
func (s *Server) Resume(ctx context.Context) error { return s.start(ctx) }

// halt ends the process.
func (s *Server) halt(ctx context.Context, signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	s.guard.dismiss()
	s.process.Process.Signal(signal) //nolint:errcheck // it has ended already
	select {
	case <-s.exited:
		return nil
	case <-ctx.Done():
	}
	s.process.Process.Signal(syscall.SIGQUIT) //nolint:errcheck // it has ended already
	select {
	case <-s.exited:
	case <-time.After(5 * time.Second):
		s.process.Process.Kill() //nolint:errcheck // it has ended already
		<-s.exited
	}
	return fmt.Errorf("stop Postgres in order: %w", ctx.Err())
}

// leave gives back the folder.
func (s *Server) leave() error {
	var err error
	for _, path := range s.disposable() {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if s.lock != nil { // else the folder is another process's
		os.Remove(filepath.Join(s.options.Dir, urlFile)) //nolint:errcheck // may not be there
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// disposable are the folders that go when the server goes.
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

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of a TCP listener
	return port, l.Close()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// environment is what the server gets of ours: nothing that could point it, or
// libpq, elsewhere.
func environment() []string {
	var kept []string
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "PG") {
			kept = append(kept, pair)
		}
	}
	return append(kept, "LC_ALL=C", "TZ=UTC")
}
