package bluesky_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

func TestResponsesAreClassified(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status   int
		body     string
		class    bluesky.Class
		name     string
		message  string
		requests int
	}{
		{
			400, `{"error":"AccountTakedown","message":"Account has been taken down"}`, bluesky.Permanent, "AccountTakedown",
			"Account has been taken down", 1,
		},
		{400, `{"error":"AccountDeactivated"}`, bluesky.Permanent, "AccountDeactivated", "Bad Request", 1},
		{401, `{"error":"AuthMissing"}`, bluesky.Permanent, "AuthMissing", "Unauthorized", 1},
		{403, `<html>`, bluesky.Permanent, "", "Forbidden", 1},
		{404, `{"error":"NotFound"}`, bluesky.Permanent, "NotFound", "Not Found", 1},
		{410, ``, bluesky.Permanent, "", "Gone", 1},
		{400, `{"error":7,"message":["no"]}`, bluesky.Permanent, "", "Bad Request", 1},
		{400, `{"error":"a b","message":"one\ntwo\u0000"}`, bluesky.Permanent, "", "one two\ufffd", 1},
		{400, `{"message":"` + strings.Repeat("é", 1000) + `"}`, bluesky.Permanent, "", strings.Repeat("é", 300), 1},
		{429, `{"error":"RateLimitExceeded"}`, bluesky.RateLimited, "RateLimitExceeded", "Too Many Requests", 1},
		{408, ``, bluesky.Transient, "", "Request Timeout", 3},
		{500, `{"error":"InternalServerError"}`, bluesky.Transient, "InternalServerError", "Internal Server Error", 3},
		{502, `bad gateway`, bluesky.Transient, "", "Bad Gateway", 3},
		{503, ``, bluesky.Transient, "", "Service Unavailable", 3},
		{501, `{"error":"MethodNotImplemented"}`, bluesky.Transient, "MethodNotImplemented", "Not Implemented", 3},
		{204, ``, bluesky.Transient, "Malformed", "", 3},
	} {
		t.Run(strconv.Itoa(c.status)+c.name, func(t *testing.T) {
			t.Parallel()
			base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, c.status, c.body) })
			_, err := newClient(t, base, nil).ResolveHandle(t.Context(), "alice.example")
			e := failure(t, err)
			require.Equal(t, c.class, e.Class)
			require.Equal(t, c.status, e.Status)
			require.Equal(t, c.name, e.Name)
			if c.message != "" {
				require.Equal(t, c.message, e.Message)
			}
			require.Equal(t, "com.atproto.identity.resolveHandle", e.Call)
			require.Len(t, j.all(), c.requests)
		})
	}
}

func TestForeignErrorsAreTransient(t *testing.T) {
	t.Parallel()
	require.Equal(t, bluesky.Transient, bluesky.Classify(errors.New("anything")))
	require.Zero(t, bluesky.RetryAfter(errors.New("anything")))
	wrapped := fmt.Errorf("sync: %w", &bluesky.Error{Class: bluesky.RateLimited, RetryAfter: time.Minute})
	require.Equal(t, bluesky.RateLimited, bluesky.Classify(wrapped))
	require.Equal(t, time.Minute, bluesky.RetryAfter(wrapped))
}

func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, j := serveInside(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 503, "") })
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { cfg.HTTPClient, cfg.Retries = client, nil })
		started := time.Now()
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		require.Equal(t, bluesky.Transient, failure(t, err).Class)
		var at []time.Duration
		for _, a := range j.all() {
			at = append(at, a.at.Sub(started))
		}
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, at)
	})
}

func TestSuccessfulRetryHidesError(t *testing.T) {
	t.Parallel()
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, j := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
				if n == 1 {
					fault(w, r, n)
					return
				}
				resolved(w)
			})
			did, err := newClient(t, base, nil).ResolveHandle(t.Context(), "alice.example")
			require.NoError(t, err)
			require.Equal(t, alice, did)
			require.Len(t, j.all(), 2)
		})
	}
}

func TestBrokenResponsesAreTransient(t *testing.T) {
	t.Parallel()
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, j := serve(t, fault)
			_, err := newClient(t, base, nil).ResolveHandle(t.Context(), "alice.example")
			require.Equal(t, bluesky.Transient, failure(t, err).Class)
			require.Len(t, j.all(), 3)
		})
	}
}

