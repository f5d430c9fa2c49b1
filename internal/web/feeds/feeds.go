// Package feeds serves the ranking as feeds: Atom and JSON Feed. Nothing of the page knows it, so it can be
// left out.
package feeds

import (
	"context"
	_ "embed"
	"errors"
	"html"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/ranking/feeds"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
)

// feedLimit is the default number of entries of a feed.
const feedLimit = 100

// feedWindow is the window of every feed: all stored shares.
const feedWindow = "7d"

//go:embed texts.txt
var textFile string

var texts = web.ParseTexts(textFile)

func say(key string, values ...any) string { return texts.Say(key, values...) }

// server serves the feeds. It is safe for concurrent use.
type server struct {
	*links.Server
	cache     *web.Cache[*keptFeed]
	computing singleflight.Group // the running computations, by view
	turns     chan struct{}      // a token per feed that is being computed
}

// Part returns the addresses of feeds.
func Part() web.Part { return web.Part{Routes: routes, Texts: texts, Alternates: feedLinks} }

func routes(core *web.Server) (all []web.Route) {
	s := &server{Server: links.New(core), cache: web.NewCache[*keptFeed](maxFeedBytes), turns: make(chan struct{}, feedsAtOnce)}
	for _, format := range []feedFormat{atomFormat(), jsonFormat()} {
		all = append(all, web.Route{Pattern: format.path, Handler: s.serveFeed(format), Direct: true, Operation: &web.Operation{
			Name: format.name, Summary: say("api_" + format.name), Returns: format.returns, Type: format.mediaType,
			Parameters: links.Parameters(addresses().Parameters, map[string]any{"at_least": feeds.AtLeast, "limit": feedLimit}),
			Codes:      []int{http.StatusFound, http.StatusNotModified, http.StatusBadRequest},
		}})
	}
	return all
}

// addresses describes the addresses of feeds. Windows and orders do not affect a feed.
func addresses() links.Pages {
	names := []string{"at_least", "ways", "network", "domain", "text", "by", "watch", "degree", "limit"}
	return links.Pages{Parameters: names, Window: feedWindow, AtLeast: feeds.AtLeast, Limit: feedLimit}
}

// feedHref returns the address of the feed of a view of the ranking.
func feedHref(path string, v links.View) string {
	v.Query.Limit = feedLimit
	if v.Query.AtLeast < 2 {
		v.Query.AtLeast = feeds.AtLeast
	}
	return addresses().Address(path, v)
}

// feedLinks are the feeds of a page of the ranking.
func feedLinks(address string) []web.Alternate {
	v, ok := links.ViewAt(address)
	if !ok {
		return nil
	}
	return []web.Alternate{
		{Name: say("feed_atom"), Href: feedHref(atomFormat().path, v), Type: atomFormat().mediaType},
		{Name: say("feed_json"), Href: feedHref(jsonFormat().path, v), Type: jsonFormat().mediaType},
	}
}

// feedFormat writes a feed in a format.
type feedFormat struct {
	name, path, mediaType string
	encode                func(feedView) ([]byte, error)
	returns               any // a value of the type that is JSON; nil: it is not JSON
}

func atomFormat() feedFormat {
	return feedFormat{"feed_atom", "/feed.atom", "application/atom+xml", encodeAtom, nil}
}
func jsonFormat() feedFormat {
	return feedFormat{"feed_json", "/feed.json", "application/feed+json", encodeJSONFeed, jsonFeed{}}
}

// feedView is a feed with sanitised texts and absolute addresses.
type feedView struct {
	ID      string // a URN
	Title   string
	Author  string
	Home    string // the address of the ranking
	Self    string
	Updated time.Time
	Entries []feedEntryView
}

type feedEntryView struct {
	ID      string // a URN
	Title   string
	Href    string
	Content string // HTML
	Image   string
	At      time.Time
}

// serveFeed serves the feed of a view. While it waits for the feed, it has no slot: others need it for pages.
func (s *server) serveFeed(format feedFormat) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := parseFeed(r.URL.RawQuery)
		if err != nil {
			s.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		if web.Redirected(w, r, addresses().Address(format.path, v)) {
			return
		}
		found, err := s.feed(r.Context(), v)
		s.Buffered(func(w http.ResponseWriter, r *http.Request) {
			if err != nil {
				s.WriteUnreadable(w, r, v, err)
				return
			}
			s.writeFeed(w, r, format, v, found)
		})(w, r)
	}
}

