package bluesky_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

const (
	created = "com.atproto.server.createSession"
	renewed = "com.atproto.server.refreshSession"
	resolve = "com.atproto.identity.resolveHandle"
)

// pds is a server with sessions, scripted by its fields.
type pds struct {
	mu       sync.Mutex
	n        int    // number of sessions created
	valid    string // the accepted access token; if empty, none is
	refusal  string // status and body of the response to another token
	refresh  bool   // sessions can be renewed
	password string
	login    int // status of a refused login
}

func (p *pds) answer(w http.ResponseWriter, r *http.Request, _ int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch strings.TrimPrefix(r.URL.Path, "/xrpc/") {
	case created:
		if p.password == "" {
			reply(w, p.login, `{"error":"AuthenticationRequired","message":"Invalid identifier or password"}`)
			return
		}
		p.give(w)
	case renewed:
		if !p.refresh || r.Header.Get("Authorization") != fmt.Sprintf("Bearer refresh%d", p.n) {
			reply(w, 400, `{"error":"ExpiredToken"}`)
			return
		}
		p.give(w)
	default:
		if r.Header.Get("Authorization") != "Bearer "+p.valid {
			status, body, _ := strings.Cut(p.refusal, " ")
			reply(w, map[string]int{"400": 400, "401": 401}[status], body)
			return
		}
		resolved(w)
	}
}

func (p *pds) give(w http.ResponseWriter) {
	p.n++
	if p.valid != "" {
		p.valid = fmt.Sprintf("access%d", p.n)
	}
	reply(w, 200, fmt.Sprintf(`{"did":%q,"accessJwt":"access%d","refreshJwt":"refresh%d"}`, alice, p.n, p.n))
}

func (p *pds) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.valid = "none"
}

func (p *pds) setPassword(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.password = s
}

func loginAt(base string) func(*bluesky.Config) {
	return func(cfg *bluesky.Config) {
		cfg.Login = &bluesky.Login{PDS: base, Identifier: "alice.example", Password: "hunter2"}
		noRetries(cfg)
	}
}

func TestSessionIsUsedUntilTokenExpires(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refusal string
		refresh bool
		then    []string
	}{
		"refreshed":              {`401 {"error":"AuthenticationRequired"}`, true, []string{resolve, renewed, resolve}},
		"refreshed after 400":    {`400 {"error":"ExpiredToken"}`, true, []string{resolve, renewed, resolve}},
		"created anew":           {`401 `, false, []string{resolve, renewed, created, resolve}},
		"created anew after 400": {`400 {"error":"InvalidToken"}`, false, []string{resolve, renewed, created, resolve}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pds{valid: "none", refusal: c.refusal, refresh: c.refresh, password: "hunter2"}
			base, j := serve(t, p.answer)
			l := new(limiter)
			client := newClient(t, "http://127.0.0.1:1", func(cfg *bluesky.Config) { loginAt(base)(cfg); cfg.Limit = l.limit })
			for range 2 {
				_, err := client.ResolveHandle(t.Context(), "alice.example")
				require.NoError(t, err)
			}
			require.Equal(t, []string{created, resolve, resolve}, j.calls())
			require.JSONEq(t, `{"identifier":"alice.example","password":"hunter2"}`, j.all()[0].body)
			p.expire()
			_, err := client.ResolveHandle(t.Context(), "alice.example")
			require.NoError(t, err)
			require.Equal(t, c.then, j.calls()[3:])
			require.EqualValues(t, len(j.all()), l.taken.Load())
			require.EqualValues(t, l.taken.Load(), l.back.Load())
		})
	}
}

func TestTokenRejectedTwiceIsPermanent(t *testing.T) {
	t.Parallel()
	p := &pds{refusal: `401 {"error":"AuthenticationRequired"}`, refresh: true, password: "hunter2"}
	base, j := serve(t, p.answer)
	_, err := newClient(t, base, loginAt(base)).ResolveHandle(t.Context(), "alice.example")
	e := failure(t, err)
	require.Equal(t, bluesky.Permanent, e.Class)
	require.Equal(t, 401, e.Status)
	require.ErrorIs(t, err, bluesky.ErrLogin)
	require.Equal(t, []string{created, resolve, renewed, resolve}, j.calls())
}

