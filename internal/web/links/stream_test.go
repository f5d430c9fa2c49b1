package links

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

// streamEvent is a snapshot or a change.
type streamEvent struct {
	Name string
	liveChange
	Links []liveCount
}

// openStream opens a stream on a real server, and returns a function that reads the next event that
// meets a condition.
func (r *rig) openStream(base, query string, header ...string) (next func(func(streamEvent) bool) streamEvent) {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute) // as long as eventually waits
	r.T.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/trending/stream?"+query, nil)
	require.NoError(r.T, err)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(r.T, err)
	r.T.Cleanup(func() { response.Body.Close() }) // the test is over
	require.Equal(r.T, http.StatusOK, response.StatusCode)
	require.Equal(r.T, "text/event-stream", response.Header.Get("Content-Type"))
	require.Equal(r.T, "no-store", response.Header.Get("Cache-Control"))
	read := bufio.NewReader(response.Body)
	return func(wanted func(streamEvent) bool) (e streamEvent) {
		r.T.Helper()
		for {
			line, err := read.ReadString('\n')
			require.NoError(r.T, err)
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "event: "); ok {
				e = streamEvent{Name: name}
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				require.NoError(r.T, json.Unmarshal([]byte(data), &e))
				if e.Name != "state" && wanted(e) {
					return e
				}
			}
		}
	}
}

func first(streamEvent) bool { return true }

func TestStreamSendsChangesOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	base := "http://" + webtest.Start(t, web.NewServer(web.ServerConfig{
		Handler: r.Handler, Connections: 10, Within: time.Minute, Logger: slog.New(slog.DiscardHandler),
	}))
	r.Share("https://a.example/", "did:plc:a", 2*time.Minute)
	r.Share("https://a.example/", "did:plc:b", 2*time.Minute)
	r.Share("https://b.example/", "did:plc:a", 3*time.Minute)
	r.watch("follows", "alice.example", "did:plc:a", "did:plc:b", "did:plc:c")
	next := r.openStream(base, "window=1h&limit=2")
	other := r.openStream(base, "window=1h&limit=2&watch=alice.example&sort=speed")
	e := next(first)
	require.Equal(t, "snapshot", e.Name)
	require.Equal(t, r.Now, e.At)
	require.Equal(t, []liveCount{
		{ID: 1, Sharers: 2, LastShared: r.Now.Add(-2 * time.Minute)},
		{ID: 3, Sharers: 1, LastShared: r.Now.Add(-3 * time.Minute)},
	}, e.Links)
	e = other(first)
	require.Equal(t, []int64{1, 3}, []int64{e.Links[0].ID, e.Links[1].ID})
	require.InDelta(t, 2*39.0/120, e.Links[0].Speed, 0.001)

	r.Share("https://a.example/", "did:plc:c", time.Minute)
	e = next(func(e streamEvent) bool { return len(e.Counts) > 0 })
	require.Equal(t, "change", e.Name)
	require.Equal(t, []liveCount{{ID: 1, Sharers: 3, LastShared: r.Now.Add(-time.Minute)}}, e.Counts)
	require.Empty(t, e.Entered)
	require.Empty(t, e.Left)

	r.Exec(`INSERT INTO links (identity, url, site, title, image, first_seen, kept_sharers, kept_at)
		VALUES ($2, $2, 's', '<b>', 'blob:did:plc:abc/bafkreiabcdefgh', $1, 1, $1)`, r.Now, "https://c.example/?<b>")
	r.Share("https://c.example/?<b>", "did:plc:a", time.Minute)
	e = next(func(e streamEvent) bool { return len(e.Entered) > 0 })
	require.Len(t, e.Entered, 1)
	require.Equal(t, "https://c.example/?<b>", e.Entered[0].URL)
	require.Equal(t, "<b>", e.Entered[0].Title)
	require.Equal(t, "https://images.example/did:plc:abc/bafkreiabcdefgh", e.Entered[0].Image)
	require.Equal(t, []int64{3}, e.Left)
	other(func(e streamEvent) bool { return len(e.Entered) == 1 && e.Entered[0].URL == "https://c.example/?<b>" })

	r.Exec(`DELETE FROM shares WHERE link_id = 1`)
	e = next(func(e streamEvent) bool { return len(e.Left) > 0 })
	require.Equal(t, []int64{1}, e.Left)
	require.Equal(t, "https://b.example/", e.Entered[0].URL, "the link that moved up must be first")

	again := r.openStream(base, "window=1h&limit=2", "Last-Event-ID", "17")
	e = again(first)
	require.Equal(t, "snapshot", e.Name)
	require.Len(t, e.Links, 2)

	r.Exec(`DELETE FROM watches`)
	eventually.True(t, func() bool {
		return r.Do(http.MethodGet, "/api/v1/trending/stream?watch=alice.example").Code == http.StatusBadRequest
	}, 20*time.Millisecond)
}

func TestWrongStreamsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for query, want := range map[string]string{
		"limit=-1": `limit is "-1": send a whole number from 1 to 200`,
		"cursor=x": `unknown parameter "cursor": send any of window, sort, at_least, ways, network, domain, text, by, watch, degree,` +
			` limit`,
		"watch=a.example":    `watch is "a.example": send none: there are no watches`,
		"sort=<script>":      `sort is "<script>": send one of sharers, speed, newest`,
		"window=1h&window=1": `window appears 2 times: send it once`,
	} {
		rec := r.Do(http.MethodGet, "/api/v1/trending/stream?"+query)
		require.Equal(t, http.StatusBadRequest, rec.Code, query)
		var response map[string]string
		require.NoError(t, json.Unmarshal(rec.Body.Bytes(), &response))
		require.Equal(t, want, response["error"])
	}
	rec := r.Do(http.MethodHead, "/api/v1/trending/stream")
	require.Equal(t, http.StatusOK, rec.Code)
	require.Equal(t, "text/event-stream", rec.Header().Get("Content-Type"))
	require.Equal(t, http.StatusMethodNotAllowed, r.Do(http.MethodPost, "/api/v1/trending/stream").Code)
	require.Zero(t, r.Log.Count())
}