// writeFeed writes a feed in a format.
func (s *server) writeFeed(w http.ResponseWriter, r *http.Request, format feedFormat, v links.View, found *keptFeed) {
	base := s.Base(r)
	w.Header().Set("Last-Modified", found.changed.UTC().Format(http.TimeFormat))
	if web.NotModified(w, r, found.etag(format, base, s.feedTitle(v))) {
		return
	}
	if since, err := http.ParseTime(r.Header.Get("If-Modified-Since")); err == nil && r.Header.Get("If-None-Match") == "" &&
		!found.changed.Truncate(time.Second).After(since) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, err := format.encode(s.newFeed(found.Feed, v, format, base))
	if err != nil {
		s.RenderFailed(w, err)
		return
	}
	w.Header().Set("Content-Type", format.mediaType+"; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	w.Write(body) // the client has gone
}

// parseFeed reads the parameters of a feed.
func parseFeed(raw string) (links.View, error) {
	values, err := web.ParseParameters(raw, addresses().Parameters, "at_least=5&domain=news.example")
	if err != nil {
		return links.View{}, err
	}
	for name, standard := range map[string]int{"at_least": feeds.AtLeast, "limit": feedLimit} {
		if !values.Has(name) {
			values.Set(name, strconv.Itoa(standard))
		}
	}
	return links.NewView(values, feedWindow)
}

// feed returns the feed of a view, computed within the last five minutes.
func (s *server) feed(ctx context.Context, v links.View) (*keptFeed, error) {
	key := v.Key()
	if found := s.fresh(key, s.Now()); found != nil {
		return found, nil
	}
	patience, cancel := context.WithTimeout(ctx, web.QueryTimeout)
	defer cancel()
	return web.Shared(patience, &s.computing, key, func(ctx context.Context) (*keptFeed, error) {
		// A computation that takes longer than a request is there for the next request.
		ctx, cancel := context.WithTimeout(ctx, feedTimeout)
		defer cancel()
		waiting, over := context.WithTimeout(ctx, web.QueryTimeout) // by then, whoever asked first has gone
		defer over()
		select {
		case s.turns <- struct{}{}:
			defer func() { <-s.turns }()
		case <-waiting.Done():
			return nil, waiting.Err()
		}
		if found := s.fresh(key, s.Now()); found != nil { // computed a moment ago
			return found, nil
		}
		q := v.Query
		q.At = s.Now().UTC()
		read, err := feeds.Read(ctx, s.Primary, q)
		if err == nil {
			read.Entries = s.shownEntries(read.Entries)
			return s.keep(key, read)
		}
		if !errors.Is(err, ranking.ErrWatch) {
			s.Log.Error("feed_read_failed", "error", err)
		}
		return nil, err
	})
}

// shownEntries leaves out links that are not http or https, and sets the URLs of the
// images.
func (s *server) shownEntries(entries []feeds.Entry) (shown []feeds.Entry) {
	for _, e := range entries {
		if s.Show(&e.LinkCard) {
			shown = append(shown, e)
		}
	}
	return shown
}

// newFeed describes a feed. base is the public address of this server.
func (s *server) newFeed(f feeds.Feed, v links.View, format feedFormat, base string) feedView {
	home := v
	home.Query.Limit = links.DefaultLimit
	address := addresses().Address("", v)
	feed := feedView{
		ID: "urn:uuid:" + f.UUID(address), Title: s.feedTitle(v), Author: web.Title, Home: base + links.RankingHref(home),
		Self: base + format.path + address, Updated: f.Made.UTC().Truncate(time.Second),
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		at := e.Reached.UTC().Truncate(time.Second)
		if at.After(feed.Updated) || i == 0 {
			feed.Updated = at
		}
		feed.Entries = append(feed.Entries, feedEntryView{
			ID: "urn:uuid:" + e.UUID, Title: links.LinkTitle(&e.LinkCard), Href: e.URL, Image: e.Image, At: at,
			Content: entryContent(e, base+links.LinkHref(e.ID, v)),
		})
	}
	return feed
}

// entryContent returns the HTML of an entry: its description, and a link to its page. It contains
// no count, because counts change.
func entryContent(e *feeds.Entry, shares string) string {
	var b strings.Builder
	if description := web.PlainLine(e.Description, web.MaxDescription); description != "" {
		b.WriteString("<p>" + html.EscapeString(description) + "</p>")
	}
	b.WriteString(`<p><a href="` + html.EscapeString(shares) + `">` + html.EscapeString(say("feed_shares")) + "</a></p>")
	return b.String()
}

// feedTitle names the view of a feed.
func (s *server) feedTitle(v links.View) string {
	parts := []string{web.Title}
	if v.Query.Watch != "" {
		parts = append(parts, web.TargetName(v.Query.Watch))
	}
	if v.Query.AtLeast < 2 {
		parts = append(parts, say("feed_at_least"))
	}
	return strings.Join(append(parts, s.Filters(v)...), " · ")
}

// etag identifies a feed in a format and at a public address.
func (k *keptFeed) etag(format feedFormat, base, title string) string {
	version, _ := web.Version([]string{k.version, format.path, base, title, textFile}) // texts can be hashed
	return `W/"` + version + `"`
}
