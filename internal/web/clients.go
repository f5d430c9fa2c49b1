package web

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits per client. Many people may share an address, so they are generous.
const (
	clientRate    = 20     // requests per second, on average
	clientBurst   = 200    // requests at once
	clientStreams = 50     // open streams
	maxClients    = 10_000 // clients that are remembered
)

// Proxies are the addresses whose X-Forwarded-For is trusted.
type Proxies struct{ prefixes []netip.Prefix }

// ParseProxies reads addresses and prefixes such as 10.0.0.0/8.
func ParseProxies(addresses []string) (p Proxies, err error) {
	for _, text := range addresses {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			addr, err := netip.ParseAddr(strings.TrimSpace(text))
			if err != nil {
				return Proxies{}, fmt.Errorf("%q is not an IP address or a prefix: expected one such as 10.1.2.3 or 10.0.0.0/8", text)
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		p.prefixes = append(p.prefixes, prefix.Masked())
	}
	return p, nil
}

func (p Proxies) contain(addr netip.Addr) bool {
	for _, prefix := range p.prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// forward reports whether a request comes from one of the proxies.
func (p Proxies) forward(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && p.contain(at.Addr().Unmap().WithZone(""))
}

// client returns the address that a request came from: the last address in
// X-Forwarded-For that is not a trusted proxy's. Anyone may have written what comes
// before it. The address is invalid if the connection has none.
func (p Proxies) client(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := at.Addr().Unmap().WithZone("")
	forwarded := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(forwarded) - 1; i >= 0 && p.contain(client); i-- {
		text := strings.TrimSpace(forwarded[i])
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		if err != nil {
			break
		}
		client = addr.Unmap().WithZone("")
	}
	return client
}

// clients limits the requests and streams of each client. An IPv6 client is identified by
// its /64. A program on this machine, or a proxy on it that forwards no address, is not
// limited.
type clients struct {
	proxies Proxies
	log     *slog.Logger

	mu     sync.Mutex
	all    map[netip.Addr]*client
	logged time.Time // when a refusal was last logged
}

type client struct {
	requests float64 // requests that the client may still make at once
	at       time.Time
	streams  int
}

func newClients(proxies Proxies, log *slog.Logger) *clients {
	return &clients{proxies: proxies, log: log, all: make(map[netip.Addr]*client)}
}

// key returns the key of a client. ok is false if the client is not limited.
func (c *clients) key(r *http.Request) (key netip.Addr, ok bool) {
	addr := c.proxies.client(r)
	if !addr.IsValid() || addr.IsLoopback() {
		return addr, false
	}
	if addr.Is6() {
		prefix, _ := addr.Prefix(64) // an IPv6 address has 128 bits
		addr = prefix.Addr()
	}
	return addr, true
}

// find returns a client with its current allowance. It is called with mu held.
func (c *clients) find(key netip.Addr) *client {
	now := time.Now()
	found := c.all[key]
	if found == nil {
		if len(c.all) >= maxClients {
			c.forget(now)
		}
		found = &client{requests: clientBurst, at: now}
		c.all[key] = found
	}
	found.requests = min(clientBurst, found.requests+clientRate*now.Sub(found.at).Seconds())
	found.at = now
	return found
}

// forget removes the clients whose allowance is full again. If there are none, it removes
// those without a stream. It is called with mu held.
func (c *clients) forget(now time.Time) {
	for _, all := range []bool{false, true} {
		for key, each := range c.all {
			if each.streams == 0 && (all || each.requests+clientRate*now.Sub(each.at).Seconds() >= clientBurst) {
				delete(c.all, key)
			}
		}
		if len(c.all) < maxClients {
			return
		}
	}
}

// request takes one request from a client's allowance. It returns false if the allowance
// is used up.
func (c *clients) request(r *http.Request) bool {
	key, limited := c.key(r)
	if !limited {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.find(key)
	if found.requests < 1 {
		c.refused(key)
		return false
	}
	found.requests--
	return true
}

// stream opens a stream of a client, and returns a function that closes it. ok is false
// if the client has reached its limit.
func (c *clients) stream(r *http.Request) (closed func(), ok bool) {
	key, limited := c.key(r)
	if !limited {
		return func() {}, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.find(key)
	if found.streams >= clientStreams {
		c.refused(key)
		return nil, false
	}
	found.streams++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		found.streams--
	}, true
}

// refused logs that a client was refused, once a minute. It is called with mu held.
func (c *clients) refused(key netip.Addr) {
	if now := time.Now(); now.Sub(c.logged) > time.Minute {
		c.logged = now
		c.log.Warn("client_refused", "client", key, "hint", "if this is a proxy, name it in WEIR_TRUSTED_PROXIES")
	}
}

// OpenStream opens a stream of a client, and returns a function that closes it. ok is false if
// the client has reached its limit.
func (s *Server) OpenStream(r *http.Request) (closed func(), ok bool) { return s.clients.stream(r) }

// limited refuses the requests of a client that makes too many.
func (s *Server) limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.clients.request(r) {
			s.WriteRefused(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// WriteRefused reports that a client has reached its limits.
func (s *Server) WriteRefused(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.WriteError(w, r, http.StatusTooManyRequests, say("error_refused"))
}
