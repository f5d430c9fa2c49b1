package card

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/guard"
)

// htmlOf responds with HTML. There is no robots.txt.
func htmlOf(body func(w http.ResponseWriter, r *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		body(w, r)
	}
}

// pour writes a text repeatedly until the reader disconnects, and returns the number of bytes.
func pour(w io.Writer, text string) (n int) {
	block := bytes.Repeat([]byte(text), 1+65536/len(text))
	for {
		more, err := w.Write(block)
		if n += more; err != nil {
			return n
		}
	}
}

// TestEndlessPageIsReadForTwoMegabytes covers pages that never end their head, their title, an
// attribute, a comment, or their list of meta elements, plain and compressed.
func TestEndlessPageIsReadForTwoMegabytes(t *testing.T) {
	t.Parallel()
	for begin, again := range map[string]string{
		"<title>T</title>":         `<meta property="og:description" content="more">`,
		"<title>T":                 " x",
		"<title>T</title><script>": "var x = 1;\n",
		"<title>T</title><!--":     "comment ",
		`<title>T</title><meta property="og:title" content="`:       "endless ",
		"<title>T</title><meta ":                                    "a ",
		"<title>T</title><noscript>":                                "<p>",
		"<title>T</title>\x00":                                      "\x00",
		"<title>T</title><meta property=og:site_name content=S>":    `<meta name="x" content="` + strings.Repeat("&quot;", 1000) + `">`,
		"<title>T</title><link rel=canonical href=//paper.example/": "a",
	} {
		for _, compressed := range []bool{false, true} {
			poured := make(chan int, 1)
			w := newWeb(t, false, htmlOf(func(w http.ResponseWriter, _ *http.Request) {
				if !compressed {
					io.WriteString(w, begin) // the reader may disconnect
					poured <- pour(w, again)
					return
				}
				w.Header().Set("Content-Encoding", "gzip")
				counted := &counter{to: w}
				zipped := gzip.NewWriter(counted)
				io.WriteString(zipped, begin) // the reader may disconnect
				pour(zipped, again)
				poured <- counted.n
			}))
			p, err := w.fetch("paper.example", "/a")
			require.NoError(t, err, begin)
			require.True(t, strings.HasPrefix(p.Title, "T"), "%s: %s", begin, p.Title)
			require.LessOrEqual(t, len(p.Title), maxTitle*4)
			require.Less(t, <-poured, 32<<20, "%s: expected the sockets' buffers and two megabytes at most", begin)
		}
	}
}

type counter struct {
	to io.Writer
	n  int
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += n
	return n, err
}

// TestCompressionBombIsBounded shows that content that decompresses to gigabytes is never held in
// whole, and that content that decompresses to nothing is not read for ever.
func TestCompressionBombIsBounded(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&bomb, gzip.BestCompression)
	require.NoError(t, err)
	io.WriteString(zipped, "<title>T</title><meta x='") // writing to a buffer
	for range 64 {
		zipped.Write(make([]byte, 1<<20)) // writing to a buffer
	}
	require.NoError(t, zipped.Close())
	require.Less(t, bomb.Len(), 100<<10)

	var many bytes.Buffer // many small elements, and one far behind them
	zipped = gzip.NewWriter(&many)
	io.WriteString(zipped, "<title>T</title>")                                          // writing to a buffer
	io.WriteString(zipped, strings.Repeat("<meta name=a>", 16<<20/13))                  // writing to a buffer
	io.WriteString(zipped, `<meta property="og:title" content="far behind the limit">`) // writing to a buffer
	require.NoError(t, zipped.Close())

	var empty bytes.Buffer // empty members, repeated
	zipped = gzip.NewWriter(&empty)
	require.NoError(t, zipped.Close())

	var twice bytes.Buffer // the bomb, compressed twice
	zipped = gzip.NewWriter(&twice)
	zipped.Write(bomb.Bytes()) // writing to a buffer
	require.NoError(t, zipped.Close())

	for name, c := range map[string]struct {
		encoding string
		content  []byte
		endless  bool
		title    string
		dead     string
	}{
		"bomb":        {encoding: "gzip", content: bomb.Bytes(), title: "T"},
		"many":        {encoding: "gzip", content: many.Bytes(), title: "T"},
		"nothing":     {encoding: "gzip", content: empty.Bytes(), endless: true},
		"twice":       {encoding: "gzip, gzip", content: twice.Bytes(), dead: "another way than gzip"},
		"once of two": {encoding: "gzip", content: twice.Bytes()},
		"brotli":      {encoding: "br", content: []byte("x"), dead: "another way than gzip"},
		"deflate":     {encoding: "deflate", content: []byte("x"), dead: "another way than gzip"},
		"no gzip":     {encoding: "gzip", content: []byte("<title>T</title>"), dead: "compression is broken"},
		"cut off":     {encoding: "gzip", content: bomb.Bytes()[:5000], title: "T"},
		"corrupt": {
			encoding: "gzip", content: append(bytes.Clone(bomb.Bytes()[:20]), bytes.Repeat([]byte{0xff}, 5000)...),
			dead: "compression is broken",
		},
	} {
		w := newWeb(t, false, htmlOf(func(w http.ResponseWriter, r *http.Request) {
			require.Equal(t, "gzip", r.Header.Get("Accept-Encoding"))
			w.Header().Set("Content-Encoding", c.encoding)
			if c.endless {
				pour(w, string(c.content))
				return
			}
			w.Write(c.content) // the reader may disconnect
		}))
		p, err := w.fetch("paper.example", "/a")
		if c.dead == "" {
			require.NoError(t, err, name)
			require.Equal(t, c.title, p.Title, name)
			continue
		}
		var dead *Dead
		require.ErrorAs(t, err, &dead, name)
		require.ErrorContains(t, err, c.dead, name)
	}
}

