// Package web serves the ranking: as a page that a small script keeps up to date, and as JSON, also
// as a stream of changes. It stores nothing: every response is counted from the shares at the time
// that it shows. Requests for the same page share one response for a second, and streams of the
// same view share their computations.
//
// What else is served comes from the parts, with which features add pages and APIs.
//
// Titles, descriptions, handles and URLs come from strangers. html/template escapes them,
// characters that reorder text are removed, only http and https URLs become links, and the
// Content-Security-Policy allows no script but the page's own.
package web

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/weir-social/weir/internal/ranking"
)

// Config configures the page.
type Config struct {
	DB  ranking.DB       // a pool: queries run concurrently
	Now func() time.Time // the end of a window

	// ImageBase is the URL of images stored as blob:<did>/<cid>: an http or https
	// URL with {did} and {cid} in its path or query. "": no images.
	ImageBase string

	Keep    time.Duration // how long rendered pages are sent again, such as KeepPages; 0: they are not
	Proxies Proxies       // proxies whose X-Forwarded-For is trusted

	// URL is the public address that parts link to, such as https://weir.example. "": the one that
	// the request names.
	URL string

	Parts    []Part          // what features add
	Title    string          // the name at the top of the page; "": Weir
	Stopping <-chan struct{} // closed when the process stops: streams end; nil: never
	Logger   *slog.Logger
}

// Server serves the requests. It is safe for concurrent use.
type Server struct {
	DB  ranking.DB
	Now func() time.Time
	Log *slog.Logger

	site
	images    images
	assets    assets
	templates *template.Template
	slots     renderSlots        // limits concurrent pages
	counting  singleflight.Group // the running counts, by view
	rendering singleflight.Group // the running renderings, by address
	cache     *cache
	following following
	clients   *clients
	live      *liveViews
	corrupt   sync.Once // logs an invalid stored URL once
}

// site is how the server presents itself.
type site struct {
	Title    string
	url      string // the public address; empty: the one that a request names
	home     string // the target of the name at the top of every page
	homeName string // the text of the link to it
	actions  string // the paths below this one accept POST; empty: none
	apis     []API
	others   []func(View) []Alternate
}

// Handler serves the page at /, the pages of links, the JSON API under /api/v1/, and the parts. The error names the field of cfg to change.
func Handler(cfg Config) (http.Handler, error) {
	if cfg.DB == nil || cfg.Now == nil || cfg.Logger == nil {
		return nil, errors.New("the page needs DB, Now and Logger: set all three")
	}
	s, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	s.home, s.homeName = "/", say("to_ranking")
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.kept(s.servePage))
	mux.HandleFunc("/links/{id}", s.kept(s.linkHandler(linkPages().Parameters, s.serveLinkPage)))
	mux.HandleFunc("/api/v1/trending", s.buffered(s.serveTrending))
	mux.HandleFunc("/api/v1/trending/stream", s.serveStream)
	mux.HandleFunc("/api/v1/links/{id}", s.buffered(s.linkHandler(linkParameters(), s.serveLink)))
	mux.HandleFunc("/api/v1/links/{id}/shares", s.buffered(s.linkHandler(shareParameters(), s.serveLinkShares)))
	for _, part := range cfg.Parts {
		s.add(mux, part)
	}
	mux.HandleFunc("/static/{build}/{name}", s.serveAsset)
	mux.HandleFunc("/", s.ServeNotFound)
	return s.secure(s.limited(mux)), nil
}

// newServer loads the templates and static files.
func newServer(cfg Config) (*Server, error) {
	images, err := parseImages(cfg.ImageBase)
	if err != nil {
		return nil, err
	}
	assets, err := readAssets()
	if err != nil {
		return nil, err
	}
	templates, err := parseTemplates(cfg.Parts)
	if err != nil {
		return nil, err
	}
	public, err := parsePublic(cfg.URL)
	if err != nil {
		return nil, err
	}
	s := &Server{
		DB: cfg.DB, Now: cfg.Now, Log: cfg.Logger, site: site{Title: cmp.Or(cfg.Title, "Weir"), url: public, apis: apis(cfg.Parts), others: alternates(cfg.Parts)},
		images: images, assets: assets, templates: templates, slots: make(renderSlots, maxRendering),
		cache: newCache(cfg.Keep), clients: newClients(cfg.Proxies, cfg.Logger),
	}
	s.live = newLiveViews(func(ctx context.Context, q ranking.Query) (ranking.Page, error) {
		q.At = s.Now()
		return ranking.Trending(ctx, s.DB, q)
	}, s.shown, cfg.Stopping, cfg.Logger)
	s.live.streams = s.readStreams
	return s, nil
}

// secure sets the security headers of every response and refuses all methods but GET
// and HEAD, and POST to actions.
func (s *Server) secure(next http.Handler) http.Handler {
	policy := "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'" + s.images.source() +
		"; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		setCommonHeaders(h)
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
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
	})
}

func (s *Server) ServeNotFound(w http.ResponseWriter, r *http.Request) {
	s.WriteError(w, r, http.StatusNotFound, say("error_not_found"))
}
