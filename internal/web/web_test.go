package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// rig is a page with a database of its own.
type rig struct{ *webtest.Rig }

// treePart is a part with an address of the API.
func treePart() Part {
	return Part{Images: "https://images.example/{did}/{cid}", Routes: func(*Server) []Route {
		return []Route{{
			Pattern: "/api/v1/trees",
			Handler: func(w http.ResponseWriter, _ *http.Request) { WriteJSON(w, http.StatusOK, []string{"oak"}) },

			Operation: &Operation{Name: "trees", Summary: "The trees", Returns: []string{}},
		}}
	}}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{webtest.New(t)}
	var err error
	r.Handler, err = Handler(Config{
		DB: r.Pool, Now: func() time.Time { return r.Now }, Parts: []Part{treePart()},
		Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(t, err)
	return r
}

// asOps makes the rig use the handler for operators.
func (r *rig) asOps(token string) *rig {
	r.T.Helper()
	var err error
	r.Handler, err = OpsHandler(OpsConfig{
		DB: r.Pool, Check: func(context.Context) error { return nil }, Metrics: prometheus.NewRegistry(), Token: token,
		Now: func() time.Time { return r.Now }, Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(r.T, err)
	return r
}

func TestOnlyGETAndHEADAreAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
		for _, target := range []string{"/", "/api/v1/trees", "/nowhere"} {
			rec := r.Do(method, target)
			require.Equal(t, http.StatusMethodNotAllowed, rec.Code, "%s %s", method, target)
			require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
		}
	}
	for _, target := range []string{"/", "/api/v1/trees"} {
		require.Equal(t, http.StatusOK, r.Do(http.MethodHead, target).Code, target)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{
		"/nowhere", "/index.html", "/static/page.css", "/static/0/page.css", "/fragment", "/api/v1/trees/x",
		"/templates/page.html",
	} {
		require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, target).Code, target)
	}
	require.JSONEq(t, `{"error":"There is nothing at this address: the start page is at /."}`,
		r.Do(http.MethodGet, "/api/v2/trees").Body.String())
}

func TestEveryResponseHasThePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"/", "/api/v1/trees", "/nowhere", "/?x"} {
		h := r.Do(http.MethodGet, target).Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' https://images.example; "+
			"base-uri 'none'; form-action 'self'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), target)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), target)
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"), target)
	}
}

func TestInvalidConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := Config{DB: r.Pool, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	_, err := Handler(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*Config){
		"no database": func(c *Config) { c.DB = nil },
		"no clock":    func(c *Config) { c.Now = nil },
		"no logger":   func(c *Config) { c.Logger = nil },
		"image base":  func(c *Config) { c.Parts = []Part{{Images: "ftp://images.example/{did}/{cid}"}} },
	} {
		cfg := good
		spoil(&cfg)
		_, err := Handler(cfg)
		require.Error(t, err, name)
	}
}

func ExampleHandler() {
	_, err := Handler(Config{})
	fmt.Println(err)
	// Output: the page needs DB, Now and Logger: set all three
}
