package feeds

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"time"
)

// atomFeed is a feed of RFC 4287.
type atomFeed struct {
	XMLName xml.Name    `xml:"http://www.w3.org/2005/Atom feed"`
	ID      string      `xml:"id"`
	Title   string      `xml:"title"`
	Updated string      `xml:"updated"`
	Author  atomPerson  `xml:"author"`
	Links   []atomLink  `xml:"link"`
	Entries []atomEntry `xml:"entry"`
}

type atomPerson struct {
	Name string `xml:"name"`
}

type atomLink struct {
	Rel  string `xml:"rel,attr"`
	Type string `xml:"type,attr,omitempty"`
	Href string `xml:"href,attr"`
}

type atomEntry struct {
	ID        string      `xml:"id"`
	Title     string      `xml:"title"`
	Link      atomLink    `xml:"link"`
	Published string      `xml:"published"`
	Updated   string      `xml:"updated"`
	Content   atomContent `xml:"content"`
}

type atomContent struct {
	Type string `xml:"type,attr"`
	HTML string `xml:",chardata"`
}

// encodeAtom writes a feed as Atom. Characters that XML cannot contain are replaced.
func encodeAtom(f feedView) ([]byte, error) {
	feed := atomFeed{
		ID: f.ID, Title: f.Title, Updated: f.Updated.Format(time.RFC3339), Author: atomPerson{f.Author},
		Links: []atomLink{{"self", atomFormat().mediaType, f.Self}, {"alternate", "text/html", f.Home}},
	}
	for _, e := range f.Entries {
		at := e.At.Format(time.RFC3339)
		feed.Entries = append(feed.Entries, atomEntry{
			ID: e.ID, Title: e.Title, Link: atomLink{Rel: "alternate", Href: e.Href}, Published: at, Updated: at,
			Content: atomContent{"html", e.Content},
		})
	}
	var b bytes.Buffer
	b.WriteString(xml.Header)
	if err := xml.NewEncoder(&b).Encode(feed); err != nil {
		return nil, fmt.Errorf("write an Atom feed: %w", err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// jsonFeed is a feed of JSON Feed 1.1.
type jsonFeed struct {
	Version string         `json:"version"`
	Title   string         `json:"title"`
	Home    string         `json:"home_page_url"`
	Self    string         `json:"feed_url"`
	Authors []jsonAuthor   `json:"authors"`
	Items   []jsonFeedItem `json:"items"`
}

type jsonAuthor struct {
	Name string `json:"name"`
}

type jsonFeedItem struct {
	ID        string `json:"id"`
	URL       string `json:"url"`
	Title     string `json:"title"`
	Content   string `json:"content_html"`
	Image     string `json:"image,omitempty"`
	Published string `json:"date_published"`
}

// encodeJSONFeed writes a feed as JSON Feed.
func encodeJSONFeed(f feedView) ([]byte, error) {
	feed := jsonFeed{
		Version: "https://jsonfeed.org/version/1.1", Title: f.Title, Home: f.Home, Self: f.Self,
		Authors: []jsonAuthor{{f.Author}}, Items: []jsonFeedItem{},
	}
	for _, e := range f.Entries {
		feed.Items = append(feed.Items, jsonFeedItem{
			ID: e.ID, URL: e.Href, Title: e.Title, Content: e.Content, Image: e.Image, Published: e.At.Format(time.RFC3339),
		})
	}
	body, err := json.Marshal(feed)
	if err != nil {
		return nil, fmt.Errorf("write a JSON feed: %w", err)
	}
	return append(body, '\n'), nil
}
