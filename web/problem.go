package web

import (
	"net/http"
	"strings"
)

// problemView is an error page.
type problemView struct {
	Title   string
	Code    int
	Heading string
	Message string
	CSS     string
	Icon    string
	Retry   bool // the page reloads itself
	Home    string
	ToHome  string
}

// writeError writes an error, as JSON under /api/ and as a page elsewhere. The message
// says what to send instead.
func (s *server) writeError(w http.ResponseWriter, r *http.Request, code int, message string) {
	w.Header().Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, "/api/") {
		writeJSON(w, code, map[string]string{"error": message})
		return
	}
	s.render(w, code, "problem", problemView{
		Title: s.title, Code: code, Heading: http.StatusText(code), Message: message, Retry: code == http.StatusServiceUnavailable,
		CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg"), Home: s.home, ToHome: s.homeName,
	})
}

// writeUnavailable reports that the database does not respond.
func (s *server) writeUnavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.writeError(w, r, http.StatusServiceUnavailable, "The database does not respond, so links cannot be counted. Stored data is safe; try again in a moment.")
}
