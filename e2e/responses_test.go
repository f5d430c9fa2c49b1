package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/simnet"
)

// answers are what the web process said while everything broke.
type responses struct {
	statuses map[int]int // how often each HTTP status came
	away     int         // how often it was asked while it was being killed
	silent   []string    // how it failed to answer although it ran
	wrong    []string    // counts that cannot be
}

// watcher asks the web process as a person and as an operator would.
type watcher struct {
	c         *chaos
	client    *http.Client
	responses responses
	seen      int                        // of the log's entries
	ever      map[string]map[string]bool // who has ever shared each URL
}

// watch begins; the returned function ends it.
func (c *chaos) watch() func() responses {
	w := &watcher{c: c, client: &http.Client{Timeout: 15 * time.Second}, responses: responses{statuses: map[int]int{}}, ever: map[string]map[string]bool{}}
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

// look asks both once.
func (w *watcher) poll(ctx context.Context) {
	p := w.c.member("web 1")
	page, opsURL := address.FindString(p.stderr.String()), opsAddress.FindStringSubmatch(p.stderr.String())
	if page == "" || opsURL == nil {
		return // it starts
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

// ask answers the body of a page; ok is false where there was none that says
// what was asked for.
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
		case <-time.After(2 * time.Second): // its end is noticed a moment later than it happens
			w.responses.silent = append(w.responses.silent, fmt.Sprintf("%s after %s: %v", url, took, err))
		}
		return nil, false
	}
	w.responses.statuses[response.StatusCode]++
	return body, response.StatusCode == http.StatusOK || response.Header.Get("Content-Type") == "application/json" && response.StatusCode == http.StatusServiceUnavailable
}

// check asks that no link is counted more often than accounts have ever shared
// it. The log is read after the answer: it knows all that the answer may know.
func (w *watcher) check(body []byte) {
	var ranking struct {
		Links []ranking.TrendingLink `json:"links"`
	}
	if err := json.Unmarshal(body, &ranking); err != nil {
		w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("no JSON: %v: %.200s", err, body))
		return
	}
	w.learn(w.c.net.Log().Entries())
	listed := map[string]bool{}
	for i, l := range ranking.Links {
		switch {
		case l.Sharers > len(w.ever[l.URL]):
			w.responses.wrong = append(w.responses.wrong, fmt.Sprintf("%s is counted %d times, and %d accounts have ever shared it", l.URL, l.Sharers, len(w.ever[l.URL])))
		case listed[l.URL]:
			w.responses.wrong = append(w.responses.wrong, l.URL+" is listed twice")
		case i > 0 && l.Sharers > ranking.Links[i-1].Sharers:
			w.responses.wrong = append(w.responses.wrong, l.URL+" stands below one with fewer")
		}
		listed[l.URL] = true
	}
}

func (w *watcher) learn(all []*simnet.Entry) {
	for _, e := range all[w.seen:] {
		for _, url := range e.Links {
			if w.ever[url] == nil {
				w.ever[url] = map[string]bool{}
			}
			w.ever[url][e.DID] = true
		}
	}
	w.seen = len(all)
}
