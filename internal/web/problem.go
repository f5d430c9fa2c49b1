package web

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// problemView is an error page.
type problemView struct {
	Frame
	Code    int
	Heading string
	Message string
	Again   string // the address to retry; empty: a retry would not help
}

// WriteError writes an error, as JSON in an API, and as a page elsewhere. The
// message says what to send instead.
func (s *Server) WriteError(w http.ResponseWriter, r *http.Request, code int, message string) {
	w.Header().Set("Cache-Control", "no-store")
	if api := s.apiOf(r); api.Error != nil {
		WriteJSON(w, code, api.Error(code, message))
		return
	}
	page := problemView{
		Frame: s.NewFrame(), Code: code, Heading: say("error_heading_" + strconv.Itoa(code)), Message: message,
	}
	if code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests {
		page.Again = r.URL.RequestURI()
	}
	s.Render(w, code, "problem", page)
}

// WriteUnavailable reports that the database does not respond.
func (s *Server) WriteUnavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.WriteError(w, r, http.StatusServiceUnavailable, say("error_unavailable"))
}

func WriteJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v) // the client has gone
}
