package web

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestPageNeedsNoPart shows that a server without any part shows the state of the streams at /, and has nothing at the
// addresses of parts.
func TestPageNeedsNoPart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var err error
	r.Handler, err = Handler(Config{DB: r.Pool, Now: func() time.Time { return r.Now }, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	r.Stream("jetstream", "live", "")
	page := r.Get("/")
	r.Audit(page)
	require.Contains(t, webtest.Text(r.Parse(page)), "State of the stream Live · reading host.example · last event 30 s ago")
	for _, target := range []string{
		"/links/1", "/api/v1/trending", "/api/v1/trending/stream", "/records/a.b.c/did:plc:aaa/1", "/api/v1/records/a.b.c",
		"/api/v1/search?q=heron",
		"/xrpc/com.atproto.repo.getRecord", "/feed.atom", "/feed.json",
	} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusNotFound, rec.Code, target)
		require.Contains(t, rec.Body.String(), "There is nothing at this address")
	}
}

// TestPartAddsToThePage shows that a part has its addresses, its form of errors and its texts, and that
// two parts cannot have the same text.
func TestPartAddsToThePage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	part := Part{
		Routes: func(s *Server) []Route {
			return []Route{{Pattern: "/tree/", Handler: func(w http.ResponseWriter, r *http.Request) {
				s.WriteError(w, r, http.StatusTeapot, Texts{"tree": "a tree"}.Say("tree"))
			}}}
		},
		Texts: Texts{"tree": "a tree"},
		API:   API{Path: "/tree/", Error: func(code int, message string) any { return []any{code, message} }, Public: true},
	}
	cfg := Config{DB: r.Pool, Now: time.Now, Parts: []Part{part}, Logger: slog.New(slog.DiscardHandler)}
	var err error
	r.Handler, err = Handler(cfg)
	require.NoError(t, err)
	rec := r.Do(http.MethodGet, "/tree/1")
	require.Equal(t, http.StatusTeapot, rec.Code)
	require.JSONEq(t, `[418, "a tree"]`, rec.Body.String())
	require.Equal(t, "*", rec.Header().Get("Access-Control-Allow-Origin"))
	require.Empty(t, r.Do(http.MethodGet, "/").Header().Values("Access-Control-Allow-Origin"))

	cfg.Parts[0].Texts = Texts{"to_start": "elsewhere"}
	_, err = Handler(cfg)
	require.ErrorContains(t, err, `a text "to_start"`)
}
