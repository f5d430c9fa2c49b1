package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	pagePosts    = 1_000_000 // stored posts; every third shares a link
	pageEvents   = 330       // events a second that arrive meanwhile, about 100 of them shares
	pageRequests = 200       // requests a second
	pageStreams  = 1000      // open event streams
	pageSpan     = 30 * time.Second
)

// pageViews returns twenty views: every window in every order, and some filters.
func pageViews() (views []string) {
	for _, sort := range []string{"sharers", "speed", "newest"} {
		for _, window := range []string{"1h", "3h", "6h", "12h", "24h", "7d"} {
			views = append(views, "sort="+sort+"&window="+window)
		}
	}
	return append(views, "at_least=3", "domain=preloaded.example")
}

// paged is `weir serve` on many shares, while shares arrive.
type paged struct {
	b          *testing.B
	serve      *process
	url        string
	client     *http.Client
	postmaster int
}

// BenchmarkPage measures the page while shares arrive: the latency of requests, the cost of open
// event streams, and a response without changes compared with a whole one. The process, Postgres,
// the network and the requests share the machine.
func BenchmarkPage(b *testing.B) {
	server := benchServer(b)
	url, pool := benchDatabase(b, server)
	timed(b, url, "ingest", os.DevNull) // registers the projection: posts stored from now on are not projected again
	preload(b, pool, pagePosts)
	n, err := simnet.New(simnet.Config{Seed: 6, Accounts: 20_000, Mix: simnet.MixPosts, History: 5000})
	require.NoError(b, err)
	require.NoError(b, n.Start("127.0.0.1:0"))
	b.Cleanup(n.Stop)
	var backend int
	require.NoError(b, pool.QueryRow(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
	p := &paged{b: b, postmaster: readProcess(b, backend).parent,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: pageRequests, DisableCompression: true}, Timeout: 10 * time.Second}}
	p.serve = start(b, append(alone(n, url), "WEIR_LISTEN=127.0.0.1:0"), "serve")
	p.url = strings.TrimSuffix(p.serve.page(b), "/")
	eventually.True(b, func() bool { // wait until everything is counted
		left, err := tryCount(pool, `
			SELECT (SELECT count(*) FROM pending_counts) + (SELECT count(*) FROM river_job
			    WHERE kind = 'process_posts' AND state <> 'completed') + CASE WHEN EXISTS (SELECT FROM count_state) THEN 0 ELSE 1 END`)
		return err == nil && left == 0
	}, 50*time.Millisecond)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go n.Live(ctx, pageEvents)

	b.Run("requests", func(b *testing.B) {
		for b.Loop() {
			p.requests(b)
		}
	})
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			p.unchanged(b)
		}
	})
	b.Run("streams", func(b *testing.B) {
		for b.Loop() {
			p.streams(b)
		}
	})
	cancel()
	p.serve.signal(syscall.SIGTERM)
	require.Zero(b, p.serve.wait(b, time.Minute))
}

