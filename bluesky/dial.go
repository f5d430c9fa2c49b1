package bluesky

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/bluesky-social/indigo/util/ssrf"
)

// maxRedirects bounds the redirects of a request within its host.
const maxRedirects = 3

// maxIdle is how many idle connections to a host are kept: with fewer than the
// concurrent calls, most calls would start with a dial.
const maxIdle = 10

// errPrivate is the error for an address in a private network.
var errPrivate = errors.New("not a public address")

// newHTTPClients returns the client for configured hosts and the one for hosts from
// DID documents. The latter checks addresses after name resolution, so that no name
// can lead into a private network.
func newHTTPClients(given *http.Client, loopback bool) (trusted, guarded *http.Client, err error) {
	var round http.RoundTripper = http.DefaultTransport
	if given != nil && given.Transport != nil {
		round = given.Transport
	}
	transport, ok := round.(*http.Transport)
	if !ok {
		return nil, nil, fmt.Errorf("the HTTP client's transport is a %T: use an *http.Transport, so that hosts from DID documents can be guarded", round)
	}
	if given == nil || given.Transport == nil {
		transport = transport.Clone()
		transport.MaxIdleConnsPerHost = maxIdle
	}
	guard := transport.Clone()
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: publicOnly(loopback)}
	guard.DialContext = dialer.DialContext
	guard.DialTLSContext = nil
	guard.Proxy = nil // a proxy would resolve the name itself
	guard.MaxResponseHeaderBytes = 64 << 10
	trusted, guarded = &http.Client{Transport: transport}, &http.Client{Transport: guard}
	if given != nil {
		trusted.Jar, trusted.Timeout = given.Jar, given.Timeout
	}
	trusted.CheckRedirect, guarded.CheckRedirect = sameHost, sameHost
	return trusted, guarded, nil
}

// sameHost follows redirects within the request's origin only; any other redirect
// is the response.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > maxRedirects || req.URL.Scheme != first.Scheme || req.URL.Host != first.Host || req.URL.User != nil {
		return http.ErrUseLastResponse
	}
	return nil
}

// publicOnly returns the check of every address just before it is dialled.
func publicOnly(loopback bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%q: %w", address, errPrivate)
		}
		ip := at.Addr().WithZone("")
		if isPublic(ip) || loopback && ip.IsLoopback() {
			return nil
		}
		return fmt.Errorf("%s: %w", ip, errPrivate)
	}
}

// isPublic also rejects the IPv6 ranges that embed an IPv4 address, which may be
// private.
func isPublic(ip netip.Addr) bool {
	for _, carrier := range []string{"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"} {
		if netip.MustParsePrefix(carrier).Contains(ip) {
			return false
		}
	}
	return ssrf.IsPublicIPAddress(net.IP(ip.AsSlice()))
}
