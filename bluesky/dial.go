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

// maxRedirects bounds how often one request is sent on within its host.
const maxRedirects = 3

// maxIdle is how many connections to a host are kept: with fewer than there are
// calls at once, most calls would begin with a dial, and come late.
const maxIdle = 10

// errPrivate refuses an address inside a private network.
var errPrivate = errors.New("not a public address")

// newHTTPClients makes the client for configured hosts and the one for hosts
// that a stranger's DID document names. The latter looks at the address after
// the name was resolved, so that no name can lead into a private network.
func newHTTPClients(given *http.Client, loopback bool) (trusted, guarded *http.Client, err error) {
	var round http.RoundTripper = http.DefaultTransport
	if given != nil && given.Transport != nil {
		round = given.Transport
	}
	transport, ok := round.(*http.Transport)
	if !ok {
		return nil, nil, fmt.Errorf("the HTTP client's transport is a %T: give an *http.Transport, so that strangers' hosts can be guarded", round)
	}
	if given == nil || given.Transport == nil {
		transport = transport.Clone()
		transport.MaxIdleConnsPerHost = maxIdle
	}
	guard := transport.Clone()
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Control: publicOnly(loopback)}
	guard.DialContext = dialer.DialContext
	guard.DialTLSContext = nil
	guard.Proxy = nil // a proxy would resolve the name out of sight
	guard.MaxResponseHeaderBytes = 64 << 10
	trusted, guarded = &http.Client{Transport: transport}, &http.Client{Transport: guard}
	if given != nil {
		trusted.Jar, trusted.Timeout = given.Jar, given.Timeout
	}
	trusted.CheckRedirect, guarded.CheckRedirect = sameHost, sameHost
	return trusted, guarded, nil
}

// sameHost lets a request be sent on within its origin only; else the redirect
// itself is the answer.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > maxRedirects || req.URL.Scheme != first.Scheme || req.URL.Host != first.Host || req.URL.User != nil {
		return http.ErrUseLastResponse
	}
	return nil
}

// publicOnly is called with every address just before it is dialed.
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

// isPublic also refuses the IPv6 ranges that carry an IPv4 address inside, which
// may be a private one.
func isPublic(ip netip.Addr) bool {
	for _, carrier := range []string{"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"} {
		if netip.MustParsePrefix(carrier).Contains(ip) {
			return false
		}
	}
	return ssrf.IsPublicIPAddress(net.IP(ip.AsSlice()))
}
