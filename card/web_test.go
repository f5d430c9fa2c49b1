package card

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/weir-social/weir/guard"
)

// web is the web of a test: a name server, and a server for all public names. Names lead to
// other addresses only if the test says so.
type web struct {
	t      *testing.T
	at     netip.AddrPort // of the server
	port   string
	turns  atomic.Int64 // requests that were announced
	client *Client
	serve  http.HandlerFunc

	mu    sync.Mutex
	names map[string]func() []string // the addresses of a name
	asked []string                   // the requests: host and path
}

// newWeb starts a web. With secure, it speaks https.
func newWeb(t *testing.T, secure bool, serve http.HandlerFunc) *web {
	t.Helper()
	w := &web{t: t, serve: serve, names: map[string]func() []string{}}
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of clients that refuse the certificate
	roots := x509.NewCertPool()
	if secure {
		server.StartTLS()
		roots.AddCert(server.Certificate()) // for example.com
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	w.at = netip.MustParseAddrPort(server.Listener.Addr().String())
	w.port = strconv.Itoa(int(w.at.Port()))
	proxy := func(*http.Request) (*url.URL, error) { t.Error("a proxy is asked"); return nil, nil }
	w.client = New(Config{
		Transport: &http.Transport{Proxy: proxy, TLSClientConfig: &tls.Config{RootCAs: roots}}, //nolint:gosec // TLS 1.2 is the default
		Guard:     guard.Config{Allow: []netip.AddrPort{w.at}, Resolver: w.resolver()},
		Ports:     []string{w.port},
		Turn:      func(context.Context, string) error { w.turns.Add(1); return nil },
		UserAgent: "weir (+https://weir.example)",
	})
	return w
}

// ServeHTTP has no robots.txt unless the test has one.
func (w *web) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Host)
	w.mu.Lock()
	w.asked = append(w.asked, host+r.URL.Path)
	w.mu.Unlock()
	w.serve(to, r)
}

// requests returns the requests so far, without those of robots.txt.
func (w *web) requests() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.asked {
		if !strings.HasSuffix(one, "/robots.txt") {
			all = append(all, one)
		}
	}
	return all
}

// address returns the address of a page.
func (w *web) address(host, path string) string { return "http://" + host + ":" + w.port + path }

// fetch fetches the page of a host.
func (w *web) fetch(host, path string) (Page, error) {
	w.t.Helper()
	return w.client.Fetch(w.t.Context(), w.address(host, path))
}

// name has a name lead to addresses, other than the server's.
func (w *web) name(name string, addresses func() []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[name+"."] = addresses
}

// resolver asks a name server of the test.
func (w *web) resolver() *net.Resolver {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(w.t, err)
	w.t.Cleanup(func() { socket.Close() }) //nolint:errcheck // the test is over
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := w.answer(buffer[:n]); answer != nil {
				socket.WriteTo(answer, from) //nolint:errcheck // it asks again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", socket.LocalAddr().String())
	}}
}

func (w *web) answer(question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	w.mu.Lock()
	addresses := w.names[q.Name.String()]
	w.mu.Unlock()
	var found []string
	switch name := q.Name.String(); {
	case addresses != nil:
		found = addresses()
	case strings.HasSuffix(name, ".example.") || name == "example.com.":
		found = []string{w.at.Addr().String()}
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

// page serves a page with this content.
func page(content string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		w.Write([]byte(content)) //nolint:errcheck // a test
	}
}

// pages serves pages by host and path: "> address" redirects, a number is a status.
func pages(of map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		host, port, _ := net.SplitHostPort(r.Host)
		content, ok := of[host+r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if to, ok := strings.CutPrefix(content, "> "); ok {
			w.Header().Set("Location", strings.ReplaceAll(to, ".example/", ".example:"+port+"/"))
			w.WriteHeader(http.StatusFound)
			return
		}
		if status, err := strconv.Atoi(content); err == nil {
			w.WriteHeader(status)
			return
		}
		page(content)(w, r)
	}
}
