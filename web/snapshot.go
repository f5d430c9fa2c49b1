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

// queryTimeout bounds the queries behind one answer: nobody waits longer for a
// page, and a database that is that slow must not collect waiting connections.
const queryTimeout = 5 * time.Second

// snapshot is what the database said for one window at one moment. It is shared
// between requests: nobody changes it.
type snapshot struct {
	window  window
	at      time.Time
	links   []ranking.TrendingLink // Image resolved to a URL or empty; every URL is http or https
	streams []schema.StreamStatus
	gaps    []schema.Gap
	follows schema.Following
	etag    string
}

// snapshot counts the links of a window. Requests for the same count that come
// while it is being made wait for it together; it is forgotten as soon as it is
// there. A failure has been logged, once for all who waited.
func (s *server) snapshot(ctx context.Context, w window, limit int) (*snapshot, error) {
	done := s.counting.DoChan(fmt.Sprintf("%s %d", w.Name, limit), func() (any, error) {
		// The first to ask may leave while others still wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), queryTimeout)
		defer cancel()
		snap, err := s.read(ctx, w, limit)
		if err != nil {
			s.log.Error("page_not_counted", "window", w.Name, "error", err)
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

// read asks for the gaps last: one that opens meanwhile is told rather than
// missed.
func (s *server) read(ctx context.Context, w window, limit int) (*snapshot, error) {
	snap := &snapshot{window: w, at: s.now().UTC()}
	links, err := ranking.TrendingLinks(ctx, s.db, snap.at, w.Length, limit)
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
	for i := range snap.streams { // what an operator is told, with hosts and addresses
		snap.streams[i].Detail = ""
	}
	snap.links = make([]ranking.TrendingLink, 0, len(links))
	for _, l := range links {
		if _, ok := parseLink(l.URL); !ok {
			s.corrupt.Do(func() { s.log.Error("stored_url_is_not_http", "url", l.URL) })
			continue
		}
		l.Image = s.images.url(l.Image)
		l.FirstShared, l.LastShared = l.FirstShared.UTC(), l.LastShared.UTC()
		snap.links = append(snap.links, l)
	}
	snap.etag, err = s.etag(snap, limit)
	return snap, err
}

// etag is a weak validator: it leaves out the moment of counting and the
// relative times, which change while what they are about does not.
func (s *server) etag(snap *snapshot, limit int) (string, error) {
	content, err := json.Marshal([]any{s.assets.build, snap.window.Name, limit, snap.links, snap.streams, snap.gaps, snap.follows})
	if err != nil {
		return "", fmt.Errorf("hash the ranking: %w", err)
	}
	sum := sha256.Sum256(content)
	return `W/"` + hex.EncodeToString(sum[:12]) + `"`, nil
}

// unchanged answers 304 where the client has what etag stands for already.
func unchanged(w http.ResponseWriter, r *http.Request, etag string) bool {
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "no-cache") // may be kept, must be asked about
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

// parseLink reads a stored URL; ok is false unless it is an absolute http or
// https URL.
func parseLink(raw string) (u *url.URL, ok bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, false
	}
	return u, true
}
