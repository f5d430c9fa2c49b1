package web

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Limits of a request before it is read. A waiting connection uses about 20 kB.
const (
	headerTimeout = 5 * time.Second  // for the complete header of a request
	idleTimeout   = 30 * time.Second // between two requests
	maxHeader     = 16 << 10         // bytes of a header
)

// ServerConfig configures an HTTP server.
type ServerConfig struct {
	Handler     http.Handler
	Hosts       Hosts         // allowed besides loopback names and the local address
	Connections int           // maximum number of open connections
	Within      time.Duration // time limit of a response, including sending it
	Bodies      []string      // requests for what is below these paths may have a body, which their handlers limit
	Logger      *slog.Logger
}

// NewServer returns a server on which slow or numerous clients cannot exhaust memory:
// headers, responses and idle connections have time limits, the number of connections
// is limited, and no request bodies are read but those that cfg names.
func NewServer(cfg ServerConfig) *http.Server {
	return &http.Server{
		Handler:           checkHost(cfg.Hosts, cfg.Logger, dropBody(cfg.Bodies, cfg.Handler)),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      cfg.Within,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         newConnections(cfg.Connections, cfg.Logger).stateChanged,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),

		DisableGeneralOptionsHandler: true, // OPTIONS * is refused like any other method
	}
}

// setCommonHeaders sets the headers of every response.
func setCommonHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// checkHost refuses requests for other hosts.
func checkHost(hosts Hosts, log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setCommonHeaders(w.Header())
		if hosts.allows(r) {
			next.ServeHTTP(w, r)
			return
		}
		name := PlainLine(hostOf(r.Host), MaxSite)
		log.Debug("host_refused", "host", name)
		w.Header().Set("Connection", "close")
		http.Error(w, say("error_host", name), http.StatusMisdirectedRequest)
	})
}

// dropBody hides the body of a request, and closes the connection without waiting for
// the body.
func dropBody(but []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 || slices.ContainsFunc(but, func(path string) bool { return strings.HasPrefix(r.URL.Path, path) }) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		http.NewResponseController(w).SetReadDeadline(time.Now()) // without it, the connection ends with the read timeout
		r.Body = http.NoBody
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			http.Error(w, say("error_body"), http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r) // refuses the method
	})
}
