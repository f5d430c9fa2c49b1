package web

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

const (
	maxRendering  = 8               // concurrent responses that are counted, rendered and compressed; each uses a database connection
	renderTimeout = 2 * time.Second // limit of the wait for one of these slots
	minGzip       = 1024            // bytes; smaller responses are not compressed
)

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

// buffered renders a complete response in one of a few slots, compressed if the client
// accepts that. It sends the response after it releases the slot: a slow client holds
// only the compressed bytes.
func (s *server) buffered(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.slots.acquire(r.Context()) {
			w.Header().Set("Retry-After", "2")
			s.writeError(w, r, http.StatusServiceUnavailable, say("error_busy"))
			return
		}
		b := &bufferedResponse{header: w.Header(), code: http.StatusOK}
		func() {
			defer s.slots.release()
			handle(b, r)
			b.compress(r)
		}()
		b.send(w)
	}
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

func (b *bufferedResponse) send(w http.ResponseWriter) {
	if b.code != http.StatusNotModified {
		b.header.Set("Content-Length", strconv.Itoa(b.body.Len()))
	}
	w.WriteHeader(b.code)
	w.Write(b.body.Bytes()) //nolint:errcheck // the client has gone
}

func zipped(plain []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(plain) //nolint:errcheck // a buffer in memory never fails
	z.Close()      //nolint:errcheck // a buffer in memory never fails
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
