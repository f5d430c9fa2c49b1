package redirect

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
)

// follow follows a short link. All hosts are the same server.
func follow(t *testing.T, short string, serve http.HandlerFunc) (string, error) {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	require.NoError(t, err)
	var limited atomic.Int64
	c := New(Config{
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at.Host)
		}},
		Limit:     func(context.Context) (func(), error) { limited.Add(1); return func() { limited.Add(-1) }, nil },
		UserAgent: "weir test",
	})
	l, err := link.Parse(short)
	require.NoError(t, err)
	require.True(t, l.Short, short)
	to, err := c.Follow(t.Context(), l)
	require.Zero(t, limited.Load(), "each request must return its permit")
	return to.URL, err
}

func redirects(to map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		target, ok := to[r.Host+r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Location", target)
		w.WriteHeader(http.StatusMovedPermanently)
	}
}

func TestShortLinkIsFollowedToTheFirstOtherHost(t *testing.T) {
	t.Parallel()
	asked := 0
	to, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, r *http.Request) {
		asked++
		require.Equal(t, "weir test", r.UserAgent())
		redirects(map[string]string{
			"bit.ly/x": "http://t.co/y", "t.co/y": "/z", "t.co/z": "https://www.paper.example/article?utm_source=t&page=2",
			"www.paper.example/article": "https://login.example/",
		})(w, r)
	})
	require.NoError(t, err)
	require.Equal(t, "https://www.paper.example/article?page=2", to, "the target must be normalised")
	require.Equal(t, 3, asked, "the site itself must not be requested")
}

// TestArchiveIsNotAsked shows that an archive's copy of a short link counts as the short link, and
// that its shortener is asked.
func TestArchiveIsNotAsked(t *testing.T) {
	t.Parallel()
	for _, copied := range []string{
		"https://web.archive.org/web/2020/https://bit.ly/x?a=1", "https://archive.is/2020/https://www.bit.ly/x?a=1",
	} {
		l, err := link.Parse(copied)
		require.NoError(t, err)
		require.True(t, l.Short)
		require.Equal(t, "https://bit.ly/x?a=1", address(l))
	}
	for _, spelling := range []string{"http://bit.ly/x/", "https://www.bit.ly/x?a=1"} {
		l, err := link.Parse(spelling)
		require.NoError(t, err)
		require.Equal(t, spelling, address(l))
	}
	asked := ""
	_, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, r *http.Request) {
		asked += r.Host + " "
		redirects(map[string]string{"bit.ly/x": "http://web.archive.org/web/2020/http://t.co/y"})(w, r)
	})
	require.Error(t, err, "a server of plain HTTP")
	require.Equal(t, "bit.ly ", asked)
}

// TestRouteIsNoFrontPage covers sites that name their articles only in the fragment.
func TestRouteIsNoFrontPage(t *testing.T) {
	t.Parallel()
	to, err := follow(t, "http://bit.ly/x", redirects(map[string]string{"bit.ly/x": "https://paper.example/#/article/1"}))
	require.NoError(t, err)
	require.Equal(t, "https://paper.example/#/article/1", to)
}

func TestShortLinkThatLeadsNowhereIsDead(t *testing.T) {
	t.Parallel()
	for target, why := range map[string]string{
		"":                            "answers 404",
		"https://paper.example/":      "front page",
		"https://paper.example":       "front page",
		"http://bit.ly/x":             "more than 5 shorteners",
		"https://127.0.0.1/x":         "no link",
		"https://192.168.1.1/x":       "no link",
		"https://user:pw@a.example/x": "no link",
		"javascript:alert(1)":         "no link",
		"gopher://a.example/x":        "no link",
		"https://localhost/x":         "no link",
		"https://a.example/" + strings.Repeat("x", 3000): "no link",
		"https://paper.example/#story":                   "front page",
		"https://bsky.app/profile/alice.example/post/3k": "whose links do not count",
	} {
		to := map[string]string{}
		if target != "" {
			to["bit.ly/x"] = target
		}
		got, err := follow(t, "http://bit.ly/x", redirects(to))
		var dead *Dead
		require.ErrorAs(t, err, &dead, target)
		require.ErrorContains(t, err, why, target)
		require.Empty(t, got, target)
	}
}

func TestShortenerThatFailsIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []int{408, 429, 500, 503} {
		_, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		require.ErrorContains(t, err, "bit.ly")
		var dead *Dead
		require.NotErrorAs(t, err, &dead)
	}
	for _, status := range []int{200, 204, 304, 403, 410} {
		_, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		var dead *Dead
		require.ErrorAs(t, err, &dead, status)
	}
}

// TestBusyShortenerSaysForHowLong shows that a shortener can request a pause of at most an hour.
func TestBusyShortenerSaysForHowLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		after  string
		want   time.Duration // 0 means that it requests no pause
	}{
		{429, "90", 90 * time.Second},
		{429, "", time.Minute},
		{429, "soon", time.Minute},
		{429, "0", time.Second},
		{429, "86400", time.Hour},
		{429, "Fri, 31 Dec 9999 23:59:59 GMT", time.Hour},
		{503, "90", 90 * time.Second},
		{503, "", 0},
		{503, "soon", 0},
	} {
		_, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.after)
			w.WriteHeader(c.status)
		})
		var busy *Busy
		if c.want == 0 {
			require.Error(t, err)
			require.False(t, errors.As(err, &busy), c)
			continue
		}
		require.ErrorAs(t, err, &busy, c)
		require.Equal(t, Busy{"bit.ly", c.status, c.want}, *busy)
	}
}

// TestEndlessAnswerIsNotRead shows that the body of a redirect is not read.
func TestEndlessAnswerIsNotRead(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	to, err := follow(t, "http://bit.ly/x", func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		redirects(map[string]string{"bit.ly/x": "https://paper.example/a"})(w, r)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	require.NoError(t, err)
	require.Equal(t, "https://paper.example/a", to)
	<-ended
}

func TestPrivateShortenerIsNotAsked(t *testing.T) {
	t.Parallel()
	c := New(Config{}) // with the guard against private addresses
	l := link.Link{URL: "http://127.0.0.1:1/x", Identity: "127.0.0.1:1/x", Site: "127.0.0.1", Short: true}
	_, err := c.Follow(t.Context(), l)
	require.ErrorContains(t, err, "private address")
}
