package guard

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyPublicAddressesAreDialled(t *testing.T) {
	t.Parallel()
	check := Config{}.check
	for _, private := range []string{
		"127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1",
		"198.18.0.1",
		"198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
		"2001::1", "2001:db8::1",
		"2002:7f00:1::", "3fff::1", "::127.0.0.1",
	} {
		require.ErrorIs(t, check("tcp", netip.AddrPortFrom(netip.MustParseAddr(private), 443).String(), nil), ErrPrivate, private)
	}
	for _, public := range []string{"1.1.1.1", "93.184.216.34", "2606:4700::1111"} {
		require.NoError(t, check("tcp", netip.AddrPortFrom(netip.MustParseAddr(public), 443).String(), nil), public)
	}
	require.ErrorIs(t, check("tcp", "no address", nil), ErrPrivate)
}

// TestTransportIsGuarded uses a name that resolves to this machine, and a proxy
// in the environment of the transport. A proxy that may be dialled is not used for an address that
// may not.
func TestTransportIsGuarded(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	base := &http.Transport{Proxy: func(r *http.Request) (*url.URL, error) { return r.URL, nil }}
	for _, address := range []string{server.URL, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)} {
		get := func(loopback bool) error {
			resp, err := (&http.Client{Transport: Config{Loopback: loopback}.Transport(base)}).Get(address)
			if err == nil {
				resp.Body.Close() // the body is not used
			}
			return err
		}
		require.ErrorIs(t, get(false), ErrPrivate, address)
		require.NoError(t, get(true), address)
	}
	base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(server.URL) }
	allowed := Config{Allow: []netip.AddrPort{netip.MustParseAddrPort(server.Listener.Addr().String())}}
	resp, err := (&http.Client{Transport: allowed.Transport(base)}).Get("http://10.0.0.1/")
	if err == nil {
		resp.Body.Close() // the body is not used
	}
	require.ErrorIs(t, err, ErrPrivate)
}
