package web

import (
	"bytes"
	"net/http"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

// Frame holds the parts that every page has.
type Frame struct {
	Title  string // the name at the top
	Home   string
	ToHome string // the text of the link to Home
	CSS    string
	JS     string // empty: the page has no script
	Icon   string
	Texts  string // for the script
}

func (s *Server) NewFrame() Frame {
	return Frame{Title: s.Title, Home: s.home, ToHome: s.homeName, CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg")}
}

// scripted adds the script to a page.
func (f Frame) scripted(s *Server) Frame {
	f.JS, f.Texts = s.assets.url("page.js"), scriptTexts()
	return f
}

// pageView is a page of the ranking.
type pageView struct {
	Frame
	Window   window
	Subtitle string
	Controls controls
	Compact  bool
	Now      string // excluded from the version of the page
	AsOf     *Timestamp
	Stream   string // the address of the stream of its changes; empty: it has none
	Reload   string
	State    streamState
	Statuses []statusView
	Gaps     []gapView
	Links    []linkView
	Empty    *emptyView // set if there are no links
	First    string     // address of the first page; empty on that page
	Next     string     // address of the next page
	API      string

	Strangers string // how often the posts of accounts that are not followed are fetched again; empty: everybody counts
}

func (s *Server) servePage(w http.ResponseWriter, r *http.Request) {
	values, err := ParseParameters(r.URL.RawQuery, rankingPages().Parameters, "window=6h")
	var v View
	if err == nil {
		v, err = NewView(values, ranking.DefaultWindow)
	}
	if err != nil {
		s.WriteError(w, r, http.StatusBadRequest, err.Error())
		return
	}
	if Redirected(w, r, RankingHref(v)) {
		return
	}
	snap, err := s.snapshot(r.Context(), v)
	if err != nil {
		s.WriteUnreadable(w, r, v, err)
		return
	}
	own := *snap // requests for the other density share snap
	own.view = v
	page, err := s.newPage(&own)
	if err != nil {
		s.RenderFailed(w, err)
		return
	}
	// The hash covers the ages, so that a browser gets new ones, but not the time of the request.
	shown, err := version([]any{s.assets.build, page})
	if err != nil {
		s.RenderFailed(w, err)
		return
	}
	if NotModified(w, r, `W/"`+shown+`"`) {
		return
	}
	page.Now = snap.at.Format(time.RFC3339)
	s.Render(w, http.StatusOK, "page", page)
}

func (s *Server) newPage(snap *snapshot) (pageView, error) {
	v := snap.view
	page := pageView{
		Frame: s.NewFrame().scripted(s), Window: v.window, Subtitle: subtitle(snap, v), Controls: newControls(v, snap.watches, snap.networks), Compact: v.compact,
		AsOf: NewTimestamp(snap.at.Truncate(time.Minute), snap.at), Reload: RankingHref(v), State: newState(snap.streams, snap.gaps, snap.complete, snap.at),
		Statuses: newStatuses(snap.streams, snap.at), Gaps: newGaps(snap), API: apiHref("/api/v1/trending", v),
	}
	for i := range snap.links {
		link, err := s.newLink(&snap.links[i], snap.at, v)
		if err != nil {
			return pageView{}, err
		}
		link.Rank = snap.before + i + 1
		page.Links = append(page.Links, link)
	}
	if len(page.Links) == 0 {
		empty := newEmpty(snap)
		page.Empty = &empty
	}
	page.Controls.Feeds = s.alternates(v)
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
	return page, nil
}

// apiHref returns the address of the first page of a view in the API.
func apiHref(path string, v View) string {
	v.compact, v.Query.After = false, ""
	return strings.Replace(RankingHref(v), "/", path, 1)
}

// Render writes a template. It executes the template before it sends anything, so that
// an error cannot leave an incomplete page.
func (s *Server) Render(w http.ResponseWriter, code int, name string, view any) {
	var b bytes.Buffer
	if err := s.templates.ExecuteTemplate(&b, name, view); err != nil {
		s.RenderFailed(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(b.Bytes()) // the client has gone
}

// RenderFailed reports a bug in Weir.
func (s *Server) RenderFailed(w http.ResponseWriter, err error) {
	s.Log.Error("page_render_failed", "error", err)
	http.Error(w, say("error_render"), http.StatusInternalServerError)
}
