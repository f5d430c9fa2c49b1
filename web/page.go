package web

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/ranking"
)

// pageView is the whole page.
type pageView struct {
	Title   string
	Window  window
	Windows []windowView
	Watch   string       // that was asked for; empty: all followed accounts
	Choices []choiceView // of watches; none: there is no choice
	API     string
	Live    liveView
	CSS, JS string
	Icon    string
}

type windowView struct {
	window
	Href    string
	Current bool
}

// liveView is the part of the page that the script refreshes.
type liveView struct {
	At       string
	ETag     string
	Subtitle string
	Statuses []statusView
	Gaps     []gapView
	Links    []linkView
	Empty    *emptyView // set where there are no links

	LongerHref string // of the longer window that Empty offers
}

// gapView is an interval whose shares may be missing from the counts.
type gapView struct {
	From, To clockTime
	Reason   string
	Stream   string // the name of the stream, if there are several
}

// GapsVersion returns a hash that changes with the gaps.
func (v liveView) GapsVersion() (string, error) { return version(v.Gaps) }

// linkView is one line of the ranking.
type linkView struct {
	Same        string // the index of this line among those that the client has; empty: the client does not have it
	ID          string // depends only on the URL
	Shares      string // the address of the page with its shares
	Version     string // changes with everything but relative times
	Href        string
	Title       string
	Site        string
	Description string
	Image       string
	Sharers     string
	SharedBy    []person // the latest first
	Last        *timestamp
	CardFrom    string
}

func (s *server) servePage(w http.ResponseWriter, r *http.Request) {
	snap, ok := s.requestedSnapshot(w, r)
	if !ok {
		return
	}
	page := pageView{
		Title: s.title, Window: snap.view.window, Watch: snap.view.query.Watch, API: "/api/v1/trending?window=" + snap.view.Name, CSS: s.assets.url("page.css"), JS: s.assets.url("page.js"), Icon: s.assets.url("icon.svg"),
	}
	if page.Watch != "" {
		page.API += "&watch=" + url.QueryEscape(page.Watch)
	}
	for _, each := range windows() {
		page.Windows = append(page.Windows, windowView{each, pageHref(each.Name, page.Watch), each == snap.view.window})
	}
	var err error
	if page.Choices, err = s.choices(r.Context(), page.Watch); err != nil {
		s.writeUnavailable(w, r)
		return
	}
	if page.Live, err = newLive(snap); err != nil {
		s.renderFailed(w, err)
		return
	}
	// The hash includes the ages, so that a browser without scripts gets new ones, but
	// not the time of the request.
	shown, err := version([]any{s.assets.build, page})
	if err != nil {
		s.renderFailed(w, err)
		return
	}
	if notModified(w, r, `W/"`+shown+`"`) {
		return
	}
	page.Live.At = snap.at.Format(time.RFC3339)
	s.render(w, http.StatusOK, "page", page)
}

// maxHave bounds the lines in the header Weir-Have.
const maxHave = 200

// serveFragment sends the changed lines. The client lists the versions of its lines in
// the header Weir-Have, and serveFragment omits those lines.
func (s *server) serveFragment(w http.ResponseWriter, r *http.Request) {
	snap, ok := s.requestedSnapshot(w, r)
	if !ok {
		return
	}
	w.Header().Add("Vary", "Weir-Have")
	if notModified(w, r, snap.etag) {
		return
	}
	live, err := newLive(snap)
	if err != nil {
		s.renderFailed(w, err)
		return
	}
	live.At = snap.at.Format(time.RFC3339)
	live.markKnown(r.Header.Get("Weir-Have"))
	s.render(w, http.StatusOK, "live", live)
}

// markKnown marks the lines that a client has. have lists their versions in the
// client's order.
func (v *liveView) markKnown(have string) {
	if have == "" {
		return
	}
	at := make(map[string]string)
	for i, version := range strings.SplitN(have, ",", maxHave) {
		at[version] = strconv.Itoa(i)
	}
	for i := range v.Links {
		v.Links[i].Same = at[v.Links[i].Version]
	}
}