func TestRedirectLoopEnds(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, pages(map[string]string{
		"a.example/loop": "> /loop", "a.example/ping": "> http://b.example/pong", "b.example/pong": "> http://a.example/ping",
		"a.example/0": "> /1", "a.example/1": "> /2", "a.example/2": "> /3", "a.example/3": "> /4", "a.example/4": "> /5",
		"a.example/5": "<title>five</title>", "a.example/more": "> /0",
		"a.example/nowhere": "> ", "a.example/odd": "> http://[::", "a.example/long": "> /" + strings.Repeat("x", 2*maxAddress),
		"a.example/js": "> javascript:alert(1)", "a.example/file": "> file:///etc/passwd",
		"a.example/user": "> http://user:pw@a.example/0", "a.example/port": "> http://a.example:22/0",
		"a.example/tls": "> https://a.example:443/0", "a.example/gopher": "> gopher://a.example:70/0", "a.example/host": "> http:///0",
	}))
	p, err := w.fetch("a.example", "/0")
	require.NoError(t, err)
	require.Equal(t, "five", p.Title)
	for path, why := range map[string]string{
		"/loop": "more than 5 times", "/ping": "more than 5 times", "/more": "more than 5 times", "/nowhere": "",
		"/odd": "no address", "/long": "more than 4096 bytes",
		"/js": "neither http nor https", "/file": "neither http nor https", "/gopher": "neither http nor https",
		"/user": "user name", "/port": "port 22", "/tls": "port 443", "/host": "without a host",
	} {
		before := len(w.Pages())
		_, err := w.fetch("a.example", path)
		var dead *Dead
		require.ErrorAs(t, err, &dead, path)
		require.ErrorContains(t, err, why, path)
		require.LessOrEqual(t, len(w.Pages())-before, 6, path)
	}
}

// TestSlowPageIsGivenUp covers a slow header and a slow body, however steadily the data arrives.
func TestSlowPageIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Host, "robots.") == (r.URL.Path != "/robots.txt") {
			http.NotFound(w, r)
			return
		}
		if r.URL.Path != "/header" {
			w.Header().Set("Content-Type", "text/html")
			for i := 0; r.Context().Err() == nil; i++ {
				fmt.Fprintf(w, "<meta name=%d>", i) // the reader may disconnect
				w.(http.Flusher).Flush()            // the writer supports it
				select {
				case <-r.Context().Done():
				case <-time.After(5 * time.Millisecond):
				}
			}
		}
		<-r.Context().Done()
	})
	w.client.cfg.Timeout = 300 * time.Millisecond
	for _, address := range []string{"paper.example/header", "paper.example/body", "robots.example/a"} {
		host, path, _ := strings.Cut(address, "/")
		_, err := w.fetch(host, "/"+path)
		require.ErrorIs(t, err, context.DeadlineExceeded, address)
		var dead *Dead
		require.NotErrorAs(t, err, &dead)
	}
}

func TestCertificateMustFit(t *testing.T) {
	t.Parallel()
	w := newWeb(t, true, page("<title>T</title>"))
	secure := func(host string) error {
		_, err := w.client.Fetch(t.Context(), "https://"+host+":"+w.Port+"/a")
		return err
	}
	require.NoError(t, secure("example.com"), "the certificate is valid for this host")
	var dead *Dead
	err := secure("paper.example")
	require.ErrorAs(t, err, &dead)
	require.ErrorContains(t, err, "no valid certificate")
	require.Error(t, func() error { _, err := w.fetch("example.com", "/a"); return err }(), "http to a server that speaks https")

	plain := newWeb(t, false, page("<title>T</title>"))
	_, err = plain.client.Fetch(t.Context(), "https://example.com:"+plain.Port+"/a")
	require.Error(t, err)
}

