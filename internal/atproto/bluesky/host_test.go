package bluesky_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

// inside runs a test in a synctest bubble, with a client whose AppView is
// scripted.
func inside(t *testing.T, answer answerer, test func(t *testing.T, c *bluesky.Client, j *journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, j := serveInside(t, answer)
		test(t, newClient(t, "http://appview.example", func(cfg *bluesky.Config) {
			cfg.HTTPClient = client
			cfg.Login = nil
			noRetries(cfg)
		}), j)
	})
}

func TestShortRateLimitIsWaitedFor(t *testing.T) {
	t.Parallel()
	inside(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == 1 {
			w.Header().Set("RateLimit-Remaining", "0")
			w.Header().Set("RateLimit-Reset", strconv.FormatInt(time.Now().Unix()+3, 10))
		}
		resolved(w)
	}, func(t *testing.T, c *bluesky.Client, j *journal) {
		started := time.Now()
		for range 3 {
			_, err := c.ResolveHandle(t.Context(), "alice.example")
			require.NoError(t, err)
		}
		require.Equal(t, 3*time.Second, time.Since(started))
		require.Equal(t, 3*time.Second, j.all()[1].at.Sub(started))
	})
}

func TestLongRateLimitFailsTheCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		header map[string]string
		status int
		wait   time.Duration
	}{
		"reset as a time":       {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "+60"}, 200, time.Minute},
		"reset as seconds":      {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "60"}, 200, time.Minute},
		"reset that is absurd":  {map[string]string{"RateLimit-Remaining": "0", "RateLimit-Reset": "9223372036854775807"}, 200, time.Hour},
		"429 without a word":    {nil, 429, 30 * time.Second},
		"429 and seconds":       {map[string]string{"Retry-After": "17"}, 429, 17 * time.Second},
		"429 and a date":        {map[string]string{"Retry-After": "date"}, 429, 2 * time.Minute},
		"429 and a reset":       {map[string]string{"RateLimit-Reset": "+90", "RateLimit-Remaining": "0"}, 429, 90 * time.Second},
		"429 and absurd waits":  {map[string]string{"Retry-After": "9223372036854775807"}, 429, time.Hour},
		"429 and negative ones": {map[string]string{"Retry-After": "-5"}, 429, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside(t, func(w http.ResponseWriter, _ *http.Request, n int) {
				if n > 1 {
					resolved(w)
					return
				}
				for key, value := range c.header {
					switch {
					case value == "date":
						value = time.Now().Add(c.wait).UTC().Format(http.TimeFormat)
					case value[0] == '+':
						seconds, _ := strconv.ParseInt(value[1:], 10, 64)
						value = strconv.FormatInt(time.Now().Unix()+seconds, 10)
					}
					w.Header().Set(key, value)
				}
				reply(w, c.status, `{"did":"`+alice+`"}`)
			}, func(t *testing.T, client *bluesky.Client, j *journal) {
				started := time.Now()
				_, err := client.ResolveHandle(t.Context(), "alice.example")
				if c.status == 429 {
					require.Equal(t, bluesky.RateLimited, failure(t, err).Class)
					require.Equal(t, c.wait, bluesky.RetryAfter(err))
				} else {
					require.NoError(t, err)
				}
				_, err = client.ResolveHandle(t.Context(), "alice.example")
				e := failure(t, err)
				require.Equal(t, bluesky.RateLimited, e.Class)
				require.Equal(t, c.wait, e.RetryAfter)
				require.Zero(t, time.Since(started), "a call that would have to wait long must fail at once")
				require.Len(t, j.all(), 1, "no request may be sent before that time")
				time.Sleep(c.wait)
				_, err = client.ResolveHandle(t.Context(), "alice.example")
				require.NoError(t, err)
			})
		})
	}
}

func TestLongestRateLimitWins(t *testing.T) {
	t.Parallel()
	inside(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		time.Sleep(time.Duration(n) * time.Second)
		w.Header().Set("Retry-After", map[bool]string{true: "60", false: "10"}[n == 1])
		reply(w, 429, "")
	}, func(t *testing.T, c *bluesky.Client, j *journal) {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				_, err := c.ResolveHandle(t.Context(), "alice.example")
				if bluesky.Classify(err) != bluesky.RateLimited {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		require.Equal(t, 59*time.Second, bluesky.RetryAfter(err))
		require.Len(t, j.all(), 2)
	})
}

func TestRateLimitWaitEndsWithContext(t *testing.T) {
	t.Parallel()
	inside(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("RateLimit-Remaining", "0")
		w.Header().Set("RateLimit-Reset", "4")
		resolved(w)
	}, func(t *testing.T, c *bluesky.Client, j *journal) {
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.ResolveHandle(ctx, "alice.example")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Len(t, j.all(), 1)
	})
}

func TestLongRetryAfterFailsTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, j := serveInside(t, func(w http.ResponseWriter, _ *http.Request, n int) {
			w.Header().Set("Retry-After", map[bool]string{true: "3", false: "120"}[n == 1])
			reply(w, 503, "")
		})
		c := newClient(t, "http://appview.example", func(cfg *bluesky.Config) { cfg.HTTPClient, cfg.Retries = client, nil })
		started := time.Now()
		_, err := c.ResolveHandle(t.Context(), "alice.example")
		require.Equal(t, bluesky.Transient, failure(t, err).Class)
		require.Equal(t, 2*time.Minute, bluesky.RetryAfter(err))
		require.Equal(t, 3*time.Second, time.Since(started))
		require.Len(t, j.all(), 2)
	})
}

func TestBreakerOpensAfterRepeatedFailures(t *testing.T) {
	t.Parallel()
	healed := 12
	inside(t, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n < healed {
			reply(w, 500, "")
			return
		}
		resolved(w)
	}, func(t *testing.T, c *bluesky.Client, j *journal) {
		fail := func() *bluesky.Error {
			_, err := c.ResolveHandle(t.Context(), "alice.example")
			return failure(t, err)
		}
		for range 10 {
			require.Equal(t, 500, fail().Status)
		}
		e := fail()
		require.Equal(t, bluesky.Transient, e.Class)
		require.Equal(t, 30*time.Second, e.RetryAfter)
		require.Zero(t, e.Status)
		require.Len(t, j.all(), 10)

		time.Sleep(31 * time.Second)
		require.Equal(t, 500, fail().Status, "one request must check whether the server is back")
		require.Equal(t, 30*time.Second, fail().RetryAfter)
		require.Len(t, j.all(), 11)

		time.Sleep(31 * time.Second)
		for range 5 {
			_, err := c.ResolveHandle(t.Context(), "alice.example")
			require.NoError(t, err)
		}
		require.Len(t, j.all(), 16)
	})
}

func TestBreakerIgnoresOtherFailures(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]answerer{
		"permanent": func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 404, "") },
		"malformed": func(w http.ResponseWriter, _ *http.Request, _ int) { reply(w, 200, "{}") },
		"abandoned": func(w http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() },
		"now and then": func(w http.ResponseWriter, _ *http.Request, n int) {
			reply(w, map[bool]int{true: 400, false: 500}[n%9 == 0], "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inside(t, answer, func(t *testing.T, c *bluesky.Client, j *journal) {
				for range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, err := c.ResolveHandle(ctx, "alice.example")
					cancel()
					require.Error(t, err)
				}
				require.Len(t, j.all(), 40)
			})
		})
	}
}
