package links

import (
	"cmp"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

// maxTitle limits a title, in characters. The style sheet also limits the lines.
const maxTitle = 240

// displayURL formats a URL for readers: without the scheme and with percent-encoding
// decoded.
func displayURL(u *url.URL) string {
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	if decoded, err := url.PathUnescape(path); err == nil && utf8.ValidString(decoded) {
		path = decoded
	}
	return web.PlainLine(u.Host+path, web.MaxURL)
}

// personOf describes an account by its handle or, on Nostr, by the name that it gives
// itself. Such a name proves nothing, so the page marks the network, and an @ stands only
// before handles. So does a handle that is not verified: it leads to the DID.
func (s *Server) personOf(did, handle string, unverified bool, name string, v View) web.Person {
	if p := in(v, s.NewPerson(did), did); p.Network != "" {
		if name = strings.TrimLeft(web.PlainLine(name, web.MaxName), "@ "); name != "" {
			p.Name = name
		}
		return p
	}
	if unverified {
		p := in(v, s.NewPerson(did), did)
		p.Name, p.Unverified = web.Shorten(handle, web.MaxName), say("unverified")
		return p
	}
	name = cmp.Or(handle, did)
	return in(v, s.NewPerson(name), name)
}

// in returns a person with the address of the links that the account shared, in the window of a view. name
// is the account's name in that address.
func in(v View, p web.Person, name string) web.Person {
	if id, err := syntax.ParseAtIdentifier(name); err == nil && p.Identified {
		p.Href = RankingHref(v.of(ranking.Query{By: id.Normalize().String()}))
	}
	return p
}

// postURL returns the web address of a post or of a record of another network, or "" if uri is neither.
func (s *Server) postURL(uri string) string {
	if address := s.RecordURL(uri); address != "" {
		return address
	}
	at, err := syntax.ParseATURI(uri)
	if err != nil || at.Collection() != "app.bsky.feed.post" || at.RecordKey() == "" {
		return ""
	}
	return web.AppBase + url.PathEscape(at.Authority().String()) + "/post/" + url.PathEscape(at.RecordKey().String())
}

// maxAddress is the longest address of a page that is shown, in bytes.
const maxAddress = 4096

// pageURL returns the address of the page that a title is from, or "" if it is from a post.
func pageURL(from string) string {
	if u, ok := parseLink(from); ok && len(from) <= maxAddress {
		return u.String()
	}
	return ""
}