// faults returns responses that no server should send to resolveHandle.
func faults() map[string]answerer {
	body := func(s string) answerer {
		return func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, http.StatusOK, s) }
	}
	return map[string]answerer{
		"empty":       body(""),
		"html":        body("<html>please log in</html>"),
		"null":        body("null"),
		"array":       body("[]"),
		"no did":      body("{}"),
		"number":      body(`{"did":7}`),
		"not a did":   body(`{"did":"did:plc:\u0000"}`),
		"two values":  body(`{"did":"` + alice + `"} {}`),
		"deep":        body(strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000)),
		"cut off":     body(`{"did":"` + alice),
		"not utf-8":   body("{\"did\":\"did:plc:\xff\xfe\"}"),
		"no redirect": func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusFound) },
		"truncated": func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(`{"did":"` + alice + `"}`))
		},
		"hung up": func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) },
		"server error": func(w http.ResponseWriter, _ *http.Request, _ int) {
			reply(w, http.StatusInternalServerError, `{"error":"NotSent"}`)
		},
	}
}

func TestResponsesAreBounded(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		_, _ = w.Write([]byte(`{"did":"` + alice + `","pad":"`))
		chunk := []byte(strings.Repeat("x", 1<<20))
		for range 17 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
		_, _ = w.Write([]byte(`"}`))
	})
	_, err := newClient(t, base, noRetries).ResolveHandle(t.Context(), "alice.example")
	e := failure(t, err)
	require.Equal(t, bluesky.Transient, e.Class)
	require.Equal(t, 200, e.Status)
	require.Contains(t, e.Message, "longer than 16777216 bytes")
}

func TestEndlessResponseTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, _ := serveInside(t, func(w http.ResponseWriter, r *http.Request, _ int) {
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(" ")); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
		})
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { cfg.HTTPClient = client; noRetries(cfg) })
		started := time.Now()
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		e := failure(t, err)
		require.Equal(t, bluesky.Transient, e.Class)
		require.Contains(t, e.Message, "did not respond within 15s")
		require.NotErrorIs(t, err, context.DeadlineExceeded) // the caller's deadline has not passed
		require.Equal(t, 15*time.Second, time.Since(started))
	})
}

func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, j := serveInside(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 500, "") })
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { cfg.HTTPClient, cfg.Retries = client, nil })
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		started := time.Now()
		_, err := c.ResolveHandle(ctx, "alice.example")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, bluesky.Transient, bluesky.Classify(err))
		require.Equal(t, 1500*time.Millisecond, time.Since(started))
		require.Len(t, j.all(), 2)
	})
}

func TestRedirectsStayOnTheHost(t *testing.T) {
	t.Parallel()
	other, elsewhere := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { resolved(w) })
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		switch {
		case r.URL.Path == "/moved":
			resolved(w)
		case r.URL.Query().Get("handle") == "here.example":
			http.Redirect(w, r, "/moved", http.StatusFound)
		case r.URL.Query().Get("handle") == "loop.example":
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		default:
			http.Redirect(w, r, other+"/", http.StatusFound)
		}
	})
	c := newClient(t, base, noRetries)
	did, err := c.ResolveHandle(t.Context(), "here.example")
	require.NoError(t, err)
	require.Equal(t, alice, did)
	for _, handle := range []string{"there.example", "loop.example"} {
		_, err = c.ResolveHandle(t.Context(), handle)
		require.Equal(t, 302, failure(t, err).Status)
		require.Equal(t, bluesky.Transient, bluesky.Classify(err))
	}
	require.Empty(t, elsewhere.all())
	require.Len(t, j.all(), 2+1+4, "a redirect loop must end")
}

// limiter counts how many permits it gave and got back.
type limiter struct {
	taken, back, now, most, refused atomic.Int64
	refuse                          error
}

func (l *limiter) limit(context.Context) (func(), error) {
	if l.refuse != nil {
		l.refused.Add(1)
		return nil, l.refuse
	}
	l.taken.Add(1)
	l.most.Store(max(l.most.Load(), l.now.Add(1)))
	return func() { l.back.Add(1); l.now.Add(-1) }, nil
}

func TestLimitIsTakenOncePerRequest(t *testing.T) {
	t.Parallel()
	for name, fault := range faults() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := new(limiter)
			base, j := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
				if l.now.Load() != 1 {
					panic("a request without the limit")
				}
				fault(w, r, n)
			})
			c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Limit = l.limit })
			_, err := c.ResolveHandle(t.Context(), "alice.example")
			require.Error(t, err)
			require.Len(t, j.all(), 3)
			require.EqualValues(t, 3, l.taken.Load())
			require.EqualValues(t, 3, l.back.Load())
			require.EqualValues(t, 1, l.most.Load())
		})
	}
}

