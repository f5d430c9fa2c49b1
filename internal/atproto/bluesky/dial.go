package bluesky

import (
	"fmt"
	"net/http"

	"github.com/weir-social/weir/internal/guard"
)

// maxRedirects limits the redirects of a request within its host.
const maxRedirects = 3

// maxIdle is how many idle connections to a host are kept. If there were fewer than
// concurrent calls, most calls would start with a dial.
const maxIdle = 10

// newHTTPClients returns the client for configured hosts and the one for hosts from
// DID documents.
func newHTTPClients(given *http.Client, loopback bool) (trusted, guarded *http.Client, err error) {
	var round http.RoundTripper = http.DefaultTransport
	if given != nil && given.Transport != nil {
		round = given.Transport
	}
	transport, ok := round.(*http.Transport)
	if !ok {
		return nil, nil,
			fmt.Errorf("the HTTP client's transport is a %T: use an *http.Transport, so that hosts from DID documents can be guarded", round)
	}
	if given == nil || given.Transport == nil {
		transport = transport.Clone()
		transport.MaxIdleConnsPerHost = maxIdle
	}
	trusted, guarded = &http.Client{Transport: transport}, &http.Client{Transport: guard.Config{Loopback: loopback}.Transport(transport)}
	if given != nil {
		trusted.Jar, trusted.Timeout = given.Jar, given.Timeout
	}
	trusted.CheckRedirect, guarded.CheckRedirect = sameHost, sameHost
	return trusted, guarded, nil
}

// sameHost follows redirects within the request's origin only. Any other redirect
// is returned as the response.
func sameHost(req *http.Request, via []*http.Request) error {
	first := via[0].URL
	if len(via) > maxRedirects || req.URL.Scheme != first.Scheme || req.URL.Host != first.Host || req.URL.User != nil {
		return http.ErrUseLastResponse
	}
	return nil
}
