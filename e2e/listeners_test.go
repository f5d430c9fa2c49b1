package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// resident is the resident memory of a process in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, found)
	kilobytes, err := strconv.Atoi(string(found[1]))
	require.NoError(t, err)
	return kilobytes << 10
}

// TestUnfinishedRequestsAreClosed shows that both listeners close connections that announce a body
// and never send it, and that the memory does not grow. The tests of web show how soon they are
// closed.
func TestUnfinishedRequestsAreClosed(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	web := start(t, []string{"DATABASE_URL=" + schematest.NewURL(t), "WEIR_LISTEN=127.0.0.1:0", "WEIR_LOG_LEVEL=info"}, "web")
	page, opsURL := strings.TrimSuffix(web.page(t), "/"), web.opsURL(t)
	for _, url := range []string{page + "/", opsURL + "/health"} {
		for range 20 {
			_, err := get(url)
			require.NoError(t, err)
		}
	}
	before := resident(t, web.cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for url, path := range map[string]string{page: "/", opsURL: "/health"} {
		address := strings.TrimPrefix(url, "http://")
		closed := make(chan error, 500)
		for range cap(closed) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() }) // it is closed already
			fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept-Encoding: gzip\r\nContent-Length: 100000\r\n\r\n", path, address)
			go func() {
				_, err := io.Copy(io.Discard, c)
				closed <- err
			}()
		}
		for range cap(closed) {
			select {
			case <-closed:
			case <-ctx.Done():
				require.Fail(t, "connections stay open", "%s: %d MB more", url, (resident(t, web.cmd.Process.Pid)-before)>>20)
			}
		}
	}
	require.Less(t, resident(t, web.cmd.Process.Pid)-before, 64<<20)
	stopServe(t, web)
}

// TestListenersServeOnlyTheirHosts shows that the listeners accept the configured hosts and those
// of probes. The ops endpoints are on the ops listener alone.
func TestListenersServeOnlyTheirHosts(t *testing.T) {
	t.Parallel()
	env := []string{
		"DATABASE_URL=" + schematest.NewURL(t), "WEIR_LISTEN=127.0.0.1:0", "WEIR_LOG_LEVEL=info", "WEIR_HOSTS=weir.example,serve",
		"WEIR_URL=https://public.example/",
	}
	web := start(t, env, "web")
	page, opsURL := strings.TrimSuffix(web.page(t), "/"), web.opsURL(t)
	code := func(url, host string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		request.Host = host
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"), url)
		require.Equal(t, "same-origin", response.Header.Get("Cross-Origin-Resource-Policy"), url)
		return response.StatusCode
	}
	for url, want := range map[string]int{
		page + "/": 200, page + "/deadletters": 404, page + "/metrics": 404, page + "/health": 404, page + "/debug/pprof/": 404,
		opsURL + "/livez": 200, opsURL + "/readyz": 200, opsURL + "/metrics": 200, opsURL + "/deadletters": 200, opsURL + "/debug/pprof/": 404,
	} {
		got := code(url, "rebound.example")
		require.Equal(t, http.StatusMisdirectedRequest, got, url)
		for _, host := range []string{"", "localhost:8080", "weir.example", "serve:8081", "public.example"} {
			eventually.True(t, func() bool { // until then, the database took longer than the listener waits
				got = code(url, host)
				return got != http.StatusServiceUnavailable
			}, 20*time.Millisecond)
			require.Equal(t, want, got, "%s of %q", url, host)
		}
	}
	passes(t, append(env, "WEIR_OPS_LISTEN="+strings.TrimPrefix(opsURL, "http://")), "--ready")
	stopServe(t, web)
}
