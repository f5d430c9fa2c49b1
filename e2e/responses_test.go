package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/simnet"
)

// responses are those of the web process during a round.
type responses struct {
	statuses map[int]int // responses by HTTP status
	away     int         // requests that failed while it was killed
	silent   []string    // requests that failed while it was running
	wrong    []string    // responses that cannot be right
}

// watcher polls the web process: the page's API and the ops listener.
type watcher struct {
	c         *chaos
	client    *http.Client
	responses responses
	seen      int                        // number of log entries read so far
	ever      map[string]map[string]bool // the DIDs that ever shared each URL
	links     map[recordKey][]string     // the URLs that each post ever contained
	through   map[recordKey][]string     // the DIDs that ever reposted or quoted each post
}

// watch starts polling; the returned function stops it and returns the results.
func (c *chaos) watch() func() responses {
	w := &watcher{c: c, client: &http.Client{Timeout: 15 * time.Second}, responses: responses{statuses: map[int]int{}}, ever: map[string]map[string]bool{},
		links: map[recordKey][]string{}, through: map[recordKey][]string{}}
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			w.poll(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	return func() responses {
		cancel()
		<-ended
		return w.responses
	}
}

// poll requests the ranking and the health once.
func (w *watcher) poll(ctx context.Context) {
	p := w.c.member("web 1")
	page, opsURL := address.FindString(p.stderr.String()), opsAddress.FindStringSubmatch(p.stderr.String())
	if page == "" || opsURL == nil {
		return // it is starting
	}
	if body, ok := w.fetch(ctx, p, page+"api/v1/trending?window=1h&limit=100"); ok {
		w.check(body)
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
	began := time.Now()
	response, err := w.client.Do(request)
	if err == nil {
		body, err = io.ReadAll(response.Body)
		response.Body.Close() //nolint:errcheck // read to its end, or broken
	}
	took := time.Since(began)
	switch {
	case ctx.Err() != nil:
		return nil, false
	case err != nil && w.c.member("web 1") != p:
		w.responses.away++
		return nil, false
	case err != nil:
		select {
		case <-p.exited:
			w.responses.away++
		case <-time.After(2 * time.Second): // the exit is noticed a moment later
			w.responses.silent = append(w.responses.silent, fmt.Sprintf("%s after %s: %v", url, took, err))
		}
		return nil, false
	}
	w.responses.statuses[response.StatusCode]++
	return body, response.StatusCode == http.StatusOK || response.Header.Get("Content-Type") == "application/json" && response.StatusCode == http.StatusServiceUnavailable
}

// most is how many accounts ever shared a link, or one that was merged with it at any time.
func (w *watcher) most(url string) int {
	all := map[string]bool{}
	for _, other := range w.c.everOneWith(url) {
		maps.Copy(all, w.ever[other])
	}
	return len(all)
}

// check requires that no link has more sharers than accounts ever shared it. The
// log is read after the response, so it holds every event that the response can.
func (w *watcher) check(body []byte) {
	var ranking struct {
		Links []ranking.TrendingLink `json:"links"`
	}
	if err := json.Unmarshal(body, &ranking); err != nil {
		w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("no JSON: %v: %.200s", err, body))
		return
	}
	w.learn(w.c.net.Log().Entries())
	listed := map[string]bool{} // by canonical URL: one article is one row
	for i, l := range ranking.Links {
		l.URL = canonical(l.URL)
		switch {
		case l.Sharers > w.most(l.URL):
			w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("%s is counted %d times, and %d accounts have ever shared it", l.URL, l.Sharers, w.most(l.URL)))
		case listed[l.URL]:
			w.responses.wrong = append(w.responses.wrong, l.URL+" is listed twice")
		case i > 0 && l.Sharers > ranking.Links[i-1].Sharers:
			w.responses.wrong = append(w.responses.wrong, l.URL+" is ranked below a link with fewer sharers")
		}
		listed[l.URL] = true
	}
}

func (w *watcher) learn(all []*simnet.Entry) {
	for _, e := range all[w.seen:] {
		key := recordKey{e.Collection, e.DID, e.Rkey}
		w.links[key] = append(w.links[key], e.Links...)
		w.share(e.Links, append([]string{e.DID}, w.through[key]...))
		if e.Record == nil || e.Collection != "app.bsky.feed.post" && e.Collection != "app.bsky.feed.repost" {
			continue
		}
		if subject, _ := subjectOf(key, e.Record); subject != (recordKey{}) {
			w.through[subject] = append(w.through[subject], e.DID)
			w.share(w.links[subject], []string{e.DID})
		}
	}
	w.seen = len(all)
}

func (w *watcher) share(urls, dids []string) {
	for _, url := range urls {
		if w.ever[url] == nil {
			w.ever[url] = map[string]bool{}
		}
		for _, did := range dids {
			w.ever[url][did] = true
		}
	}
}