// forbidden returns addresses that must not be connected to, in all their forms.
func forbidden() []string {
	return []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "127.0.0.2", "127.255.255.254", "169.254.169.254",
		"172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1",
		"198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.2", "::ffff:127.0.0.2", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:7f00:2",
		"64:ff9b::7f00:2", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:2", "100::1",
		"2001::7f00:2", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:2::1", "2002:a9fe:a9fe::", "3fff::1",
		"5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1", "ff0e::1",
	}
}

// TestNoForbiddenAddressIsConnectedTo covers a page that redirects to such an address, a name that
// resolves to one, and a name that does so only the second time. Listeners on loopback count
// connections at the allowed server's port.
func TestNoForbiddenAddressIsConnectedTo(t *testing.T) {
	t.Parallel()
	to := new(atomic.Value)
	to.Store("")
	w := newWeb(t, false, htmlOf(func(w http.ResponseWriter, r *http.Request) {
		if at := to.Load().(string); at != "" && r.URL.Path == "/redirects" { // it is a string
			http.Redirect(w, r, at, http.StatusFound)
			return
		}
		io.WriteString(w, "<title>T</title>") // the reader may disconnect
	}))
	var connected atomic.Int64
	listening := 0
	for _, address := range []string{"127.0.0.2", "127.255.255.254", "::1"} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, w.Port))
		if err != nil {
			continue // the machine has no such address
		}
		listening++
		server := httptest.NewUnstartedServer(page("<title>secret</title>"))
		server.Listener.Close() // replaced by another listener
		server.Listener = l
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				connected.Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
	}
	require.Positive(t, listening)

	for _, address := range forbidden() {
		ip := netip.MustParseAddr(address)
		names := []string{net.JoinHostPort(address, w.Port)}
		if ip.Is4() { // in the forms that browsers and libc accept
			b := ip.As4()
			names = append(names, fmt.Sprintf("%d:%s", uint32(b[0])<<24|uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3]), w.Port),
				fmt.Sprintf("0x%x.%d.%d.%d:%s", b[0], b[1], b[2], b[3], w.Port), fmt.Sprintf("0%o.%d.%d.%d:%s", b[0], b[1], b[2], b[3], w.Port))
		}
		for _, name := range names {
			to.Store("http://" + name + "/")
			_, err := w.fetch("paper.example", "/redirects")
			require.Error(t, err, name)
			_, err = w.client.Fetch(t.Context(), "http://"+name+"/")
			require.Error(t, err, name)
		}
		to.Store("")

		w.Name("evil.example", func() []string { return []string{address} })
		_, err := w.fetch("evil.example", "/a")
		require.Error(t, err, address)
		if !ip.Is4In6() { // the resolver refuses such a response as no IPv6 address
			require.ErrorIs(t, errOf(w, "evil.example"), guard.ErrPrivate, address)
		}

		// The name resolves to the server the first time, and elsewhere from then on.
		var lookups atomic.Int64
		w.Name("rebinds.example", func() []string {
			if lookups.Add(1) <= 2 { // one query for each address family
				return []string{w.At.Addr().String()}
			}
			return []string{address}
		})
		w.client.robots.hosts = nil
		_, err = w.fetch("rebinds.example", "/a")
		require.Error(t, err, address)
	}
	require.Zero(t, connected.Load(), "a forbidden address got a connection")
	p, err := w.fetch("paper.example", "/a")
	require.NoError(t, err)
	require.Equal(t, "T", p.Title)
}

// errOf returns the transport's error for a host.
func errOf(w *web, host string) error {
	resp, err := (&http.Client{Transport: w.client.transport}).Get(w.Address(host, "/a"))
	if err == nil {
		resp.Body.Close() // the body is not used
	}
	return err
}

// TestPublicAddressOfSeveralIsUsed covers a name that resolves to a private and a public address.
func TestPublicAddressOfSeveralIsUsed(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, page("<title>T</title>"))
	w.Name("both.example", func() []string { return []string{"127.0.0.2", "10.0.0.1", "::1", w.At.Addr().String()} })
	p, err := w.fetch("both.example", "/a")
	require.NoError(t, err)
	require.Equal(t, "T", p.Title)
}

func TestPortsAre80And443(t *testing.T) {
	t.Parallel()
	c := New(Config{})
	for address, ok := range map[string]bool{
		"http://a.example/": true, "https://a.example/": true, "http://a.example:443/": true, "https://a.example:80/": true,
		"http://a.example:8080/": false, "https://a.example:22/": false, "http://a.example:0/": false,
	} {
		at, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, ok, c.check(at) == nil, address)
	}
}
