package link

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/internal/links/link/title"
)

const (
	maxLinks       = 25        // links per post; further ones do not count
	maxList        = 1000      // facets of a post, and features of a facet, that are read
	maxText        = 16 * 1024 // bytes of text in which links are searched; the network allows 3,000
	maxTitle       = 300       // runes
	maxDescription = 1000      // runes
)

// Card is the preview of a link that its sharer attached to the post.
type Card struct {
	Title       string // plain text, at most 300 runes
	Description string // plain text, at most 1000 runes
	Image       string // "" or "blob:<did>/<cid>"
}

// Link is a link that a post shares.
type Link struct {
	URL      string // the spelling: a normalised URL that a person can open
	Identity string // the same for all spellings of one article; valid UTF-8 of at most MaxBytes
	Card     Card   // zero without a card
	Site     string // registrable domain of URL, in ASCII
	Short    bool   // the link is a short name of another link; only the shortener knows which
	Gift     string // the URL that opens the article for readers who have not paid; empty: none
	MayShort bool   // it looks like a short link, on an unknown host
	Excluded bool   // it leads to a host whose links do not count as shares, such as the network itself
}

// Post holds what a post shares.
type Post struct {
	Links  []Link  // at most 25, distinct by Identity, in order of appearance; the card's link is last
	Quoted Subject // the post that it quotes
	Text   string  // what the author wrote

	Original Subject // the record of another network from which a bridge made the post
}

// rawLink is a URL as it is written in a post.
type rawLink struct {
	at  int // byte position in the text
	uri string
}

// span is a half-open range of bytes of the text.
type span struct{ start, end int }

// InPost reads the links of one app.bsky.feed.post record. It returns an error for a
// record that is not a JSON object; it ignores a field of a wrong type.
func InPost(did string, post []byte) (Post, error) {
	if jsontext.Value(post).Kind() != '{' {
		return Post{}, errors.New("post is not a JSON object")
	}
	// Posts with duplicate names and halves of surrogate pairs exist. Other programs
	// show them, so their links count.
	var r record
	if err := json.Unmarshal(post, &r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)); err != nil {
		return Post{}, fmt.Errorf("read post: %w", err)
	}
	text := string(r.Text)
	links, covered := facetLinks(r.Facets, text)
	links = append(links, bareLinks(cut(text, maxText), covered)...)
	slices.SortStableFunc(links, func(a, b rawLink) int { return a.at - b.at })

	p := reading{Post: Post{Text: text, Original: originalEvent(string(r.BridgedFrom))}, at: -1}
	for _, l := range links {
		if len(p.Links) == maxLinks {
			break
		}
		p.add(l.uri)
	}
	p.readEmbed(did, &r.Embed.fields)
	return p.Post, nil
}

// reading is a post that is being read.
type reading struct {
	Post
	uri string // the latest, because a card has that of a facet
	at  int    // its index in Links, or -1
}

// add is that of Post, but does not parse the latest URI again.
func (p *reading) add(uri string) int {
	if uri != p.uri {
		p.uri, p.at = uri, p.Post.add(uri)
	}
	return p.at
}

// add adds a link and returns its index, or -1 if the URI is not a link. If a link
// has several spellings or gifts, the first one stays.
func (p *Post) add(uri string) int {
	l, err := Parse(uri)
	if err != nil || l.Excluded {
		return -1
	}
	if i := slices.IndexFunc(p.Links, func(other Link) bool { return other.Identity == l.Identity }); i >= 0 {
		if p.Links[i].Gift == "" {
			p.Links[i].Gift = l.Gift
		}
		return i
	}
	if len(p.Links) == maxLinks { // the card's link replaces the last one, because it matters more
		p.Links = p.Links[:maxLinks-1]
	}
	p.Links = append(p.Links, l)
	return len(p.Links) - 1
}

// facetLinks returns the links of the facets of a text, and the ranges of the text that facets
// cover. If a link's range is not inside the text, the link still counts, at the end of the text,
// and covers no bare link.
func facetLinks(facets []facet, text string) (links []rawLink, covered []span) {
	for _, f := range facets {
		at := f.Index.fields.span(len(text))
		covers := false
		for _, feature := range f.Features {
			switch feature.Type {
			case "app.bsky.richtext.facet#link":
				if len(links) < maxList {
					links = append(links, rawLink{at.start, withoutClosing(string(feature.URI), text[:at.start])})
				}
				covers = true
			case "app.bsky.richtext.facet#mention":
				covers = true
			}
		}
		if covers { // a tag covers nothing, because it may be inside a link that has no facet
			covered = append(covered, at)
		}
	}
	return links, covered
}

// span returns the range of an index, or an empty range at the end of the text.
func (i index) span(length int) span {
	s := span{i.Start.value, i.End.value}
	if !i.Start.ok || !i.End.ok || s.start < 0 || s.end <= s.start || s.end > length {
		return span{length, length}
	}
	return s
}

// readEmbed adds the link of a card and the subject of a quote.
func (p *reading) readEmbed(did string, e *embedding) {
	switch e.Type {
	case "app.bsky.embed.record":
		p.Quoted = parseSubject(string(e.Record.fields.URI))
	case "app.bsky.embed.recordWithMedia":
		p.Quoted = parseSubject(string(e.Record.fields.Record.fields.URI))
		if m := &e.Media.fields; m.Type == "app.bsky.embed.external" {
			p.readExternal(did, &m.External.fields)
		}
	case "app.bsky.embed.external":
		p.readExternal(did, &e.External.fields)
	}
}

func (p *reading) readExternal(did string, e *external) {
	i := p.add(string(e.URI))
	if i < 0 {
		return
	}
	line := func(s string, most int) string { return title.Clean(title.Decode(title.Decode(s)), most) }
	c := Card{
		Title:       line(string(e.Title), maxTitle),
		Description: line(string(e.Description), maxDescription),
		Image:       image(did, string(e.Thumb.fields.Ref.fields.Link)),
	}
	if c.Title != "" && title.Why(c.Title, p.Links[i].URL) != "" {
		return // the card is not that of the article
	}
	p.Links[i].Card = c
}

// image returns the name of a thumbnail's blob, or "".
func image(did, cid string) string {
	if did == "" || cid == "" || len(cid) > 128 {
		return ""
	}
	for i := range len(cid) {
		if c := cid[i]; !hostCharacter(c) && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return "blob:" + did + "/" + cid
}
