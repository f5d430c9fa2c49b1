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
	State    streamState
	Statuses []web.Status
	Gaps     []gapView
	Links    []linkView
	Empty    *emptyView // set if there are no links
	pageAddresses

	SubjectInterval string // how often the posts of accounts that are not followed are fetched again; empty: everybody counts
}

// pageAddresses are where a page of the ranking leads to.
type pageAddresses struct {
	Stream string // of its changes; empty: it has none
	Reload string
	First  string // of the first page; empty on that page
	Next   string // of the next page
	API    string
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
	data, err := s.pageData(r.Context(), v)
	if err != nil {
		s.WriteUnreadable(w, r, v, err)
		return
	}
	own := *data // requests for the other density share data
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
	page.Now = data.at.Format(time.RFC3339)
	s.Render(w, http.StatusOK, "page", page)
}

func (s *Server) newPage(data *pageData) pageView {
	v := data.view
	page := pageView{
		Frame: s.NewFrame().Scripted(s.Server, "page.js"), Window: v.window, Subtitle: subtitle(data, v),
		Controls: s.newControls(v, data.watches, data.networks), Compact: v.density == compact,
		AsOf: web.NewTimestamp(data.at.Truncate(time.Minute), data.at), State: newState(data.coverage, data.at),
		pageAddresses: pageAddresses{Reload: RankingHref(v), API: apiHref("/api/v1/trending", v)},
		Statuses:      web.NewStatuses(data.streams, data.at), Gaps: newGaps(data.coverage, data.at),
	}
	for i := range data.links {
		link := s.newLink(&data.links[i], data.at, v)
		link.Rank = data.before + i + 1
		page.Links = append(page.Links, link)
	}
	if len(page.Links) == 0 {
		empty := s.newEmpty(data)
		page.Empty = &empty
	}
	page.Controls.Feeds = s.Alternates(RankingHref(v.with(func(*View) {})))
	if data.follows.Watches > 0 {
		page.SubjectInterval = say("about_subject_interval", duration(ranking.SubjectInterval))
	}
	if data.next != "" {
		page.Next = RankingHref(v.with(func(v *View) { v.Query.After = data.next }))
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
