package card

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/weir-social/weir/internal/guard/guardtest"
)

// web is a test's web, with a client that reaches it.
type web struct {
	*guardtest.Web
	t      *testing.T
	turns  atomic.Int64 // number of calls of Turn
	client *Client
}

func newWeb(t *testing.T, secure bool, serve http.HandlerFunc) *web {
	t.Helper()
	w := &web{Web: guardtest.New(t, secure, serve), t: t}
	proxy := func(*http.Request) (*url.URL, error) { t.Error("a proxy is asked"); return nil, nil }
	w.client = New(Config{
		Transport: &http.Transport{Proxy: proxy, TLSClientConfig: &tls.Config{RootCAs: w.Roots}}, // TLS 1.2 is the default
		Guard:     w.Guard,
		Ports:     []string{w.Port},
		Turn:      func(context.Context, string) error { w.turns.Add(1); return nil },
		UserAgent: "weir (+https://weir.example)",
	})
	return w
}

// fetch fetches the page of a host.
func (w *web) fetch(host, path string) (Page, error) {
	w.t.Helper()
	return w.client.Fetch(w.t.Context(), w.Address(host, path))
}

func page(content string) http.HandlerFunc { return guardtest.HTML(content) }

func pages(of map[string]string) http.HandlerFunc {
	return guardtest.Site(func(name string) (string, bool) { content, ok := of[name]; return content, ok })
}
