package web

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// keeping serves pages of size bytes that are cached for a second, and counts how often one is
// rendered. Rendering takes the given time.
func keeping(t *testing.T, size int, took time.Duration) (*rig, *Server, *atomic.Int64) {
	t.Helper()
	s, err := newServer(Config{DB: webtest.Hung{}, Now: time.Now, Keep: KeepPages, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	rendered := new(atomic.Int64)
	handler := s.kept(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(took)
		n := rendered.Add(1)
		if strings.Contains(r.URL.RawQuery, "wrong") {
			s.WriteError(w, r, http.StatusBadRequest, "wrong")
			return
		}
		if NotModified(w, r, fmt.Sprintf(`W/"%d"`, n)) {
			return
		}
		fmt.Fprintf(w, "%d %s", n, strings.Repeat("x", size))
	})
	return &rig{&webtest.Rig{T: t, Handler: handler}}, s, rendered
}

// TestPageIsRenderedOnceASecond shows that all requests for the same address within a second get
// the same page, also while it is rendered. Afterwards it is rendered again.
func TestPageIsRenderedOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, rendered := keeping(t, 5000, 100*time.Millisecond)
		get := func(target string, header ...string) string {
			rec := r.Do(http.MethodGet, target, header...)
			require.Equal(t, http.StatusOK, rec.Code)
			return rec.Body.String()[:1]
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { require.Equal(t, "1", get("/?window=1h")) })
		}
		all.Wait()
		require.EqualValues(t, 1, rendered.Load())
		time.Sleep(KeepPages - 100*time.Millisecond)
		require.Equal(t, "1", get("/?window=1h"))
		require.Equal(t, "2", get("/?window=3h"), "another view")
		rec := r.Do(http.MethodGet, "/?window=3h", "If-None-Match", `W/"2"`)
		require.Equal(t, http.StatusNotModified, rec.Code)
		require.Empty(t, rec.Body.String())
		require.Equal(t, "gzip", r.Do(http.MethodGet, "/?window=3h", "Accept-Encoding", "gzip").Header().Get("Content-Encoding"))
		require.Empty(t, r.Do(http.MethodGet, "/?window=3h").Header().Get("Content-Encoding"))
		time.Sleep(KeepPages)
		require.Equal(t, "4", get("/?window=1h"))
		require.Equal(t, http.StatusBadRequest, r.Do(http.MethodGet, "/?wrong").Code)
		require.Equal(t, http.StatusBadRequest, r.Do(http.MethodGet, "/?wrong").Code)
		require.EqualValues(t, 6, rendered.Load(), "an error must not be cached")
	})
}

// TestKeptPagesAreBounded shows that strangers who request many views do not fill the memory.
func TestKeptPagesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const size = 100_000
		r, s, rendered := keeping(t, size, 0)
		const pages = 3 * maxKept / size
		for i := range pages {
			r.Do(http.MethodGet, fmt.Sprintf("/?%d", i))
			require.LessOrEqual(t, s.cache.bytes, maxKept)
		}
		require.Greater(t, s.cache.bytes, maxKept/2)
		r.Do(http.MethodGet, fmt.Sprintf("/?%d", pages-1))
		require.EqualValues(t, pages, rendered.Load(), "the latest pages must be cached")
		r.Do(http.MethodGet, "/?"+strings.Repeat("x", 2*maxKeptKey))
		require.Len(t, s.cache.kept, s.cache.order.Len())
		time.Sleep(KeepPages)
		r.Do(http.MethodGet, "/?wrong")
		require.Zero(t, s.cache.bytes)
		require.Empty(t, s.cache.kept)
	})
}
