package web

import (
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
)

// A Part is what a feature adds to the page. Without it, its addresses are not found.
type Part struct {
	Routes    func(*Server) []Route
	Templates fs.FS // *.html, which use those of the page; nil: none
	Texts     Texts // for the templates
	API       API   // its own form of errors; the zero value: that of the page

	// Alternates returns other forms of a view of the ranking, such as feeds; nil: there are none.
	Alternates func(View) []Alternate
}

// Alternate is another form of a view of the ranking, to which the page links.
type Alternate struct{ Name, Href, Type string }

// Route is an address. Its response is rendered in one of a few slots, and compressed.
type Route struct {
	Pattern string // of http.ServeMux
	Handler http.HandlerFunc
	Kept    bool // the response is sent again for a short time to all clients that request the same
}

// API is the addresses below a path, whose errors are JSON.
type API struct {
	Path   string // such as "/api/"
	Error  func(code int, message string) any
	Public bool // pages of any site may read it
}

// add adds the routes of a part.
func (s *Server) add(mux *http.ServeMux, part Part) {
	for _, route := range part.Routes(s) {
		if route.Kept {
			mux.HandleFunc(route.Pattern, s.kept(route.Handler))
		} else {
			mux.HandleFunc(route.Pattern, s.buffered(route.Handler))
		}
	}
}

// apiOf returns the API that a request is for; the zero value: none.
func (s *Server) apiOf(r *http.Request) API {
	for _, api := range s.apis {
		if strings.HasPrefix(r.URL.Path, api.Path) {
			return api
		}
	}
	return API{}
}

// apis returns the APIs of the page and its parts.
func apis(parts []Part) []API {
	all := []API{{Path: "/api/", Error: func(_ int, message string) any { return map[string]string{"error": message} }}}
	for _, part := range parts {
		if part.API.Path != "" {
			all = append(all, part.API)
		}
	}
	return all
}

func alternates(parts []Part) (all []func(View) []Alternate) {
	for _, part := range parts {
		if part.Alternates != nil {
			all = append(all, part.Alternates)
		}
	}
	return all
}

// alternates returns the other forms of a view.
func (s *site) alternates(v View) (all []Alternate) {
	for _, of := range s.others {
		all = append(all, of(v)...)
	}
	return all
}

// parseTemplates reads the templates of the page and its parts.
func parseTemplates(parts []Part) (*template.Template, error) {
	folders, all := []fs.FS{files}, []Texts{texts()}
	for _, part := range parts {
		all = append(all, part.Texts)
		if part.Templates != nil {
			folders = append(folders, part.Templates)
		}
	}
	merged, err := mergeTexts(all)
	if err != nil {
		return nil, err
	}
	parsed := template.New("").Funcs(template.FuncMap{"say": merged.Say})
	for _, folder := range folders {
		if _, err := parsed.ParseFS(folder, "templates/*.html"); err != nil {
			return nil, fmt.Errorf("parse the templates: %w", err)
		}
	}
	return parsed, nil
}
