package web

import (
	"log/slog"
	"net/http"
	"time"
)

// Bounds of what a client may take of the process before its request is read. A
// connection that waits costs about 20 kB.
const (
	headerTimeout = 5 * time.Second  // for the header of a request, however slowly it comes
	idleTimeout   = 30 * time.Second // between two requests; the page asks every five seconds
	maxHeader     = 16 << 10         // bytes of it
)

// ServerConfig is what a listener of Weir's needs.
type ServerConfig struct {
	Handler     http.Handler
	Hosts       Hosts         // besides loopback names and the listener's own address
	Connections int           // at most, at once
	Within      time.Duration // an answer is made and sent
	Logger      *slog.Logger
}

// NewServer is a server on which neither slow clients nor many hold memory:
// headers, answers and idle connections have their time, connections their
// number, and nobody waits for a body, since nothing here reads one.
func NewServer(cfg ServerConfig) *http.Server {
	return &http.Server{
		Handler:           onlyKnown(cfg.Hosts, cfg.Logger, withoutBody(cfg.Handler)),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		WriteTimeout:      cfg.Within,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         newConnections(cfg.Connections, cfg.Logger).changed,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),

		DisableGeneralOptionsHandler: true, // OPTIONS * is refused like any other
	}
}

// protect sets the headers that every answer has, whatever it is.
func protect(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// onlyKnown refuses requests for other hosts.
func onlyKnown(hosts Hosts, log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(w.Header())
		if hosts.allow(r) {
			next.ServeHTTP(w, r)
			return
		}
		name := plain(hostOf(r.Host), maxSite)
		log.Debug("host_refused", "host", name)
		w.Header().Set("Connection", "close")
		http.Error(w, "Weir does not know the host name "+name+". If this server is to be reached by it, add the name to the variable WEIR_HOSTS "+
			"(several are separated by commas) and restart Weir.", http.StatusMisdirectedRequest)
	})
}

// withoutBody hides the body of a request, and has the connection closed without
// waiting for it.
func withoutBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		http.NewResponseController(w).SetReadDeadline(time.Now()) //nolint:errcheck // at worst, the connection lasts as long as reading may
		r.Body = http.NoBody
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			http.Error(w, "Nothing here reads a body: send the request without one.", http.StatusRequestEntityTooLarge)
			return
		}
		next.ServeHTTP(w, r) // which refuses the method
	})
}
