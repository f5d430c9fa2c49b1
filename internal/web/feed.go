package web

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

// feedLimit is the default number of entries of a feed.
const feedLimit = 100

// feedPages describes the addresses of feeds. Windows and orders do not affect a feed.
func feedPages() pages {
	return pages{names: []string{"at_least", "ways", "network", "domain", "text", "by", "watch", "degree", "limit"}, standard: linkWindow, least: ranking.FeedAtLeast, limit: feedLimit}
}

// feedHref returns the address of the feed of a view of the ranking.
func feedHref(path string, v view) string {
	v.query.Limit = feedLimit
	if v.query.AtLeast < 2 {
		v.query.AtLeast = ranking.FeedAtLeast
	}
	return feedPages().address(path, v)
}

// feedLink leads to a feed.
type feedLink struct{ Name, Href, Type string }

// feedLinks are the feeds of a view of the ranking.
func feedLinks(v view) []feedLink {
	return []feedLink{{say("feed_atom"), feedHref(atomFormat().path, v), atomFormat().mediaType}, {say("feed_json"), feedHref(jsonFormat().path, v), jsonFormat().mediaType}}
}

// feedFormat writes a feed in a format.
type feedFormat struct {
	path, mediaType string
	encode          func(feedView) ([]byte, error)
}

func atomFormat() feedFormat {
	return feedFormat{"/feed.atom", "application/atom+xml", encodeAtom}
}
func jsonFormat() feedFormat {
	return feedFormat{"/feed.json", "application/feed+json", encodeJSONFeed}
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

// serveFeed serves the feed of a view.
func (s *Server) serveFeed(format feedFormat) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := parseFeed(r.URL.RawQuery)
		if err != nil {
			s.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		if redirected(w, r, feedPages().address(format.path, v)) {
			return
		}
		found, err := s.feed(r.Context(), v)
		if err != nil {
			s.writeUnreadable(w, r, v, err)
			return
		}
		base := s.base(r)
		w.Header().Set("Last-Modified", found.changed.UTC().Format(http.TimeFormat))
		if notModified(w, r, found.etag(format, base)) {
			return
		}
		if since, err := http.ParseTime(r.Header.Get("If-Modified-Since")); err == nil && r.Header.Get("If-None-Match") == "" && !found.changed.Truncate(time.Second).After(since) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		body, err := format.encode(s.newFeed(found.Feed, v, format, base))
		if err != nil {
			s.renderFailed(w, err)
			return
		}
		w.Header().Set("Content-Type", format.mediaType+"; charset=utf-8")
		w.WriteHeader(http.StatusOK)
		w.Write(body) //nolint:errcheck // the client has gone
	}
}

// parseFeed reads the parameters of a feed.
func parseFeed(raw string) (view, error) {
	values, err := ParseParameters(raw, feedPages().names, "at_least=5&domain=news.example")
	if err != nil {
		return view{}, err
	}
	for name, standard := range map[string]int{"at_least": ranking.FeedAtLeast, "limit": feedLimit} {
		if !values.Has(name) {
			values.Set(name, strconv.Itoa(standard))
		}
	}
	return newView(values, linkWindow)
}

// feed returns the feed of a view, computed within the last five minutes.
func (s *Server) feed(ctx context.Context, v view) (*keptFeed, error) {
	key := v.key()
	if found := s.feeds.find(key, s.Now()); found != nil {
		return found, nil
	}
	done := s.counting.DoChan("feed "+key, func() (any, error) {
		// The first client may disconnect while others still wait. A computation that takes longer
		// than a request is there for the next request.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), feedTimeout)
		defer cancel()
		select {
		case s.feedTurns <- struct{}{}:
			defer func() { <-s.feedTurns }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if found := s.feeds.find(key, s.Now()); found != nil { // computed a moment ago
			return found, nil
		}
		q := v.query
		q.At = s.Now().UTC()
		read, err := ranking.ReadFeed(ctx, s.DB, q)
		if err == nil {
			read.Entries = s.shownEntries(read.Entries)
			return s.feeds.add(key, read)
		}
		if !isRequest(err) {
			s.Log.Error("feed_read_failed", "error", err)
		}
		return nil, err
	})
	patience, cancel := context.WithTimeout(ctx, QueryTimeout) // not ctx, which the computation's goroutine reads
	defer cancel()
	select {
	case <-patience.Done():
		return nil, patience.Err()
	case result := <-done:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*keptFeed), nil
	}
}

