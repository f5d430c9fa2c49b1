package link

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxLinks       = 25        // that a post shares: more is no sharing
	maxList        = 1000      // facets of a post, and features of a facet, that are looked at
	maxText        = 16 * 1024 // bytes that are searched; the network allows 3,000
	maxTitle       = 300       // runes
	maxDescription = 1000      // runes
)

// Card is what the person who shared a link shows of it.
type Card struct {
	Title       string // plain text, at most 300 runes
	Description string // plain text, at most 1000 runes
	Image       string // "" or "blob:<did>/<cid>"
}

// Found is a link that a post shares.
type Found struct {
	URL  string // normalised
	Card Card   // zero without one
	Site string // registrable domain, in ASCII
}

// Post is what a post shares.
type Post struct {
	Links []Found // at most 25, distinct by URL, in order of appearance, a card's own link last
	Quote bool    // the post also quotes a record
}

// shared is an address somewhere in a post, as it is written there.
type shared struct {
	at  int // byte of the text
	uri string
}

// span is a range of bytes of the text, its end excluded.
type span struct{ start, end int }

// InPost reads the links of one app.bsky.feed.post record. The error is for a
// record that is no JSON object; a field of a wrong type is read as absent.
func InPost(did string, post []byte) (Post, error) {
	if jsontext.Value(post).Kind() != '{' {
		return Post{}, errors.New("post is no JSON object")
	}
	// Duplicate names and halves of surrogate pairs are on the network: others
	// read such posts, so they share what they share.
	var r record
	if err := json.Unmarshal(post, &r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)); err != nil {
		return Post{}, fmt.Errorf("read post: %w", err)
	}
	text := string(r.Text)
	links, taken := facetLinks(r.Facets, len(text))
	links = append(links, bareLinks(text, taken)...)
	slices.SortStableFunc(links, func(a, b shared) int { return a.at - b.at })

	var p Post
	for _, l := range links {
		if len(p.Links) == maxLinks {
			break
		}
		p.add(l.uri)
	}
	p.readEmbed(did, &r.Embed.fields)
	return p, nil
}

// add adds a link and returns its place, or -1 if it is none.
func (p *Post) add(uri string) int {
	a, err := take(uri)
	if err != nil || sharesNothing(a.host) {
		return -1
	}
	url, err := a.spell()
	if err != nil {
		return -1
	}
	if i := slices.IndexFunc(p.Links, func(f Found) bool { return f.URL == url }); i >= 0 {
		return i
	}
	if len(p.Links) == maxLinks { // the card is what the post is about
		p.Links = p.Links[:maxLinks-1]
	}
	p.Links = append(p.Links, Found{URL: url, Site: site(a.host)})
	return len(p.Links) - 1
}

// facetLinks are the links that the facets of a text of length bytes make, and
// the ranges of the text that show them. A range that does not lie inside the
// text shows nothing: its link counts, at the text's end, but it hides no bare
// link.
func facetLinks(facets []facet, length int) (links []shared, taken []span) {
	for _, f := range facets {
		at := f.Index.fields.span(length)
		shows := false
		for _, feature := range f.Features {
			switch feature.Type {
			case "app.bsky.richtext.facet#link":
				if len(links) < maxList {
					links = append(links, shared{at.start, string(feature.URI)})
				}
				shows = true
			case "app.bsky.richtext.facet#mention":
				shows = true
			}
		}
		if shows { // a tag may stand inside a link that has no facet
			taken = append(taken, at)
		}
	}
	return links, taken
}

// span is the range of an index, or the empty one at the text's end.
func (i index) span(length int) span {
	s := span{i.Start.value, i.End.value}
	if !i.Start.is || !i.End.is || s.start < 0 || s.end <= s.start || s.end > length {
		return span{length, length}
	}
	return s
}

// readEmbed adds the link of a card, and notices a quote.
func (p *Post) readEmbed(did string, e *embedding) {
	switch e.Type {
	case "app.bsky.embed.record":
		p.Quote = true
	case "app.bsky.embed.recordWithMedia":
		p.Quote = true
		if m := &e.Media.fields; m.Type == "app.bsky.embed.external" {
			p.readExternal(did, &m.External.fields)
		}
	case "app.bsky.embed.external":
		p.readExternal(did, &e.External.fields)
	}
}

func (p *Post) readExternal(did string, e *external) {
	i := p.add(string(e.URI))
	if i < 0 {
		return
	}
	p.Links[i].Card = Card{
		Title:       clean(string(e.Title), maxTitle),
		Description: clean(string(e.Description), maxDescription),
		Image:       image(did, string(e.Thumb.fields.Ref.fields.Link)),
	}
}

// image names the blob of a thumbnail.
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

// clean makes one line of a stranger's text: white space becomes single spaces,
// control characters go, and so do those that turn the direction of what
// follows, which would reach beyond the text on a page.
func clean(s string, runes int) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			space = n > 0
			continue
		case unicode.IsControl(r), r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069:
			continue
		}
		if space {
			if n+1 >= runes {
				break
			}
			b.WriteByte(' ')
			n++
			space = false
		}
		if n == runes {
			break
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}
