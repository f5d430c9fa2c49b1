// Package guardtest provides a web on loopback: a name server, and one server for all
// names. Its guard allows requests to that server only.
package guardtest

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-social/weir/internal/guard"
)

// Web is a web on loopback. Every name below .example, and example.com, resolves to its
// server unless Name says otherwise.
type Web struct {
	At    netip.AddrPort // of the server
	Port  string
	Roots *x509.CertPool // with the server's certificate, which is for example.com
	Guard guard.Config   // allows only the server

	t     *testing.T
	mu    sync.Mutex
	names map[string]func() []string
	asked []string
}

// New starts a web. With secure, it speaks https.
func New(t *testing.T, secure bool, serve http.HandlerFunc) *Web {
	t.Helper()
	w := &Web{t: t, Roots: x509.NewCertPool(), names: map[string]func() []string{}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.Host) // a host without a port has no name here
		w.mu.Lock()
		w.asked = append(w.asked, host+r.URL.Path)
		w.mu.Unlock()
		serve(to, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of clients that refuse the certificate
	if secure {
		server.StartTLS()
		w.Roots.AddCert(server.Certificate())
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	w.At = netip.MustParseAddrPort(server.Listener.Addr().String())
	w.Port = strconv.Itoa(int(w.At.Port()))
	w.Guard = guard.Config{Allow: []netip.AddrPort{w.At}, Resolver: w.resolver()}
	return w
}

// Address returns the address of a page.
func (w *Web) Address(host, path string) string { return "http://" + host + ":" + w.Port + path }

// Asked returns the requests so far: host and path.
func (w *Web) Asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.asked...)
}

// Pages returns the requests so far, without those for robots.txt.
func (w *Web) Pages() (all []string) {
	for _, one := range w.Asked() {
		if !strings.HasSuffix(one, "/robots.txt") {
			all = append(all, one)
		}
	}
	return all
}

// Name makes a name resolve to addresses. It calls addresses for each query, one per
// address family.
func (w *Web) Name(name string, addresses func() []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name+"."] = addresses
}

func (w *Web) resolver() *net.Resolver {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { socket.Close() }) // the test is over
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := w.answer(buffer[:n]); answer != nil {
				socket.WriteTo(answer, from) // the client asks again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
}

func (w *Web) answer(question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	name := q.Name.String()
	w.mu.Lock()
	addresses := w.names[name]
	w.mu.Unlock()
	var found []string
	switch {
	case addresses != nil:
		found = addresses()
	case strings.HasSuffix(name, ".example.") || name == "example.com.":
		found = []string{w.At.Addr().String()}
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	for _, address := range found {
		ip := netip.MustParseAddr(address)
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case ip.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: ip.As4()}})
		case ip.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}})
		}
	}
	packed, err := m.Pack()
	if err != nil {
		w.t.Error(err)
	}
	return packed
}

// HTML serves a page with this content, and no robots.txt.
func HTML(content string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(content)) // a test
	}
}

// Site serves pages by host and path: "> address" redirects, and a number is a status.
func Site(pages func(name string) (content string, ok bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, port, _ := net.SplitHostPort(r.Host) // a host without a port has no name here
		content, ok := pages(host + r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		content = strings.ReplaceAll(content, ".example/", ".example:"+port+"/")
		if to, ok := strings.CutPrefix(content, "> "); ok {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
			return
		}
		if status, err := strconv.Atoi(content); err == nil {
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(content)) // a test
	}
}
