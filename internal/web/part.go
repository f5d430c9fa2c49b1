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
	Routes func(*Server) []Route // nil: none
	Files  fs.FS                 // templates/*.html, which use those of the page, and static files in static/; nil: none
	Texts  Texts                 // for the templates
	API    API                   // its own form of errors; the zero value: that of the page
	Front  *Front

	// Images is the URL of images stored as blob:<did>/<cid>: an http or https URL with {did} and {cid} in its path or
	// query. "": the part has none.
	Images string

	Network Network // accounts and records that are not Bluesky's; the zero value: none

	// Alternates returns other forms of a page, such as feeds; nil: there are none.
	Alternates func(address string) []Alternate
}

// Front is set by the part that has the page at /.
type Front struct {
	ToIt    string // the text of a link to it
	Nothing string // says that an address has no page
}

// Network shows the accounts and records of a network that is not Bluesky's.
type Network struct {
	Name    string // marks its accounts
	Profile string // the text of a link to a profile

	Account func(did string) (name, profile string) // an account's name and address; empty: it is not one of these
	Record  func(uri string) string                 // the address that shows a record; empty: it is not one of these
}

// Alternate is another form of a page, to which the page links.
type Alternate struct{ Name, Href, Type string }

// Route is an address. Its response is rendered in one of a few slots, and compressed.
type Route struct {
	Pattern string // of http.ServeMux
	Handler http.HandlerFunc
	Kept    bool // the response is sent again for a short time to all clients that request the same
	Direct  bool // the handler has no slot, and its response is sent as it is written. See Buffered

	Operation *Operation // describes it to clients; nil: it is not part of an API
}

// API is the addresses below a path, whose errors are JSON.
type API struct {
	Path   string // such as "/api/"
	Error  func(code int, message string) any
	Public bool   // pages of any site may read it
	About  string // ends the description of the API in OpenAPI, if its own addresses are described elsewhere
}

// add adds routes.
func (s *Server) add(mux *http.ServeMux, routes []Route) {
	for _, route := range routes {
		switch {
		case route.Kept:
			mux.HandleFunc(route.Pattern, s.kept(route.Handler))
		case route.Direct:
			mux.HandleFunc(route.Pattern, route.Handler)
		default:
			mux.HandleFunc(route.Pattern, s.Buffered(route.Handler))
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

// errorJSON is an error of the API.
type errorJSON struct {
	Error string `json:"error"`
}

// apis returns the APIs of the page and its parts.
func apis(parts []Part) []API {
	all := []API{{Path: "/api/", Error: func(_ int, message string) any { return errorJSON{message} }}}
	for _, part := range parts {
		if part.API.Path != "" {
			all = append(all, part.API)
		}
	}
	return all
}

// Alternates returns the other forms of a page.
func (s *Server) Alternates(address string) (all []Alternate) {
	for _, part := range s.parts {
		if part.Alternates != nil {
			all = append(all, part.Alternates(address)...)
		}
	}
	return all
}

// folders returns the files of the page and its parts.
func folders(parts []Part) []fs.FS {
	all := []fs.FS{files}
	for _, part := range parts {
		if part.Files != nil {
			all = append(all, part.Files)
		}
	}
	return all
}

// parseTemplates reads the templates of the page and its parts.
func parseTemplates(parts []Part, texts Texts) (*template.Template, error) {
	parsed := template.New("").Funcs(template.FuncMap{"say": texts.Say})
	for _, folder := range folders(parts) {
		if _, err := parsed.ParseFS(folder, "templates/*.html"); err != nil {
			return nil, fmt.Errorf("parse the templates: %w", err)
		}
	}
	return parsed, nil
}
