package web

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestOnlyKnownHostsAreAllowed(t *testing.T) {
	t.Parallel()
	hosts, err := ParseHosts([]string{"Weir.Example", " serve ", "203.0.113.7", "[2001:db8::7]"})
	require.NoError(t, err)
	for host, want := range map[string]bool{
		"localhost": true, "localhost:8080": true, "LOCALHOST.:8080": true, "a.localhost:1": true, "127.0.0.1": true, "127.8.8.8:80": true,
		"[::1]": true, "[::1]:8080": true, "0.0.0.0:8080": true, "[::]:8080": true, "": true,
		"weir.example": true, "weir.example:443": true, "WEIR.example.": true, "serve:8081": true, "203.0.113.7:8080": true,
		"[2001:db8:0::7]:80": true,
		"192.0.2.9:8080":     true, "192.0.2.9": true, // the local address of the connection
		"evil.example": false, "evil.example:8080": false, "weir.example.evil.example": false, "evil-localhost": false,
		"localhost.evil.example": false,
		"192.0.2.8":              false, "192.0.2.9.evil.example": false, "127.0.0.1.evil.example": false, "a.weir.example": false,
		"[2001:db8::8]":      false,
		"weir.example:80:80": false, "127.0.0.1@evil.example": false, "::": true,
	} {
		r := httptest.NewRequestWithContext(context.WithValue(context.Background(), http.LocalAddrContextKey,
			&net.TCPAddr{IP: net.ParseIP("192.0.2.9"), Port: 8080}), http.MethodGet, "/", nil)
		r.Host = host
		require.Equal(t, want, hosts.allows(r), "%q", host)
	}
}

func TestHostsAreNamesOrAddresses(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{
		"https://weir.example", "weir.example:8080", "weir.example/", "*", "*.example", "", "a b", "münchen.example", "-a",
	} {
		_, err := ParseHosts([]string{wrong})
		require.ErrorContains(t, err, "expected a name or an IP address, such as", "%q", wrong)
	}
}

// TestOtherHostsGetOnlyAnErrorMessage covers a page that reaches the server by DNS rebinding: it
// gets only an error message, whatever it requests. So does a reader who uses a host name that is
// not configured.
func TestOtherHostsGetOnlyAnErrorMessage(t *testing.T) {
	t.Parallel()
	hosts, err := ParseHosts([]string{"weir.example"})
	require.NoError(t, err)
	r := newRig(t)
	for name, rig := range map[string]*rig{
		"page": r, "operators": (&rig{&webtest.Rig{T: t, Pool: r.Pool, Now: r.Now, Log: r.Log}}).asOps(""),
	} {
		address := startServer(t, ServerConfig{Handler: rig.Handler, Hosts: hosts, Connections: 10})
		for _, target := range []string{
			"/", "/fragment", "/api/v1/trending", "/static/x/page.css", "/livez", "/readyz", "/health", "/metrics", "/deadletters",
			"/debug/pprof/", "/nowhere",
		} {
			for host, refused := range map[string]bool{"evil.example": true, "weir.example": false, "localhost": false, "": false} {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+target, nil)
				require.NoError(t, err)
				request.Host = host
				response, err := http.DefaultClient.Do(request)
				require.NoError(t, err)
				body := make([]byte, 1000)
				n, _ := response.Body.Read(body)
				require.NoError(t, response.Body.Close())
				require.Equal(t, refused, response.StatusCode == http.StatusMisdirectedRequest, "%s %s of %q: %s", name, target, host, response.Status)
				require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"), "%s %s", name, target)
				require.Equal(t, "same-origin", response.Header.Get("Cross-Origin-Resource-Policy"), "%s %s", name, target)
				if refused {
					require.Equal(t, "Weir does not know the host name evil.example. To reach this server by this name, add it to the variable "+
						"WEIR_HOSTS (separated by commas) and restart Weir.\n", string(body[:n]))
				}
			}
		}
	}
}
