// Package clickhousetest runs ClickHouse servers for tests.
package clickhousetest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/loopback"
)

// Server is a server on loopback with an empty database. It can be killed and started
// again on the same port.
type Server struct {
	URL string

	dir     string
	port    *loopback.Port
	process *exec.Cmd
	ended   chan struct{}
}

const config = `<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host>
  <http_port>%[1]d</http_port>
  <path>%[2]s/data/</path>
  <tmp_path>%[2]s/tmp/</tmp_path>
  <mark_cache_size>67108864</mark_cache_size>
  <users_config>%[2]s/users.xml</users_config>
  <default_profile>default</default_profile>
  <default_database>default</default_database>
</yandex>`

const users = `<yandex>
  <profiles><default></default></profiles>
  <quotas><default></default></quotas>
  <users><default><password></password><networks><ip>127.0.0.1</ip></networks>
    <profile>default</profile><quota>default</quota></default></users>
</yandex>`

// Start starts a server for the duration of the test.
func Start(t testing.TB) *Server {
	t.Helper()
	port, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	s := &Server{URL: "http://" + port.Address(), dir: t.TempDir(), port: port}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "config.xml"), fmt.Appendf(nil, config, port.Number(), s.dir), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "users.xml"), []byte(users), 0o600))
	t.Cleanup(func() {
		if s.process != nil {
			s.Kill(t)
		}
		require.NoError(t, port.Release())
	})
	s.Start(t)
	return s
}

// Start starts a killed server, and waits until it accepts statements.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.process = exec.Command(program(t), "--config-file="+filepath.Join(s.dir, "config.xml")) // our own files
	s.process.Dir = s.dir
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer out.Close() // the server has its own copy
	s.process.Stdout, s.process.Stderr = out, out
	require.NoError(t, s.process.Start())
	s.ended = make(chan struct{})
	go func(p *exec.Cmd, ended chan struct{}) {
		p.Wait() // it is killed
		close(ended)
	}(s.process, s.ended)
	eventually.True(t, func() bool {
		answer, err := http.Get(s.URL + "/ping")
		if err != nil {
			return false
		}
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}, 20*time.Millisecond, "ClickHouse does not start, see %s", out.Name())
}

// Ask runs a statement and returns the server's response.
func (s *Server) Ask(t testing.TB, sql string) string {
	t.Helper()
	r, err := http.Post(s.URL, "text/plain", strings.NewReader(sql))
	require.NoError(t, err)
	defer r.Body.Close() // it was only read
	answer, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.StatusCode, string(answer))
	return strings.TrimSpace(string(answer))
}

// Kill kills the server.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, s.process.Process.Kill())
	<-s.ended
	s.process = nil
}

// program returns the path of the server, which scripts/clickhouse.sh fetches.
func program(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("clickhouse-server"); err == nil {
		return path
	}
	paths := []string{"/usr/sbin/clickhouse-server"}
	here, err := os.Getwd() // of the package under test
	require.NoError(t, err)
	for ; here != filepath.Dir(here); here = filepath.Dir(here) {
		paths = append(paths, filepath.Join(here, ".weir/clickhouse/clickhouse-server"))
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	require.Fail(t, "ClickHouse is missing: run make clickhouse")
	return ""
}
