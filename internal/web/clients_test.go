package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func from(remote string, forwarded ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = remote
	for _, each := range forwarded {
		r.Header.Add("X-Forwarded-For", each)
	}
	return r
}

// TestClientIsTheLastThatNoTrustedProxyNames shows that only the entries of trusted proxies count:
// the client's own entries come before them.
func TestClientIsTheLastThatNoTrustedProxyNames(t *testing.T) {
	t.Parallel()
	proxies, err := ParseProxies([]string{"127.0.0.0/8", "::1", " 10.1.2.3 ", "2001:db8:1::/48"})
	require.NoError(t, err)
	for want, r := range map[string]*http.Request{
		"192.0.2.1":     from("192.0.2.1:1000"),
		"192.0.2.2":     from("192.0.2.2:1000", "198.51.100.1"),
		"198.51.100.2":  from("127.0.0.1:1000", "198.51.100.2"),
		"198.51.100.3":  from("127.0.0.1:1000", "203.0.113.9, 198.51.100.3"),
		"198.51.100.4":  from("[::1]:1000", "203.0.113.9", "198.51.100.4, 10.1.2.3"),
		"198.51.100.5":  from("[::ffff:10.1.2.3]:1000", "198.51.100.5:4711"),
		"2001:db8:2::5": from("[2001:db8:1::7]:1000", "[2001:db8:2::5]:80"),
		"10.1.2.3":      from("10.1.2.3:1000", "198.51.100.5, unknown"),
		"127.0.0.1":     from("127.0.0.1:1000"),
		"::1":           from("[::1]:1000", "<script>"),
		"invalid IP":    from("@"),
	} {
		require.Equal(t, want, proxies.client(r).String())
	}
	for _, wrong := range []string{"", "proxy.example", "10.0.0.0/33", "10.0.0"} {
		_, err := ParseProxies([]string{wrong})
		require.ErrorContains(t, err, "such as 10.1.2.3 or 10.0.0.0/8")
	}
}

func TestRequestsOfAClientAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &webtest.Lines{}
		c := newClients(Proxies{}, slog.New(slog.NewJSONHandler(log, nil)))
		made := func(r *http.Request, tries int) (n int) {
			for range tries {
				if c.request(r) {
					n++
				}
			}
			return n
		}
		one := from("192.0.2.1:1000")
		require.Equal(t, clientBurst, made(one, 1000))
		require.Equal(t, 1, log.Count(), "logged once a minute")
		require.Equal(t, 5, made(from("192.0.2.2:1000"), 5), "another client")
		time.Sleep(3 * time.Second)
		require.Equal(t, 3*clientRate, made(one, 1000))
		require.Equal(t, clientBurst, made(from("[2001:db8::1]:1"), 150)+made(from("[2001:db8::2]:1"), 150), "one network")
		require.Equal(t, 1000, made(from("127.0.0.1:1"), 1000), "this machine")

		for i := range 3 * maxClients {
			c.request(from(fmt.Sprintf("10.%d.%d.1:1", i>>8, i&255)))
			require.LessOrEqual(t, len(c.all), maxClients)
		}
	})
}

func TestStreamsOfAClientAreLimited(t *testing.T) {
	t.Parallel()
	c := newClients(Proxies{}, slog.New(slog.DiscardHandler))
	one := from("192.0.2.1:1000")
	var closed []func()
	for range clientStreams {
		end, ok := c.stream(one)
		require.True(t, ok)
		closed = append(closed, end)
	}
	_, ok := c.stream(one)
	require.False(t, ok)
	_, ok = c.stream(from("192.0.2.2:1000"))
	require.True(t, ok, "another client")
	c.forget(time.Now().Add(time.Hour))
	closed[0]()
	_, ok = c.stream(one)
	require.True(t, ok, "a stream must be allowed in place of the one that ended")
	_, ok = c.stream(one)
	require.False(t, ok, "the client's streams must not be forgotten")
}

// TestRefusedClientIsTold shows that the limits apply to the page, the API and the streams.
func TestRefusedClientIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler, err := Handler(Config{DB: webtest.Hung{}, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ask := func(target string) *httptest.ResponseRecorder {
			request, rec := from("192.0.2.1:1000"), httptest.NewRecorder()
			request.URL.Path = target
			handler.ServeHTTP(rec, request)
			return rec
		}
		for range clientBurst {
			require.Equal(t, http.StatusNotFound, ask("/nowhere").Code)
		}
		for _, target := range []string{"/", "/api/v1/trending", "/api/v1/trending/stream", "/links/1", "/static/x/page.css"} {
			rec := ask(target)
			require.Equal(t, http.StatusTooManyRequests, rec.Code, target)
			require.Equal(t, "5", rec.Header().Get("Retry-After"))
			require.Contains(t, rec.Body.String(), "Too many requests from your address.")
		}
	})
}
