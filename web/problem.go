package web

import (
	"net/http"
	"strings"
)

// problemView is a page that says why there is no ranking.
type problemView struct {
	Title   string
	Code    int
	Heading string
	Says    string
	CSS     string
	Icon    string
	Retry   bool // the page tries again by itself
	Home    string
	ToHome  string
}

// refuse answers with an error, as JSON under /api/ and as a page elsewhere.
// says tells what to send instead.
func (s *server) refuse(w http.ResponseWriter, r *http.Request, code int, says string) {
	w.Header().Set("Cache-Control", "no-store")
	if strings.HasPrefix(r.URL.Path, "/api/") {
		writeJSON(w, code, map[string]string{"error": says})
		return
	}
	s.render(w, code, "problem", problemView{
		Title: s.title, Code: code, Heading: http.StatusText(code), Says: says, Retry: code == http.StatusServiceUnavailable,
		CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg"), Home: s.home, ToHome: s.homeName,
	})
}

// unavailable answers for a database that did not. Where the client has gone
// instead, nobody reads it.
func (s *server) unavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.refuse(w, r, http.StatusServiceUnavailable, "The database does not answer, so nothing can be counted. What is stored is safe; try again in a moment.")
}