// requestedSnapshot returns the snapshot for a request of a page or fragment. If it
// fails, it writes the response, and ok is false.
func (s *server) requestedSnapshot(w http.ResponseWriter, r *http.Request) (snap *snapshot, ok bool) {
	values, err := knownParameters(r.URL.RawQuery, []string{"window", "watch"}, "?window=6h")
	var v view
	if err == nil {
		v, err = newView(values)
	}
	if err != nil {
		s.writeError(w, r, http.StatusBadRequest, err.Error())
		return nil, false
	}
	snap, err = s.snapshot(r.Context(), v)
	if err != nil {
		s.writeUnreadable(w, r, v, err)
		return nil, false
	}
	return snap, true
}

func newLive(snap *snapshot) (liveView, error) {
	statuses, err := newStatuses(snap.streams, snap.at)
	if err != nil {
		return liveView{}, err
	}
	live := liveView{ETag: snap.etag, Subtitle: subtitle(snap.follows, snap.view.window), Statuses: statuses}
	for _, g := range snap.gaps {
		view := gapView{From: newClockTime(g.From), To: newClockTime(g.To), Reason: plain(g.Reason, maxDetail)}
		if len(snap.streams) > 1 {
			view.Stream = plain(g.Stream, maxName)
		}
		live.Gaps = append(live.Gaps, view)
	}
	for i := range snap.links {
		link, err := newLink(&snap.links[i], snap.at, snap.view)
		if err != nil {
			return liveView{}, err
		}
		live.Links = append(live.Links, link)
	}
	if len(live.Links) == 0 {
		empty := newEmpty(snap.streams, snap.view.window)
		live.Empty, live.LongerHref = &empty, pageHref(empty.Longer, snap.view.query.Watch)
	}
	return live, nil
}

func newLink(l *ranking.TrendingLink, now time.Time, in view) (linkView, error) {
	u, ok := parseLink(l.URL)
	if !ok {
		return linkView{}, fmt.Errorf("show the link %q: it is not http or https", l.URL)
	}
	v, err := version(l)
	if err != nil {
		return linkView{}, err
	}
	id := sha256.Sum256([]byte(l.URL))
	view := linkView{
		ID:          "link-" + hex.EncodeToString(id[:8]),
		Version:     v,
		Shares:      linkHref(l.ID, in),
		Href:        l.URL,
		Title:       plain(l.Title, maxTitle),
		Site:        plain(l.Site, maxSite),
		Description: plain(l.Description, maxDescription),
		Image:       l.Image,
		Sharers:     grouped(l.Sharers),
		Last:        newTimestamp(l.LastShared, now),
		CardFrom:    postURL(l.CardFrom),
	}
	if view.Title == "" {
		view.Title = displayURL(u)
	}
	if view.Site == "" {
		view.Site = plain(u.Hostname(), maxSite)
	}
	for _, name := range l.SharedBy {
		if p := newPerson(name); p.Name != "" {
			view.SharedBy = append(view.SharedBy, p)
		}
	}
	return view, nil
}

// version returns a short hash of a part of the page.
func version(of any) (string, error) {
	content, err := json.Marshal(of)
	if err != nil {
		return "", fmt.Errorf("hash a part of the page: %w", err)
	}
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:6]), nil
}

// pageHref returns the address of a view of the page.
func pageHref(window, watch string) string {
	address := "/?window=" + window
	if watch != "" {
		address += "&watch=" + url.QueryEscape(watch)
	}
	return address
}

// grouped formats a count with commas between thousands.
func grouped(n int) string {
	digits := strconv.Itoa(n)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// render writes a template. It executes the template before it sends anything, so that
// an error cannot leave an incomplete page.
func (s *server) render(w http.ResponseWriter, code int, name string, view any) {
	var b bytes.Buffer
	if err := s.templates.ExecuteTemplate(&b, name, view); err != nil {
		s.renderFailed(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(b.Bytes()) //nolint:errcheck // the client has gone
}

// renderFailed reports a bug in Weir.
func (s *server) renderFailed(w http.ResponseWriter, err error) {
	s.log.Error("page_render_failed", "error", err)
	http.Error(w, "The page could not be rendered. The log has the error.", http.StatusInternalServerError)
}