func TestPermanentErrorIsNotALoginError(t *testing.T) {
	t.Parallel()
	p := &pds{refusal: `400 {"error":"AccountTakedown"}`, password: "hunter2"}
	base, j := serve(t, p.answer)
	_, err := newClient(t, base, loginAt(base)).ResolveHandle(t.Context(), "alice.example")
	require.Equal(t, "AccountTakedown", failure(t, err).Name)
	require.NotErrorIs(t, err, bluesky.ErrLogin)
	require.Equal(t, []string{created, resolve}, j.calls())
}

func TestConcurrentCallsRenewSessionOnce(t *testing.T) {
	t.Parallel()
	p := &pds{valid: "none", refusal: "401 ", refresh: true, password: "hunter2"}
	base, j := serve(t, p.answer)
	c := newClient(t, base, loginAt(base))
	for range 2 {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.ResolveHandle(t.Context(), "alice.example"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		p.expire()
	}
	count := map[string]int{}
	for _, call := range j.calls() {
		count[call]++
	}
	require.Equal(t, 1, count[created])
	require.Equal(t, 1, count[renewed])
}

func TestRejectedLoginIsNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &pds{valid: "none", refusal: "401 ", password: "hunter2", login: 401}
		client, j := serveInside(t, p.answer)
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { loginAt("http://localhost")(cfg); cfg.HTTPClient = client })
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		require.NoError(t, err)
		p.expire()
		p.setPassword("")
		for range 10 {
			_, err := c.ResolveHandle(t.Context(), "alice.example")
			e := failure(t, err)
			require.Equal(t, bluesky.Permanent, e.Class)
			require.Equal(t, created, e.Call)
			require.ErrorIs(t, err, bluesky.ErrLogin)
			require.NotContains(t, fmt.Sprintf("%v %+v", err, e), "hunter2")
		}
		require.Equal(t, []string{created, resolve, resolve, renewed, created}, j.calls())

		time.Sleep(6 * time.Minute)
		p.setPassword("hunter2")
		_, err = c.ResolveHandle(t.Context(), "alice.example")
		require.NoError(t, err)
		require.Equal(t, []string{created, resolve}, j.calls()[5:])
	})
}

func TestUnreachableLoginIsNotRejected(t *testing.T) {
	t.Parallel()
	for status, class := range map[int]bluesky.Class{500: bluesky.Transient, 429: bluesky.RateLimited} {
		p := &pds{login: status}
		base, _ := serve(t, p.answer)
		_, err := newClient(t, base, loginAt(base)).ResolveHandle(t.Context(), "alice.example")
		require.Equal(t, class, failure(t, err).Class)
		require.NotErrorIs(t, err, bluesky.ErrLogin)
	}
}

func TestLoginRateLimitDoesNotDelayCalls(t *testing.T) {
	t.Parallel()
	p := &pds{valid: "none", password: "hunter2"}
	base, j := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if strings.HasSuffix(r.URL.Path, created) {
			w.Header().Set("RateLimit-Remaining", "0")
			w.Header().Set("RateLimit-Reset", "300")
		}
		p.answer(w, r, n)
	})
	_, err := newClient(t, base, loginAt(base)).ResolveHandle(t.Context(), "alice.example")
	require.NoError(t, err)
	require.Equal(t, []string{created, resolve}, j.calls())
}

func TestSessionWithoutTokensIsRejected(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{}`, `{"accessJwt":"a","refreshJwt":""}`, `{"accessJwt":"a\r\nX: y","refreshJwt":"b"}`} {
		base, _ := serve(t, func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, body) })
		_, err := newClient(t, base, loginAt(base)).ResolveHandle(t.Context(), "alice.example")
		e := failure(t, err)
		require.Equal(t, bluesky.Transient, e.Class, body)
		require.Equal(t, created, e.Call, "a token that fits in no header must not be kept")
	}
}
