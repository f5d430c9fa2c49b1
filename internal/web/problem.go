package web

import (
	"net/http"
	"strconv"
	"strings"
)

// problemView is an error page.
type problemView struct {
	frame
	Code    int
	Heading string
	Message string
	Again   string // the address to retry; empty: a retry would not help
	ToHome  string
}

// writeError writes an error, as JSON under /api/ and /xrpc/, and as a page elsewhere. The
// message says what to send instead.
func (s *server) writeError(w http.ResponseWriter, r *http.Request, code int, message string) {
	w.Header().Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, "/api/") {
		writeJSON(w, code, map[string]string{"error": message})
		return
	}
	if strings.HasPrefix(r.URL.Path, "/xrpc/") {
		writeJSON(w, code, &xrpcError{Name: xrpcName(code), Message: message})
		return
	}
	page := problemView{
		frame: s.newFrame(), Code: code, Heading: say("error_heading_" + strconv.Itoa(code)), Message: message, ToHome: s.homeName,
	}
	if code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests {
		page.Again = r.URL.RequestURI()
	}
	s.render(w, code, "problem", page)
}

// writeUnavailable reports that the database does not respond.
func (s *server) writeUnavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.writeError(w, r, http.StatusServiceUnavailable, say("error_unavailable"))
}