// shownEntries leaves out links that are not http or https, and sets the URLs of the
// images.
func (s *Server) shownEntries(entries []ranking.FeedEntry) []ranking.FeedEntry {
	entries = slices.DeleteFunc(entries, func(e ranking.FeedEntry) bool {
		_, ok := parseLink(e.URL)
		if !ok {
			s.corrupt.Do(func() { s.Log.Error("stored_url_invalid", "url", e.URL) })
		}
		return !ok
	})
	for i := range entries {
		entries[i].Image = s.images.url(entries[i].Image)
	}
	return entries
}

// newFeed describes a feed. base is the public address of this server.
func (s *Server) newFeed(f ranking.Feed, v view, format feedFormat, base string) feedView {
	home := v
	home.query.Limit = defaultLimit
	address := feedPages().address("", v)
	feed := feedView{
		ID: "urn:uuid:" + f.UUID(address), Title: s.feedTitle(v), Author: s.title, Home: base + rankingHref(home), Self: base + format.path + address, Updated: f.Made.UTC().Truncate(time.Second),
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		at := e.Reached.UTC().Truncate(time.Second)
		if at.After(feed.Updated) || i == 0 {
			feed.Updated = at
		}
		feed.Entries = append(feed.Entries, feedEntryView{
			ID: "urn:uuid:" + e.UUID, Title: entryTitle(e), Href: e.URL, Image: e.Image, At: at, Content: entryContent(e, base+linkHref(e.ID, v)),
		})
	}
	return feed
}

func entryTitle(e *ranking.FeedEntry) string {
	if title := PlainLine(e.Title, maxTitle); title != "" {
		return title
	}
	u, _ := parseLink(e.URL)
	return displayURL(u)
}

// entryContent returns the HTML of an entry: its description, and a link to its page. It contains
// no count, because counts change.
func entryContent(e *ranking.FeedEntry, shares string) string {
	var b strings.Builder
	if description := PlainLine(e.Description, maxDescription); description != "" {
		b.WriteString("<p>" + html.EscapeString(description) + "</p>")
	}
	b.WriteString(`<p><a href="` + html.EscapeString(shares) + `">` + html.EscapeString(say("feed_shares")) + "</a></p>")
	return b.String()
}

// feedTitle names the view of a feed.
func (s *Server) feedTitle(v view) string {
	parts := []string{s.title}
	if v.query.Watch != "" {
		parts = append(parts, targetName(v.query.Watch))
	}
	if v.query.AtLeast < 2 {
		parts = append(parts, say("active_at_least", 1))
	}
	for _, filter := range activeFilters(v) {
		parts = append(parts, filter.Name)
	}
	return strings.Join(parts, " · ")
}

// base returns the public address of this server: the configured one, or the one that the request
// names. The host in the request has been checked.
func (s *Server) base(r *http.Request) string {
	if s.url != "" {
		return s.url
	}
	u := url.URL{Scheme: "http", Host: r.Host}
	if r.TLS != nil || s.clients.proxies.forward(r) && strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		u.Scheme = "https"
	}
	if _, err := url.Parse(u.String()); err != nil || r.Host == "" {
		u.Host = "localhost"
	}
	return u.String()
}

// parsePublic returns the public address without a slash at its end.
func parsePublic(address string) (string, error) {
	if address == "" {
		return "", nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("URL is not an address such as https://weir.example, without a path")
	}
	return u.Scheme + "://" + u.Host, nil
}

// feedVersion identifies the content of a feed.
func feedVersion(f ranking.Feed) (string, error) {
	content, err := json.Marshal(f.Entries)
	if err != nil {
		return "", fmt.Errorf("hash a feed: %w", err)
	}
	return shortHash(content), nil
}

// etag identifies a feed in a format and at a public address.
func (k *keptFeed) etag(format feedFormat, base string) string {
	return `W/"` + shortHash([]byte(k.version+" "+format.path+" "+base+" "+textFile)) + `"`
}

func shortHash(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}
