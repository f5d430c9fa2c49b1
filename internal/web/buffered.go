package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/singleflight"
)

const (
	maxRendering  = 8               // concurrent responses that are counted, rendered and compressed; each uses a database connection
	renderTimeout = 2 * time.Second // maximum wait for one of these slots
	minGzip       = 1024            // bytes; smaller responses are not compressed
)

// QueryTimeout limits the queries of one response, so that waiting connections do not
// accumulate when the database is slow.
const QueryTimeout = 5 * time.Second

// renderSlots limits the responses that are rendered concurrently.
type renderSlots chan struct{}

// acquire waits for a slot; it returns false on a timeout.
func (s renderSlots) acquire(ctx context.Context) bool {
	select {
	case s <- struct{}{}:
		return true
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, renderTimeout)
	defer cancel()
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s renderSlots) release() { <-s }

// Buffered renders a complete response in one of a few slots, compressed if the client
// accepts that. It sends the response after it releases the slot: a slow client holds
// only the compressed bytes.
func (s *Server) Buffered(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.renderBuffered(handle, r).send(w, r)
	}
}

// kept is Buffered, and sends the response again for a short time to all clients that request
// the same. Concurrent requests share one rendering.
func (s *Server) kept(handle http.HandlerFunc) http.HandlerFunc {
	if s.keep == 0 {
		return s.Buffered(handle)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		key := cacheKey(r)
		s.cache.DropWhile(func(k keptResponse) bool { return !k.until.After(time.Now()) })
		if found := s.cache.Find(key); found.bufferedResponse != nil {
			found.send(w, r)
			return
		}
		b, err := Shared(r.Context(), &s.rendering, key, func(ctx context.Context) (*bufferedResponse, error) {
			shared := r.Clone(ctx)
			shared.Header.Del("If-None-Match") // the first client may already have the page
			b := s.renderBuffered(handle, shared)
			if size := len(key) + b.body.Len() + 1024; b.code == http.StatusOK && len(key) <= maxKeptKey && size <= maxKept/4 {
				s.cache.Add(key, size, keptResponse{time.Now().Add(s.keep), b})
			}
			return b, nil
		})
		if err == nil { // otherwise the client has gone
			b.send(w, r)
		}
	}
}

// Shared calls f once for all who ask for the same key at the same time. The context of f is not
// cancelled: the first client may disconnect while others still wait.
func Shared[T any](ctx context.Context, running *singleflight.Group, key string, f func(context.Context) (T, error)) (value T, err error) {
	done := running.DoChan(key, func() (any, error) { return f(context.WithoutCancel(ctx)) })
	select {
	case <-ctx.Done():
		return value, ctx.Err()
	case result := <-done:
		value, _ = result.Val.(T)
		return value, result.Err
	}
}

// renderBuffered renders a response.
func (s *Server) renderBuffered(handle http.HandlerFunc, r *http.Request) *bufferedResponse {
	b := &bufferedResponse{header: make(http.Header), code: http.StatusOK}
	if !s.slots.acquire(r.Context()) {
		b.header.Set("Retry-After", "2")
		s.WriteError(b, r, http.StatusServiceUnavailable, say("error_busy"))
		return b
	}
	defer s.slots.release()
	handle(b, r)
	b.compress(r)
	return b
}

// bufferedResponse is a response that has not been sent yet.
type bufferedResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (b *bufferedResponse) Header() http.Header         { return b.header }
func (b *bufferedResponse) WriteHeader(code int)        { b.code = code }
func (b *bufferedResponse) Write(p []byte) (int, error) { return b.body.Write(p) }

func (b *bufferedResponse) compress(r *http.Request) {
	b.header.Add("Vary", "Accept-Encoding")
	if b.body.Len() < minGzip || !acceptsGzip(r) {
		return
	}
	b.body = *bytes.NewBuffer(zipped(b.body.Bytes()))
	b.header.Set("Content-Encoding", "gzip")
}

// send sends the response, or status 304 if the client has it. It does not change the response:
// several goroutines may send it at once.
func (b *bufferedResponse) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	maps.Copy(h, b.header)
	if b.code == http.StatusOK && hasVersion(r, h.Get("ETag")) {
		h.Del("Content-Encoding")
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if b.code != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(b.body.Len()))
	}
	w.WriteHeader(b.code)
	w.Write(b.body.Bytes()) // the client has gone
}

func zipped(plain []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(plain) // a buffer in memory never fails
	z.Close()      // a buffer in memory never fails
	return b.Bytes()
}

// acceptsGzip reports whether the client accepts a compressed response.
func acceptsGzip(r *http.Request) bool {
	for _, header := range r.Header.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(header, ",") {
			name, weight, weighted := strings.Cut(coding, ";")
			if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
				continue
			}
			if !weighted {
				return true
			}
			q, err := strconv.ParseFloat(strings.TrimPrefix(strings.TrimSpace(weight), "q="), 64)
			return err == nil && q > 0
		}
	}
	return false
}

// NotModified writes status 304 and returns true if the client has the version that
// etag identifies.
func NotModified(w http.ResponseWriter, r *http.Request, etag string) bool {
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "no-cache") // the client may store it, but must revalidate
	if hasVersion(r, etag) {
		w.WriteHeader(http.StatusNotModified)
		return true
	}
	return false
}

// hasVersion reports whether the client has the version that etag identifies.
func hasVersion(r *http.Request, etag string) bool {
	for _, header := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(header, ",") {
			tag = strings.TrimSpace(tag)
			if etag != "" && (tag == "*" || strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/")) {
				return true
			}
		}
	}
	return false
}

// Version returns a short hash of what a response shows.
func Version(of any) (string, error) {
	content, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("hash a response: %w", err)
	}
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:9]), nil
}
