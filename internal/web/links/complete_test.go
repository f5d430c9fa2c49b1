package links

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

// TestWindowLongerThanTheLedgerSaysSinceWhen covers a window that begins before the database was
// created, or before the oldest stored day. Its page says since when all shares are stored.
func TestWindowLongerThanTheLedgerSaysSinceWhen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	s, _ := newServer(t, web.Config{DB: r.Pool, Now: func() time.Time { return r.Now }, Logger: slog.New(slog.DiscardHandler)})
	since := func(query string, window time.Duration, words, date string) {
		t.Helper()
		notice := ""
		for _, n := range webtest.Find(r.Parse(r.Get("/?window="+query)), func(n *html.Node) bool {
			return webtest.Attr(n, "id") == "incomplete"
		}) {
			notice = webtest.Text(n)
		}
		var list, link struct {
			Since string `json:"complete_since"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/trending?window="+query)), &list))
		require.NoError(t, json.Unmarshal([]byte(r.Get("/api/v1/links/1?window="+query)), &link))
		state, err := s.live.streams(t.Context(), window)
		require.NoError(t, err)
		require.Equal(t, []string{words, date, date}, []string{notice, list.Since, link.Since})
		if words == "" {
			require.Nil(t, state.CompleteSince)
			require.NotContains(t, r.Get("/links/1?window="+query), "All shares are stored only since")
			return
		}
		require.Equal(t, date, state.CompleteSince.Stamp)
		require.Contains(t, webtest.Text(webtest.Find(r.Parse(r.Get("/links/1?window="+query)), webtest.Class("how"))[0]), words)
	}
	since("7d", 7*24*time.Hour, "", "")
	complete := r.Do(http.MethodGet, "/api/v1/trending?window=7d").Header().Get("ETag")

	r.Exec(`UPDATE weir_migration SET applied_at = $1`, r.Now.Add(-4*time.Hour))
	since("3h", 3*time.Hour, "", "")
	since("6h", 6*time.Hour, "The counts may be too low. All shares are stored only since 4 May, 08:00 UTC.", "2026-05-04T08:00:00Z")
	require.Equal(t, http.StatusOK, r.Do(http.MethodGet, "/api/v1/trending?window=7d", "If-None-Match", complete).Code)

	r.Exec(`UPDATE weir_migration SET applied_at = $1`, r.Now.AddDate(-1, 0, 0))
	require.NoError(t, ranking.EnsureDays(t.Context(), r.Pool, r.Now, 24*time.Hour))
	dropped, err := ranking.DropDay(t.Context(), r.Pool, "shares_20260503_12")
	require.NoError(t, err)
	require.True(t, dropped)
	since("12h", 12*time.Hour, "", "")
	since("24h", 24*time.Hour, "The counts may be too low. All shares are stored only since 4 May, 00:00 UTC.", "2026-05-04T00:00:00Z")
}
