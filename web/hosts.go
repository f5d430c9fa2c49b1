package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// Hosts are the names that a request may ask for. Loopback names, and the
// address that the request arrived at, are always among them. Any other name
// may lead here by DNS rebinding: a stranger's page, in the browser of somebody
// who reaches this server, would then read it as its own.
type Hosts struct{ names map[string]bool }

var nameSyntax = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$`)

// ParseHosts reads host names and IP addresses, without schemes or ports.
func ParseHosts(names []string) (Hosts, error) {
	h := Hosts{names: make(map[string]bool, len(names))}
	for _, written := range names {
		name := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(written)), ".")
		if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			name = ip.Unmap().WithZone("").String()
		} else if !nameSyntax.MatchString(name) {
			return Hosts{}, fmt.Errorf("%q is not a host: expected a name or an IP address alone, such as weir.example, without a scheme or a port", written)
		}
		h.names[name] = true
	}
	return h, nil
}

// allow reports whether a request asks for one of them. Every browser sends a
// host, so a request without one is a probe's and may pass.
func (h Hosts) allow(r *http.Request) bool {
	if r.Host == "" {
		return true
	}
	name := hostOf(r.Host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || h.names[name] {
		return true
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	return ip.IsLoopback() || ip.IsUnspecified() || h.names[ip.String()] || ip == arrivedAt(r)
}

// hostOf is the name in a Host header: no port, no brackets, in lower case.
func hostOf(header string) string {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// arrivedAt is our own address of the request's connection.
func arrivedAt(r *http.Request) netip.Addr {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return local.AddrPort().Addr().Unmap().WithZone("")
}
