// Package guard keeps requests to addresses from strangers out of private networks. It
// checks an address after its name is resolved, just before it is dialled, so that no
// name, and no change of a name, bypasses the check.
package guard

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/bluesky-social/indigo/util/ssrf"
)

// ErrPrivate is the error for an address in a private network.
var ErrPrivate = errors.New("not a public address")

// Config configures a guarded transport. The zero value reaches public addresses only.
type Config struct {
	Loopback bool             // addresses of this machine are allowed too
	Allow    []netip.AddrPort // allowed too: tests name their servers
	Resolver *net.Resolver    // net.DefaultResolver when nil
}

// Transport returns a copy of a transport that connects to allowed addresses only. It
// never uses a proxy, which would resolve names itself.
func (c Config) Transport(of *http.Transport) *http.Transport {
	t := of.Clone()
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, Resolver: c.Resolver, Control: c.check}
	t.DialContext = dialer.DialContext
	t.DialTLSContext = nil
	t.Proxy = nil
	t.MaxResponseHeaderBytes = 64 << 10
	return t
}

// check checks an address just before it is dialled.
func (c Config) check(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%q: %w", address, ErrPrivate)
	}
	ip := at.Addr().WithZone("")
	if isPublic(ip) || c.Loopback && ip.IsLoopback() || slices.Contains(c.Allow, at) {
		return nil
	}
	return fmt.Errorf("%s: %w", ip, ErrPrivate)
}

// isPublic reports whether an address is public. It also rejects the IPv6 ranges that
// embed an IPv4 address, which may be private.
func isPublic(ip netip.Addr) bool {
	for _, carrier := range []string{"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"} {
		if netip.MustParsePrefix(carrier).Contains(ip) {
			return false
		}
	}
	return ssrf.IsPublicIPAddress(net.IP(ip.AsSlice()))
}
