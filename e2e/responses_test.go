package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
)

// responses are those of the web process during a round.
type responses struct {
	statuses map[int]int // responses by HTTP status
	away     int         // requests that failed while it was killed
	silent   []string    // requests that failed while it was running
	wrong    []string    // responses that cannot be correct
	strict   int         // counts that would be wrong if one more account that once shared the link were counted
}

// watcher polls the web process: the page's API and the ops listener.
type watcher struct {
	c         *chaos
	client    *http.Client
	responses responses
	history   *history
	windows   []string // in the order in which they are requested next
}

// watch starts polling; the returned function stops it and returns the results.
func (c *chaos) watch() func() responses {
	w := &watcher{c: c, client: &http.Client{Timeout: 15 * time.Second}, responses: responses{statuses: map[int]int{}},
		history: newHistory(), windows: []string{"1h", "24h"}}
	stop := background(c.t, func(ctx context.Context) {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			w.poll(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return func() responses {
		stop()
		return w.responses
	}
}

// poll requests the ranking and the health once.
func (w *watcher) poll(ctx context.Context) {
	p := w.c.member("web 1")
	page, opsURL := address.FindString(p.stderr.String()), opsAddress.FindStringSubmatch(p.stderr.String())
	if page == "" || opsURL == nil {
		return // the process is starting
	}
	w.windows[0], w.windows[1] = w.windows[1], w.windows[0]
	before := w.c.committed(ctx)
	if body, ok := w.fetch(ctx, p, page+"api/v1/trending?limit=100&window="+w.windows[0]); ok {
		if w.c.follows {
			before = before.joined(w.c.members(ctx))
		}
		w.check(body, before)
	}
	if body, ok := w.fetch(ctx, p, opsURL[1]+"/health"); ok {
		var r health.Report
		if err := json.Unmarshal(body, &r); err != nil || r.Status == "" {
			w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("/health: %v: %.200s", err, body))
		}
	}
}

// fetch returns the body of a response; ok is false without a usable one.
func (w *watcher) fetch(ctx context.Context, p *process, url string) (body []byte, ok bool) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(w.c.t, err)
	response, err := w.client.Do(request)
	if err == nil {
		body, err = io.ReadAll(response.Body)
		response.Body.Close() // read to its end, or broken
	}
	switch {
	case ctx.Err() != nil:
		return nil, false
	case err != nil && p.ending.Load(): // the process was stopped before the request failed
		w.responses.away++
		return nil, false
	case err != nil:
		w.responses.silent = append(w.responses.silent, fmt.Sprintf("%s: %v", url, err))
		return nil, false
	}
	w.responses.statuses[response.StatusCode]++
	return body, response.StatusCode == http.StatusOK || response.Header.Get("Content-Type") == "application/json" &&
		response.StatusCode == http.StatusServiceUnavailable
}

// check requires that no link has more sharers than accounts may share it. It reads the log after
// the response, so the log holds every event that the response can reflect.
func (w *watcher) check(body []byte, before committed) {
	var ranking struct {
		Links []ranking.TrendingLink `json:"links"`
	}
	if err := json.Unmarshal(body, &ranking); err != nil {
		w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("no JSON: %v: %.200s", err, body))
		return
	}
	w.history.learn(w.c.net.Log().Entries())
	listed := map[string]bool{} // by canonical URL: an article has only one row
	for i, l := range ranking.Links {
		l.URL = canonical(l.URL)
		urls := w.c.everOneWith(l.URL)
		gone := before
		gone.until = 0 // the count if nothing were deleted or hidden
		most, ever := len(w.history.sharers(urls, before)), len(w.history.sharers(urls, gone))
		if l.Sharers == most && most < ever {
			w.responses.strict++
		}
		switch {
		case l.Sharers > most:
			w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("%s is counted %d times in %s: at most %d accounts share it after event "+
				"%d, of %d that are followed, and %d of them have ever shared it", l.URL, l.Sharers, w.windows[0], most, before.until,
				len(before.members), ever))
		case listed[l.URL]:
			w.responses.wrong = append(w.responses.wrong, l.URL+" is listed twice")
		case i > 0 && l.Sharers > ranking.Links[i-1].Sharers:
			w.responses.wrong = append(w.responses.wrong, l.URL+" is ranked below a link with fewer sharers")
		}
		listed[l.URL] = true
	}
}
