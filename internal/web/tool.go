package web

import (
	"net/http"
	"strings"
)

// A Tool is a program for operators that a feature brings, with pages and an API of its own. It can change things.
type Tool struct {
	Name    string // for people
	Path    string // it serves everything below, with a slash at both ends
	Handler func() (http.Handler, error)
}

// maxToolBody limits the body of a request to a tool: 1,000 ids of jobs have half of it.
const maxToolBody = 64 << 10

// handleTools adds the tools. A stranger can do nothing with one, and a page of another site, which an operator's
// browser may show, can read and change nothing.
func (o OpsConfig) handleTools(s *Server, mux *http.ServeMux) error {
	for _, tool := range o.Tools {
		handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.WriteError(w, r, http.StatusNotFound, say("error_tool", tool.Name))
		}))
		if o.Token != "" || o.OpenTools {
			opened, err := tool.Handler()
			if err != nil {
				return err
			}
			handler = o.requireToken(http.NewCrossOriginProtection().Handler(uncached(http.MaxBytesHandler(opened, maxToolBody))))
		}
		handler = headers(policy(" 'unsafe-inline'", ""), handler) // styles that a script writes are inline
		mux.Handle(tool.Path, handler)
		mux.Handle(strings.TrimSuffix(tool.Path, "/"), handler) // no redirect of the mux's comes before the token
	}
	return nil
}

// uncached keeps what a tool shows out of the browser's cache.
func uncached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
