package web

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// Base returns the public address of this server: the configured one, or the one that the request
// names. The host in the request has been checked.
func (s *Server) Base(r *http.Request) string {
	if s.url != "" {
		return s.url
	}
	u := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil || s.clients.proxies.forward(r) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		u.Scheme = "https"
	}
	if _, err := url.Parse(u.String()); err != nil || r.Host == "" {
		u.Host = "localhost"
	}
	return u.String()
}

// parsePublic returns the public address without a slash at its end.
func parsePublic(address string) (string, error) {
	if address == "" {
		return "", nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("URL is not an address such as https://weir.example, without a path")
	}
	return u.Scheme + "://" + u.Host, nil
}
