// Package web is the server of Weir's pages and APIs, and the pages and endpoints for operators. What it serves to
// readers comes from the parts, with which features add pages and APIs. Requests for the same page share one response
// for a second.
//
// Texts, names and URLs come from strangers. html/template escapes them, characters that reorder text are removed, only
// http and https URLs become links, and the Content-Security-Policy allows no script but the page's own.
package web

import (
	"context"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"

	"github.com/weir-social/weir/schema"
)

// DB is a pool: queries run concurrently.
type DB interface {
	schema.DB
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Config configures the server.
type Config struct {
	DB      DB
	Primary DB // for what a part writes, if DB can only be read; nil: DB
	Now     func() time.Time

	Keep    time.Duration // how long rendered pages are sent again, such as KeepPages; 0: they are not
	Proxies Proxies       // proxies whose X-Forwarded-For is trusted

	// URL is the public address that parts link to, such as https://weir.example. "": the one that
	// the request names.
	URL string

	Parts    []Part          // what features add
	Stopping <-chan struct{} // closed when the process stops: streams end; nil: never
	Logger   *slog.Logger
}

// Server serves the requests. It is safe for concurrent use.
type Server struct {
	DB       DB // is read
	Primary  DB // can be written
	Now      func() time.Time
	Log      *slog.Logger
	Stopping <-chan struct{}

	site
	images
	assets    assets
	templates *template.Template
	script    string             // the texts of the script
	slots     renderSlots        // limits concurrent pages
	rendering singleflight.Group // the running renderings, by address
	cache     *Cache[keptResponse]
	keep      time.Duration // 0: no responses are kept
	clients   *clients
}

// site is how the server presents itself.
type site struct {
	url     string // the public address; empty: the one that a request names
	home    string // the target of the name at the top of every page
	front   Front
	actions string // the paths below this one accept POST; empty: none
	parts   []Part
	apis    []API
}

// Handler serves the parts. Without one that has the page at /, it shows the state of the streams there. The error
// names the field of cfg to change.
func Handler(cfg Config) (http.Handler, error) {
	if cfg.DB == nil || cfg.Now == nil || cfg.Logger == nil {
		return nil, errors.New("the page needs DB, Now and Logger: set all three")
	}
	s, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	s.home, s.front = "/", Front{ToIt: say("to_start"), Nothing: say("error_not_found")}
	mux := http.NewServeMux()
	var routes []Route
	for _, part := range cfg.Parts {
		if part.Front != nil {
			s.front = *part.Front
		}
		if part.Routes != nil {
			routes = append(routes, part.Routes(s)...)
		}
	}
	document, err := s.openAPI(routes)
	if err != nil {
		return nil, err
	}
	if document != nil {
		routes = append(routes, Route{Pattern: openAPIPath, Handler: s.serveOpenAPI(document)})
	}
	s.add(mux, routes)
	if !slices.ContainsFunc(cfg.Parts, func(p Part) bool { return p.Front != nil }) {
		mux.HandleFunc("/{$}", s.kept(s.serveStart))
	}
	mux.HandleFunc("/static/{build}/{name}", s.serveAsset)
	mux.HandleFunc("/", s.ServeNotFound)
	return s.secure(s.limited(mux)), nil
}

// newServer loads the templates and static files.
func newServer(cfg Config) (*Server, error) {
	images, err := parseImages(cfg.Parts)
	if err != nil {
		return nil, err
	}
	assets, err := readAssets(cfg.Parts)
	if err != nil {
		return nil, err
	}
	texts, err := mergeTexts(cfg.Parts)
	if err != nil {
		return nil, err
	}
	templates, err := parseTemplates(cfg.Parts, texts)
	if err != nil {
		return nil, err
	}
	public, err := parsePublic(cfg.URL)
	if err != nil {
		return nil, err
	}
	primary := cfg.Primary
	if primary == nil {
		primary = cfg.DB
	}
	return &Server{
		DB: cfg.DB, Primary: primary, Now: cfg.Now, Log: cfg.Logger, Stopping: cfg.Stopping,
		site:   site{url: public, parts: cfg.Parts, apis: apis(cfg.Parts)},
		images: images, assets: assets, templates: templates, script: scriptTexts(texts), slots: make(renderSlots, maxRendering),
		cache: NewCache[keptResponse](maxKept), keep: cfg.Keep, clients: newClients(cfg.Proxies, cfg.Logger),
	}, nil
}

// policy is the Content-Security-Policy of pages with these styles and images.
func policy(styles, images string) string {
	return "default-src 'none'; script-src 'self'; style-src 'self'" + styles + "; connect-src 'self'; img-src 'self'" + images +
		"; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
}

// headers sets the security headers of every response.
func headers(policy string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		setCommonHeaders(h)
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// secure sets the security headers of every response and refuses all methods but GET
// and HEAD, and POST to actions.
func (s *Server) secure(next http.Handler) http.Handler {
	return headers(policy("", s.images.source()), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if s.apiOf(r).Public { // it has no cookies
			h.Set("Access-Control-Allow-Origin", "*")
			h.Set("Cross-Origin-Resource-Policy", "cross-origin")
			if r.Method == http.MethodOptions { // a browser asks before it sends a header that the page sets
				h.Set("Access-Control-Allow-Methods", "GET, HEAD")
				h.Set("Access-Control-Allow-Headers", "*")
				w.WriteHeader(http.StatusNoContent)
				return
			}
		}
		acts := r.Method == http.MethodPost && s.actions != "" && strings.HasPrefix(r.URL.Path, s.actions)
		if r.Method != http.MethodGet && r.Method != http.MethodHead && !acts {
			h.Set("Allow", "GET, HEAD")
			s.WriteError(w, r, http.StatusMethodNotAllowed, say("error_method"))
			return
		}
		next.ServeHTTP(w, r)
	}))
}

func (s *Server) ServeNotFound(w http.ResponseWriter, r *http.Request) {
	s.WriteError(w, r, http.StatusNotFound, s.front.Nothing)
}
