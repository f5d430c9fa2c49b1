// Package web shows the ranking: a page that a server renders and a small
// script keeps fresh, and the same as JSON. It owns no data and caches none:
// every answer is counted from the shares as they are, and only requests that
// wait for the same count at the same moment share it.
//
// Titles, descriptions, handles and URLs were written by strangers. They are
// escaped by html/template, stripped of what reorders text, linked only where
// they are http or https, and the page's policy lets nothing run but its own
// script.
package web

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/weir-social/weir/schema"
)

// Config is what the page needs.
type Config struct {
	DB  schema.DB        // a pool: several queries run at once
	Now func() time.Time // where a window ends

	// ImageBase is where images stored as blob:<did>/<cid> are shown from: an
	// http or https URL with {did} and {cid} in its path or query. "": no images.
	ImageBase string

	Title  string // the name at the top of the page; "": Weir
	Logger *slog.Logger
}

// server answers the requests. It is used by many goroutines at once; nothing
// in it changes after Handler, but what locks itself.
type server struct {
	db        schema.DB
	now       func() time.Time
	title     string
	log       *slog.Logger
	images    images
	assets    assets
	templates *template.Template
	home      string             // where the name at the top of every page leads
	homeName  string             // what is there
	places    places             // for the pages that are made at once
	counting  singleflight.Group // the counts that somebody waits for, by window and limit
	corrupt   sync.Once          // the log line about a stored URL that is none
}

// Handler serves the page at /, its changing part at /fragment, and the JSON API
// at /api/v1/trending. The error says which field of cfg to change.
func Handler(cfg Config) (http.Handler, error) {
	if cfg.DB == nil || cfg.Now == nil || cfg.Logger == nil {
		return nil, errors.New("the page needs DB, Now and Logger: set all three")
	}
	s, err := newServer(cfg)
	if err != nil {
		return nil, err
	}
	s.home, s.homeName = "/", "To the ranking"
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", s.rendered(s.servePage))
	mux.HandleFunc("/fragment", s.rendered(s.serveFragment))
	mux.HandleFunc("/api/v1/trending", s.rendered(s.serveTrending))
	mux.HandleFunc("/static/{build}/{name}", s.serveAsset)
	mux.HandleFunc("/", s.serveNotFound)
	return s.guard(mux), nil
}

// newServer reads what every page needs.
func newServer(cfg Config) (*server, error) {
	images, err := parseImages(cfg.ImageBase)
	if err != nil {
		return nil, err
	}
	assets, err := readAssets()
	if err != nil {
		return nil, err
	}
	templates, err := template.ParseFS(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse the templates: %w", err)
	}
	return &server{
		db: cfg.DB, now: cfg.Now, title: cmp.Or(cfg.Title, "Weir"), log: cfg.Logger,
		images: images, assets: assets, templates: templates, places: make(places, pagesAtOnce),
	}, nil
}

// guard sets the headers that every answer has, and refuses to change anything.
func (s *server) guard(next http.Handler) http.Handler {
	policy := "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'" + s.images.source() +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		protect(h)
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			s.refuse(w, r, http.StatusMethodNotAllowed, "Nothing can be changed here: send GET or HEAD.")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *server) serveNotFound(w http.ResponseWriter, r *http.Request) {
	s.refuse(w, r, http.StatusNotFound, "There is nothing at this address: the ranking is at /, and as JSON at /api/v1/trending.")
}