// get requests a path and returns the status and the number of bytes.
func (p *paged) get(path, known string) (status, size int, tag string, err error) {
	r, err := http.NewRequestWithContext(p.b.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		return 0, 0, "", err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	if known != "" {
		r.Header.Set("If-None-Match", known)
	}
	response, err := p.client.Do(r)
	if err != nil {
		return 0, 0, "", err
	}
	defer response.Body.Close() // the body has been read
	n, err := io.Copy(io.Discard, response.Body)
	return response.StatusCode, int(n), response.Header.Get("ETag"), err
}

// requests sends requests at a fixed rate, however long they take. The latency of each counts from
// the time it was due.
func (p *paged) requests(b *testing.B) {
	b.Helper()
	views := pageViews()
	times := make([]time.Duration, int(pageSpan.Seconds())*pageRequests)
	var failed, bytes atomic.Int64
	var wait sync.WaitGroup
	began := time.Now()
	for i := range times {
		due := began.Add(time.Duration(i) * time.Second / pageRequests)
		time.Sleep(time.Until(due))
		wait.Go(func() {
			status, size, _, err := p.get("/?"+views[i%len(views)], "")
			if err != nil || status != http.StatusOK {
				failed.Add(1)
			}
			bytes.Add(int64(size))
			times[i] = time.Since(due)
		})
	}
	wait.Wait()
	require.Zero(b, failed.Load(), "of %d requests, some failed", len(times))
	slices.Sort(times)
	b.ReportMetric(milliseconds(times[len(times)/2]), "ms-p50")
	b.ReportMetric(milliseconds(times[len(times)*99/100]), "ms-p99")
	b.ReportMetric(float64(bytes.Load())/float64(len(times))/1000, "kB")
	b.ReportMetric(0, "ns/op")
}

// unchanged compares a response that reports no changes with a whole one. Both come from the cache:
// the page is not computed again.
func (p *paged) unchanged(b *testing.B) {
	b.Helper()
	var whole, none []time.Duration
	timed := func(known string) (took time.Duration, status int, tag string) {
		began := time.Now()
		status, _, tag, err := p.get("/", known)
		require.NoError(b, err)
		return time.Since(began), status, tag
	}
	for len(none) < 200 {
		timed("")
		took, _, tag := timed("")
		if less, status, _ := timed(tag); status == http.StatusNotModified { // otherwise the page has changed meanwhile
			whole, none = append(whole, took), append(none, less)
		}
	}
	slices.Sort(whole)
	slices.Sort(none)
	b.ReportMetric(milliseconds(whole[len(whole)/2]), "ms-200")
	b.ReportMetric(milliseconds(none[len(none)/2]), "ms-304")
	b.ReportMetric(float64(none[len(none)/2])/float64(whole[len(whole)/2]), "of-200")
	b.ReportMetric(0, "ns/op")
}

// streams opens many event streams. It compares memory and processor time with those of an equal
// span without them.
func (p *paged) streams(b *testing.B) {
	b.Helper()
	without, _ := p.cost(b)
	before := p.memory(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	client := &http.Client{Transport: &http.Transport{}}
	var events, bytes atomic.Int64
	var open, wait sync.WaitGroup
	views := pageViews()
	for i := range pageStreams {
		open.Add(1)
		wait.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/trending/stream?"+views[i%len(views)], nil)
			if err != nil {
				panic(err)
			}
			response, err := client.Do(r)
			if err != nil || response.StatusCode != http.StatusOK {
				open.Done()
				return
			}
			defer response.Body.Close() // the body was read
			lines := bufio.NewScanner(response.Body)
			lines.Buffer(nil, 1<<20)
			first := true
			for lines.Scan() {
				bytes.Add(int64(len(lines.Bytes())) + 1)
				if strings.HasPrefix(lines.Text(), "event:") {
					if events.Add(1); first {
						first = false
						open.Done()
					}
				}
			}
			if first {
				open.Done()
			}
		})
	}
	open.Wait()
	got, at := events.Load(), bytes.Load()
	require.GreaterOrEqual(b, got, int64(pageStreams), "too few streams received an event")
	with, span := p.cost(b)
	grown := p.memory(b) - before
	b.ReportMetric(grown, "MB")
	b.ReportMetric((with-without)/span.Seconds(), "cores")
	b.ReportMetric(float64(events.Load()-got)/pageStreams/span.Minutes(), "events/min")
	b.ReportMetric(float64(bytes.Load()-at)/pageStreams/span.Minutes()/1000, "kB/min")
	b.ReportMetric(0, "ns/op")
	cancel()
	wait.Wait()
}

// cost is the processor time of the process and of Postgres in a span, in seconds.
func (p *paged) cost(b *testing.B) (seconds float64, span time.Duration) {
	b.Helper()
	used := func() float64 {
		of := readProcess(b, p.serve.cmd.Process.Pid)
		ticks := of.own
		a := against{b: b, postmaster: p.postmaster}
		return float64(ticks)/100 + a.postgres().Seconds()
	}
	at, began := used(), time.Now()
	time.Sleep(pageSpan) // the span that is measured
	return used() - at, time.Since(began)
}

// memory is the resident memory of the process in MB.
func (p *paged) memory(b *testing.B) (megabytes float64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.serve.cmd.Process.Pid))
	require.NoError(b, err)
	_, after, found := bytes.Cut(text, []byte("VmRSS:"))
	require.True(b, found)
	_, err = fmt.Sscan(string(after), &megabytes)
	require.NoError(b, err)
	return megabytes / 1024
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
