package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// queryTimeout bounds the queries of one response, so that a slow database does not
// accumulate waiting connections.
const queryTimeout = 5 * time.Second

// snapshot holds the ranking and the state of the streams for one window at one time.
// Requests share it, so it is never changed.
type snapshot struct {
	window  window
	at      time.Time
	links   []ranking.TrendingLink // Image is a URL or empty; every URL is http or https
	streams []schema.StreamStatus
	gaps    []schema.Gap
	follows schema.Following
	etag    string
}

// snapshot counts the links of a window. Concurrent requests for the same count share
// one; it is not cached afterwards. An error is logged once for all of them.
func (s *server) snapshot(ctx context.Context, w window, limit int) (*snapshot, error) {
	done := s.counting.DoChan(fmt.Sprintf("%s %d", w.Name, limit), func() (any, error) {
		// The first client may disconnect while others still wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout)
		defer cancel()
		snap, err := s.read(ctx, w, limit)
		if err != nil {
			s.log.Error("ranking_count_failed", "window", w.Name, "error", err)
		}
		return snap, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case result := <-done:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*snapshot), nil
	}
}

// read reads the gaps after the links, so that a gap that opens meanwhile is not
// missed.
func (s *server) read(ctx context.Context, w window, limit int) (*snapshot, error) {
	snap := &snapshot{window: w, at: s.now().UTC()}
	page, err := ranking.Trending(ctx, s.db, ranking.Query{At: snap.at, Window: w.Length, Limit: limit})
	if err != nil {
		return nil, err
	}
	if snap.streams, err = schema.StreamStatuses(ctx, s.db); err != nil {
		return nil, err
	}
	if snap.gaps, err = schema.OpenGaps(ctx, s.db, snap.at.Add(-w.Length), snap.at); err != nil {
		return nil, err
	}
	if snap.follows, err = schema.ReadFollowing(ctx, s.db); err != nil {
		return nil, err
	}
	for i := range snap.streams { // the detail is for operators: it contains addresses
		snap.streams[i].Detail = ""
	}
	snap.links = make([]ranking.TrendingLink, 0, len(page.Links))
	for _, l := range page.Links {
		if _, ok := parseLink(l.URL); !ok {
			s.corrupt.Do(func() { s.log.Error("stored_url_invalid", "url", l.URL) })
			continue
		}
		l.Image = s.images.url(l.Image)
		l.FirstShared, l.LastShared = l.FirstShared.UTC(), l.LastShared.UTC()
		snap.links = append(snap.links, l)
	}
	snap.etag, err = s.etag(snap, limit)
	return snap, err
}

// etag returns a weak validator. It excludes the time of the count and relative times,
// which change although the ranking does not.
func (s *server) etag(snap *snapshot, limit int) (string, error) {
	content, err := json.Marshal([]any{s.assets.build, snap.window.Name, limit, snap.links, snap.streams, snap.gaps, snap.follows})
	if err != nil {
		return "", fmt.Errorf("hash the ranking: %w", err)
	}
	sum := sha256.Sum256(content)
	return `W/"` + hex.EncodeToString(sum[:12]) + `"`, nil
}

// notModified writes status 304 and returns true if the client has the version that
// etag identifies.
func notModified(w http.ResponseWriter, r *http.Request, etag string) bool {
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "no-cache") // the client may store it, but must revalidate
	for _, header := range r.Header.Values("If-None-Match") {
		for tag := range strings.SplitSeq(header, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(etag, "W/") {
				w.WriteHeader(http.StatusNotModified)
				return true
			}
		}
	}
	return false
}

// parseLink parses a stored URL. ok is false unless it is an absolute http or https
// URL.
func parseLink(raw string) (u *url.URL, ok bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, false
	}
	return u, true
}
