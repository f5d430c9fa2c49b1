package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// TestDeadLettersAreNotPublic shows that only operators may see dead letters,
// which contain text from strangers.
func TestDeadLettersAreNotPublic(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	one := r.deadLetter("commit", "open", "it is too long", "the text of a post")
	for _, target := range []string{"/deadletters", "/deadletters?stage=commit", one} {
		rec := r.Do(http.MethodGet, target)
		require.Equal(t, http.StatusNotFound, rec.Code, target)
		require.NotContains(t, rec.Body.String(), "the text of a post")
	}
	require.NotContains(t, r.Get("/"), "deadletters")

	r.asOps("open sesame")
	for _, target := range []string{"/deadletters", one} {
		require.Equal(t, http.StatusUnauthorized, r.Do(http.MethodGet, target).Code)
		require.Equal(t, http.StatusOK, r.Do(http.MethodGet, target, "Authorization", "Bearer open sesame").Code)
	}
	require.Contains(t, r.Do(http.MethodGet, one, "Authorization", "Bearer open sesame").Body.String(), "the text of a post")
	r.asOps("")
	for _, n := range webtest.Find(r.Parse(r.Get("/deadletters")), func(n *html.Node) bool { return n.Data == "a" || n.Data == "link" }) {
		r.Get(webtest.Attr(n, "href"))
	}
}

func TestTokenIsABearerTokenOrAPassword(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("open sesame")
	for authorization, code := range map[string]int{
		"": 401, "open sesame": 401, "Bearer open sesam": 401, "Bearer ": 401, "Bearer": 401, "Basic": 401,
		"Basic bm9ib2R5Og==": 401, "Basic bm9ib2R5Om9wZW4gc2VzYW0=": 401, // without a user name: "nobody:" and "nobody:open sesame"
		"Bearer open sesame": 200, "Basic bm9ib2R5Om9wZW4gc2VzYW1l": 200, "Basic Om9wZW4gc2VzYW1l": 200,
	} {
		for _, target := range []string{"/metrics", "/deadletters", "/debug/pprof/", "/debug/pprof/cmdline"} {
			rec := r.Do(http.MethodGet, target, "Authorization", authorization)
			require.Equal(t, code, rec.Code, "%s with %q", target, authorization)
			if code == 401 {
				require.Contains(t, rec.Body.String(), "WEIR_OPS_TOKEN")
				require.Len(t, rec.Header().Values("WWW-Authenticate"), 2)
			}
		}
	}
	for _, target := range []string{"/livez", "/readyz"} {
		require.Equal(t, http.StatusOK, r.Do(http.MethodGet, target).Code, "an orchestrator has no token")
	}
}

func TestProfilesRequireAToken(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	for _, name := range []string{"", "heap", "cmdline", "profile", "trace", "symbol", "goroutine?debug=2"} {
		rec := r.Do(http.MethodGet, "/debug/pprof/"+name)
		require.Equal(t, http.StatusNotFound, rec.Code, name)
		require.Contains(t, rec.Body.String(), "set the variable WEIR_OPS_TOKEN")
	}
}

func TestProfilesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("secret")
	for _, kind := range []string{"profile", "trace", "heap", "goroutine"} {
		for _, seconds := range []string{"31", "1e9", "9223372036854775807", "-1", "NaN", "Inf", "ten"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // ends a profile that has begun
			request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/debug/pprof/"+kind+"?seconds="+url.QueryEscape(seconds), nil)
			request.SetBasicAuth("", "secret")
			rec := httptest.NewRecorder()
			r.Handler.ServeHTTP(rec, request)
			cancel()
			require.Equal(t, http.StatusBadRequest, rec.Code, "%s for %s seconds", kind, seconds)
			require.Equal(t, fmt.Sprintf("seconds is %q: send a number from 0 to 30\n", seconds), rec.Body.String())
		}
	}
	rec := r.Do(http.MethodGet, "/debug/pprof/trace?seconds=0.01", "Authorization", "Bearer secret")
	require.Equal(t, http.StatusOK, rec.Code)
	require.True(t, strings.HasPrefix(rec.Body.String(), "go 1."), "a trace")
}

func TestPagesForOperatorsHaveThePolicyAndAreReadOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t).asOps("")
	for _, target := range []string{
		"/", "/livez", "/readyz", "/health", "/metrics", "/deadletters", "/deadletters/1", "/debug/pprof/", "/static/x/y",
		"/nowhere",
	} {
		h := r.Do(http.MethodGet, target).Header()
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'", target)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), target)
		require.Equal(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"), target)
		for _, method := range []string{http.MethodPost, http.MethodOptions, http.MethodDelete} {
			require.Equal(t, http.StatusMethodNotAllowed, r.Do(method, target).Code, "%s %s", method, target)
		}
	}
}
