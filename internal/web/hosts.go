package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// Hosts are the host names that requests may use. Loopback names and the local address
// of the connection are always allowed. Any other name could be an attack by DNS
// rebinding: a stranger's page, opened by someone who can reach this server, would
// read the server's responses as its own.
type Hosts struct{ names map[string]bool }

var nameSyntax = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?$`)

// ParseHosts reads host names and IP addresses, without schemes or ports.
func ParseHosts(names []string) (Hosts, error) {
	h := Hosts{names: make(map[string]bool, len(names))}
	for _, raw := range names {
		name := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(raw)), ".")
		if ip, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
			name = ip.Unmap().WithZone("").String()
		} else if !nameSyntax.MatchString(name) {
			return Hosts{}, fmt.Errorf("%q is not a host: expected a name or an IP address, such as weir.example, without a scheme or a port", raw)
		}
		h.names[name] = true
	}
	return h, nil
}

// allows reports whether a request uses one of the hosts. A request without a host is
// allowed: every browser sends one, so it comes from a probe.
func (h Hosts) allows(r *http.Request) bool {
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
	return ip.IsLoopback() || ip.IsUnspecified() || h.names[ip.String()] || ip == localAddr(r)
}

// hostOf returns the name in a Host header in lower case, without port and brackets.
func hostOf(header string) string {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// localAddr returns the local address of the request's connection.
func localAddr(r *http.Request) netip.Addr {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return local.AddrPort().Addr().Unmap().WithZone("")
}
