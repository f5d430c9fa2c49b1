// Package links serves the ranking: as a page that a small script keeps up to date, and as JSON, also as a stream of
// changes. It stores nothing: every response is counted from the shares at the time that it shows, and streams of the
// same view share their computations. Nothing of the page knows it, so it can be left out.
package links

import (
	"context"
	"embed"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

//go:embed static templates
var files embed.FS

//go:embed texts.txt
var textFile string

var texts = web.ParseTexts(textFile)

func say(key string, values ...any) string { return texts.Say(key, values...) }

// Server serves links. It is safe for concurrent use.
type Server struct {
	*web.Server
	counting  singleflight.Group // the running counts, by view
	following following
	live      *liveViews
	corrupt   sync.Once // logs an invalid stored URL once
}

// Part returns the ranking at /, the pages of links, and their API. images is the URL of stored images, as in web.Part.
func Part(images string) web.Part {
	return web.Part{
		Routes: func(core *web.Server) []web.Route { return New(core).routes() },
		Files:  files, Texts: texts, Images: images, Front: &web.Front{ToIt: say("to_ranking"), Nothing: say("error_nothing")},
	}
}

func (s *Server) routes() []web.Route {
	return []web.Route{
		{Pattern: "/{$}", Handler: s.servePage, Kept: true},
		{Pattern: "/links/{id}", Handler: s.linkHandler(linkPages().Parameters, s.serveLinkPage), Kept: true},
		{Pattern: "/api/v1/trending", Handler: s.serveTrending, Operation: trendingOperation()},
		{Pattern: "/api/v1/trending/stream", Handler: s.serveStream, Direct: true, Operation: streamOperation()},
		{Pattern: "/api/v1/links/{id}", Handler: s.linkHandler(linkParameters(), s.serveLink), Operation: linkOperation()},
		{Pattern: "/api/v1/links/{id}/shares", Handler: s.linkHandler(shareParameters(), s.serveLinkShares), Operation: sharesOperation()},
	}
}

// New returns a server of links, for the page or for another part that shows links.
func New(core *web.Server) *Server {
	s := &Server{Server: core}
	s.live = newLiveViews(func(ctx context.Context, q ranking.Query) (ranking.Page, error) {
		q.At = s.Now()
		return ranking.Trending(ctx, s.DB, q)
	}, s.shown, core.Stopping, core.Log)
	s.live.streams = func(ctx context.Context, window time.Duration) (streamState, error) {
		now := s.Now().UTC()
		c, err := s.readCoverage(ctx, window, now)
		return newState(c, now), err
	}
	return s
}

// WriteUnavailable reports that the database does not respond.
func (s *Server) WriteUnavailable(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "5")
	s.WriteError(w, r, http.StatusServiceUnavailable, say("error_uncounted"))
}
