package links

import (
	"net/http"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

// pageView is a page of the ranking.
type pageView struct {
	web.Frame
	Window   window
	Subtitle string
	Controls controls
	Compact  bool
	Now      string // excluded from the version of the page
	AsOf     *web.Timestamp
	Stream   string // the address of the stream of its changes; empty: it has none
	Reload   string
	State    streamState
	Statuses []web.Status
	Gaps     []gapView
	Links    []linkView
	Empty    *emptyView // set if there are no links
	First    string     // address of the first page; empty on that page
	Next     string     // address of the next page
	API      string

	Strangers string // how often the posts of accounts that are not followed are fetched again; empty: everybody counts
}

func (s *Server) servePage(w http.ResponseWriter, r *http.Request) {
	v, err := parseView(r.URL.RawQuery, "window=6h", rankingPages().Parameters, ranking.DefaultWindow)
	if err != nil {
		s.WriteError(w, r, http.StatusBadRequest, err.Error())
		return
	}
	if web.Redirected(w, r, RankingHref(v)) {
		return
	}
	snap, err := s.snapshot(r.Context(), v)
	if err != nil {
		s.WriteUnreadable(w, r, v, err)
		return
	}
	own := *snap // requests for the other density share snap
	own.view = v
	page := s.newPage(&own)
	// The hash covers the ages, so that a browser gets new ones, but not the time of the request.
	shown, err := web.Version([]any{s.Build(), page})
	if err != nil {
		s.RenderFailed(w, err)
		return
	}
	if web.NotModified(w, r, `W/"`+shown+`"`) {
		return
	}
	page.Now = snap.at.Format(time.RFC3339)
	s.Render(w, http.StatusOK, "page", page)
}

func (s *Server) newPage(snap *snapshot) pageView {
	v := snap.view
	page := pageView{
		Frame: s.NewFrame().Scripted(s.Server, "page.js"), Window: v.window, Subtitle: subtitle(snap, v), Controls: s.newControls(v, snap.watches, snap.networks), Compact: v.density == compact,
		AsOf: web.NewTimestamp(snap.at.Truncate(time.Minute), snap.at), Reload: RankingHref(v), State: newState(snap.coverage, snap.at),
		Statuses: web.NewStatuses(snap.streams, snap.at), Gaps: newGaps(snap.coverage, snap.at), API: apiHref("/api/v1/trending", v),
	}
	for i := range snap.links {
		link := s.newLink(&snap.links[i], snap.at, v)
		link.Rank = snap.before + i + 1
		page.Links = append(page.Links, link)
	}
	if len(page.Links) == 0 {
		empty := s.newEmpty(snap)
		page.Empty = &empty
	}
	page.Controls.Feeds = s.Alternates(RankingHref(v.with(func(*View) {})))
	if snap.follows.Watches > 0 {
		page.Strangers = say("about_strangers", duration(ranking.SubjectInterval))
	}
	if snap.next != "" {
		page.Next = RankingHref(v.with(func(v *View) { v.Query.After = snap.next }))
	}
	if v.Query.After != "" {
		page.First = RankingHref(v.with(func(*View) {}))
	} else {
		page.Stream = apiHref("/api/v1/trending/stream", v)
	}
	return page
}

// apiHref returns the address of the first page of a view in the API.
func apiHref(path string, v View) string {
	v.density, v.Query.After = full, ""
	return strings.Replace(RankingHref(v), "/", path, 1)
}