func TestNothingIsSentWithoutLimit(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { resolved(w) })
	cause := errors.New("the database is away")
	l := &limiter{refuse: cause}
	c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Limit = l.limit })
	_, err := c.ResolveHandle(t.Context(), "alice.example")
	require.ErrorIs(t, err, cause)
	require.Equal(t, bluesky.Transient, failure(t, err).Class)
	require.EqualValues(t, 1, l.refused.Load(), "the limiter must not be asked again and again")

	l.refuse = &bluesky.Error{Class: bluesky.RateLimited, RetryAfter: time.Minute}
	_, err = c.ResolveHandle(t.Context(), "alice.example")
	require.Equal(t, bluesky.RateLimited, failure(t, err).Class)
	require.Equal(t, time.Minute, bluesky.RetryAfter(err))
	require.Empty(t, j.all())
}

func TestConcurrentCalls(t *testing.T) {
	t.Parallel()
	base, j := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n%5 == 0 {
			reply(w, 500, "")
			return
		}
		resolved(w)
	})
	l := new(limiter)
	c := newClient(t, base, func(cfg *bluesky.Config) {
		cfg.Limit = l.limit
		cfg.Retries = []time.Duration{0, 0, 0, 0, 0, 0, 0, 0, 0}
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 5 {
				if _, err := c.ResolveHandle(t.Context(), "alice.example"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, len(j.all()), l.taken.Load())
	require.EqualValues(t, l.taken.Load(), l.back.Load())
}

// TestRequestsAreCountedByCallHostAndClass checks that hosts from DID documents
// are counted together: they must not become labels.
func TestRequestsAreCountedByCallHostAndClass(t *testing.T) {
	t.Parallel()
	base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		w.Header().Set("RateLimit-Remaining", "2999")
		if n == 1 {
			reply(w, 500, "")
			return
		}
		resolved(w)
	})
	pds, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { records(w, alice) })
	directory, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, didDocument(alice, pds)) })
	metrics := prometheus.NewRegistry()
	c := newClient(t, base, func(cfg *bluesky.Config) { cfg.Registerer, cfg.Directory = metrics, directory })
	_, err := c.ResolveHandle(t.Context(), "alice.example")
	require.NoError(t, err)
	_, _, err = c.Records(t.Context(), alice, "app.bsky.feed.post", "", 50)
	require.NoError(t, err)
	families, err := metrics.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	host := strings.TrimPrefix(base, "http://")
	require.Equal(t, map[string]float64{
		"weir_bluesky_requests_total com.atproto.identity.resolveHandle transient " + host:        1,
		"weir_bluesky_requests_total com.atproto.identity.resolveHandle ok " + host:               1,
		"weir_bluesky_requests_total did_document ok " + strings.TrimPrefix(directory, "http://"): 1,
		"weir_bluesky_requests_total com.atproto.repo.listRecords ok other":                       1,
		"weir_bluesky_request_seconds com.atproto.identity.resolveHandle":                         2,
		"weir_bluesky_request_seconds did_document":                                               1,
		"weir_bluesky_request_seconds com.atproto.repo.listRecords":                               1,
		"weir_bluesky_rate_limit_remaining " + host:                                               2999,
		"weir_bluesky_breaker_openings_total":                                                     0,
	}, got)
}

func TestInvalidConfigurationIsRejected(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]bluesky.Config{
		"no scheme":       {AppView: "public.api.bsky.app"},
		"ftp":             {AppView: "ftp://public.api.bsky.app"},
		"path":            {AppView: "https://public.api.bsky.app/xrpc"},
		"directory":       {Directory: "https://"},
		"no password":     {Login: &bluesky.Login{PDS: "https://bsky.social", Identifier: "alice.example"}},
		"no pds":          {Login: &bluesky.Login{Identifier: "alice.example", Password: "x"}},
		"plain password":  {Login: &bluesky.Login{PDS: "http://bsky.social", Identifier: "alice.example", Password: "x"}},
		"other transport": {HTTPClient: &http.Client{Transport: http.NewFileTransport(http.Dir("."))}},
	} {
		_, err := bluesky.New(cfg)
		require.Error(t, err, name)
	}
	_, err := bluesky.New(bluesky.Config{AppView: "https://me:secret@appview.example"})
	require.ErrorContains(t, err, "appview.example")
	require.NotContains(t, err.Error(), "secret")
}
