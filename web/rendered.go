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
	pagesAtOnce  = 8               // that are counted, rendered and compressed; each holds a connection to the database
	pagePatience = 2 * time.Second // for one of these places
	worthGzip    = 1024            // bytes: less is sent as it is
)

// places bound what is made at once.
type places chan struct{}

// take waits a moment for a place; false where there was none.
func (p places) take(ctx context.Context) bool {
	select {
	case p <- struct{}{}:
		return true
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, pagePatience)
	defer cancel()
	select {
	case p <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p places) leave() { <-p }

// rendered makes an answer whole, compressed where the client takes that, in one
// of few places. It is sent afterwards: a client that reads slowly holds the
// compressed bytes alone.
func (s *server) rendered(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.places.take(r.Context()) {
			w.Header().Set("Retry-After", "2")
			s.refuse(w, r, http.StatusServiceUnavailable, "Too many people ask at once. Try again in a moment.")
			return
		}
		made := &answer{header: w.Header(), code: http.StatusOK}
		func() {
			defer s.places.leave()
			handle(made, r)
			made.compress(r)
		}()
		made.send(w)
	}
}

// answer is one that has not been sent yet.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

func (a *answer) compress(r *http.Request) {
	a.header.Add("Vary", "Accept-Encoding")
	if a.body.Len() < worthGzip || !takesGzip(r) {
		return
	}
	a.body = *bytes.NewBuffer(zipped(a.body.Bytes()))
	a.header.Set("Content-Encoding", "gzip")
}

func (a *answer) send(w http.ResponseWriter) {
	if a.code != http.StatusNotModified {
		a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
	}
	w.WriteHeader(a.code)
	w.Write(a.body.Bytes()) //nolint:errcheck // the client has gone
}

func zipped(plain []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	z.Write(plain) //nolint:errcheck // into memory
	z.Close()      //nolint:errcheck // the same
	return b.Bytes()
}

// takesGzip reports whether the client takes a compressed answer.
func takesGzip(r *http.Request) bool {
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
