package links

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// pageData holds a page of a ranking and the state of the streams at one time. Requests
// share it, so it is never changed.
type pageData struct {
	view   View
	at     time.Time
	before int                    // number of links on the pages before
	next   ranking.Cursor         // cursor of the next page
	links  []ranking.TrendingLink // Image is a URL or empty; every URL is http or https
	coverage
	follows  schema.Following
	watches  []choice // to choose from
	etag     string
	networks []ranking.Network // networks whose accounts are counted

	progress schema.Progress // set if there are no links
}

// pageData counts the links of a view. Concurrent requests for the same view share one
// count, which is not cached afterwards. An error is logged once for all of them.
func (s *Server) pageData(ctx context.Context, v View) (*pageData, error) {
	return web.Shared(ctx, &s.counting, v.Key(), func(ctx context.Context) (*pageData, error) {
		ctx, cancel := context.WithTimeout(ctx, web.QueryTimeout)
		defer cancel()
		data, err := s.read(ctx, v)
		if err != nil && !isRequest(err) {
			s.Log.Error("ranking_count_failed", "window", v.Name, "error", err)
		}
		return data, err
	})
}

// isRequest reports whether an error is the request's fault.
func isRequest(err error) bool {
	return errors.Is(err, ranking.ErrCursor) || errors.Is(err, ranking.ErrWatch)
}

// read reads the coverage after the links, so that a gap that opens meanwhile is not missed.
func (s *Server) read(ctx context.Context, v View) (*pageData, error) {
	q := v.Query
	q.At = s.Now().UTC()
	page, err := ranking.Trending(ctx, s.DB, q)
	if err != nil {
		return nil, err
	}
	data := &pageData{view: v, at: page.At.UTC(), before: page.Before, next: page.Next}
	if data.coverage, err = s.readCoverage(ctx, v.Length, data.at); err != nil {
		return nil, err
	}
	if data.follows, err = s.follows(ctx, q); err != nil {
		return nil, err
	}
	if data.watches, err = s.watchChoices(ctx, q.Watch); err != nil {
		return nil, err
	}
	if data.networks, err = ranking.Networks(ctx, s.DB); err != nil {
		return nil, err
	}
	if len(page.Links) == 0 {
		if data.progress, err = schema.ReadProgress(ctx, s.DB, q.Watch); err != nil {
			return nil, err
		}
	}
	data.links = s.shown(page.Links)
	data.etag, err = s.etag(data)
	return data, err
}

// coverage is how far the shares of a window are stored.
type coverage struct {
	streams  []schema.StreamStatus
	gaps     []schema.Gap
	complete *time.Time // all shares since then are stored; nil: since the window began
}

// readCoverage reads the coverage of a window that ends at a time.
func (s *Server) readCoverage(ctx context.Context, window time.Duration, at time.Time) (c coverage, err error) {
	if c.streams, err = schema.StreamStatuses(ctx, s.DB); err != nil {
		return c, err
	}
	for i := range c.streams { // the detail is for operators: it contains addresses
		c.streams[i].Detail = ""
	}
	if c.gaps, err = schema.OpenGaps(ctx, s.DB, at.Add(-window), at); err != nil {
		return c, err
	}
	c.complete, err = ranking.CompleteAfter(ctx, s.DB, at.Add(-window))
	return c, err
}

// follows describes the accounts that count.
func (s *Server) follows(ctx context.Context, q ranking.Query) (schema.Following, error) {
	if q.Watch == "" {
		return s.following.read(ctx, s.DB, q.At)
	}
	var second *bool
	if q.Degree != ranking.BothDegrees {
		only := q.Degree == ranking.SecondDegree
		second = &only
	}
	return schema.ReadFollowingOf(ctx, s.DB, q.Watch, second)
}

// shown leaves out links that are not http or https, and sets the URLs of the images.
func (s *Server) shown(links []ranking.TrendingLink) []ranking.TrendingLink {
	shown := make([]ranking.TrendingLink, 0, len(links))
	for _, l := range links {
		if !s.Show(&l.LinkCard) {
			continue
		}
		l.Gift = giftHref(l.Gift)
		l.LastShared = l.LastShared.UTC()
		shown = append(shown, l)
	}
	return shown
}

// Show sets the URL of a link's image. It returns false if the link is not http or https, and may not be
// shown.
func (s *Server) Show(l *ranking.LinkCard) bool {
	if _, ok := parseLink(l.URL); !ok {
		s.corrupt.Do(func() { s.Log.Error("stored_url_invalid", "url", l.URL) })
		return false
	}
	l.Image = s.Image(l.Image)
	return true
}

// etag returns a weak validator. It excludes the time of the count and relative times,
// which change although the ranking does not. The cursor of the next page contains that
// time too, so a client gets a new cursor before its own is too old.
func (s *Server) etag(data *pageData) (string, error) {
	next := time.Time{}
	if data.next != "" {
		next = data.at.Truncate(ranking.CursorAge / 6)
	}
	version, err := web.Version([]any{s.Build(), data.view.Key(), next, data.links, data.streams, data.gaps, data.complete, data.follows})
	return `W/"` + version + `"`, err
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
