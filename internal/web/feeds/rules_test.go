package feeds

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const atomNamespace = "http://www.w3.org/2005/Atom"

// node is an element of an XML document.
type node struct {
	name     xml.Name
	attrs    map[string]string
	children []*node
	text     string
}

// parseXML reads a document strictly.
func parseXML(document string) (*node, error) {
	d := xml.NewDecoder(strings.NewReader(document))
	top := &node{}
	open := []*node{top}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			if len(top.children) != 1 {
				return nil, fmt.Errorf("the document has %d elements", len(top.children))
			}
			return top.children[0], nil
		}
		if err != nil {
			return nil, err
		}
		in := open[len(open)-1]
		switch token := token.(type) {
		case xml.StartElement:
			n := &node{name: token.Name, attrs: map[string]string{}}
			for _, a := range token.Attr {
				n.attrs[a.Name.Local] = a.Value
			}
			in.children = append(in.children, n)
			open = append(open, n)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			in.text += string(token)
		case xml.Directive:
			return nil, errors.New("the document has a DTD")
		}
	}
}

func (n *node) all(name string) (found []*node) {
	for _, c := range n.children {
		if c.name.Local == name {
			found = append(found, c)
		}
	}
	return found
}

// checkAtom applies the rules of RFC 4287 to a document.
func checkAtom(document string) error {
	feed, err := parseXML(document)
	if err != nil {
		return err
	}
	if feed.name != (xml.Name{Space: atomNamespace, Local: "feed"}) {
		return fmt.Errorf("the document element is %v", feed.name)
	}
	entries := feed.all("entry")
	authors := len(feed.all("author")) > 0
	names := "author category contributor generator icon id link logo rights subtitle title updated entry"
	if err := errors.Join(feed.only(names), feed.counts("id title updated", "generator icon logo rights subtitle"),
		feed.constructs()); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, e := range entries {
		err := errors.Join(e.only("author category content contributor id link published rights source summary title updated"),
			e.counts("id title updated", "content published rights source summary"), e.constructs())
		if err != nil {
			return err
		}
		if !authors && len(e.all("author")) == 0 {
			return errors.New("an entry has no author, nor has the feed")
		}
		if len(e.all("content")) == 0 && !slices.ContainsFunc(e.all("link"), func(l *node) bool { return l.rel() == "alternate" }) {
			return errors.New("an entry has neither content nor an alternate link")
		}
		id := e.all("id")[0].text
		if seen[id] {
			return fmt.Errorf("two entries have the id %s", id)
		}
		seen[id] = true
	}
	if seen[feed.all("id")[0].text] {
		return errors.New("an entry has the id of the feed")
	}
	return nil
}

// only requires that an element has no children with other names, and no text
// between them.
func (n *node) only(names string) error {
	for _, c := range n.children {
		if c.name.Space != atomNamespace || !slices.Contains(strings.Fields(names), c.name.Local) {
			return fmt.Errorf("%s contains %v", n.name.Local, c.name)
		}
	}
	if strings.TrimSpace(n.text) != "" {
		return fmt.Errorf("%s contains text", n.name.Local)
	}
	return nil
}

// counts requires exactly one child with each of some names, and at most one
// with each of others.
func (n *node) counts(one, most string) error {
	for _, name := range strings.Fields(one) {
		if found := len(n.all(name)); found != 1 {
			return fmt.Errorf("%s has %d elements %s", n.name.Local, found, name)
		}
	}
	for _, name := range strings.Fields(most) {
		if found := len(n.all(name)); found > 1 {
			return fmt.Errorf("%s has %d elements %s", n.name.Local, found, name)
		}
	}
	return nil
}

func (n *node) rel() string {
	if rel, ok := n.attrs["rel"]; ok {
		return rel
	}
	return "alternate"
}

var (
	atomDate = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
	urnUUID  = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
)

func absolute(address string) error {
	u, err := url.Parse(address)
	if err != nil || !u.IsAbs() || u.Scheme != strings.ToLower(u.Scheme) || strings.ContainsAny(address, " <>\"{}|\\^`") {
		return fmt.Errorf("%q is not an absolute IRI", address)
	}
	return nil
}

func date(text string) error {
	if _, err := time.Parse(time.RFC3339, text); err != nil || !atomDate.MatchString(text) {
		return fmt.Errorf("%q is not a date of RFC 3339", text)
	}
	return nil
}

// constructs checks the children of a feed or an entry by their kinds.
func (n *node) constructs() (err error) {
	alternates := map[string]bool{}
	for _, c := range n.children {
		switch c.name.Local {
		case "id":
			err = errors.Join(err, c.leaf(), absolute(c.text))
		case "updated", "published":
			err = errors.Join(err, c.leaf(), date(c.text))
		case "author", "contributor":
			err = errors.Join(err, c.only("name uri email"), c.counts("name", "uri email"))
		case "title", "subtitle", "summary", "rights", "content":
			err = errors.Join(err, c.leaf())
			if kind, ok := c.attrs["type"]; ok && !slices.Contains([]string{"text", "html"}, kind) {
				err = errors.Join(err, fmt.Errorf("%s is of type %q", c.name.Local, kind))
			}
		case "link":
			href, has := c.attrs["href"]
			if !has {
				err = errors.Join(err, errors.New("a link has no href"))
			}
			err = errors.Join(err, absolute(href))
			if kind, ok := c.attrs["type"]; ok {
				if _, _, wrong := mime.ParseMediaType(kind); wrong != nil || !strings.Contains(kind, "/") {
					err = errors.Join(err, fmt.Errorf("a link is of type %q", kind))
				}
			}
			if !slices.Contains([]string{"alternate", "self", "related", "via", "enclosure"}, c.rel()) {
				err = errors.Join(err, fmt.Errorf("a link is a %q", c.rel()))
			}
			key := c.attrs["type"] + " " + c.attrs["hreflang"]
			if c.rel() == "alternate" && alternates[key] {
				err = errors.Join(err, errors.New("two alternate links are of one type and language"))
			}
			alternates[key] = alternates[key] || c.rel() == "alternate"
		}
	}
	return err
}

// leaf requires that an element has no children.
func (n *node) leaf() error {
	if len(n.children) > 0 {
		return fmt.Errorf("%s contains an element", n.name.Local)
	}
	return nil
}

// checkJSONFeed applies the rules of JSON Feed 1.1 to a document.
func checkJSONFeed(document string) (err error) {
	var feed map[string]any
	if err := json.Unmarshal([]byte(document), &feed); err != nil {
		return err
	}
	fail := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	text := func(of map[string]any, name string, required bool) string {
		value, has := of[name]
		s, ok := value.(string)
		if has && !ok || required && s == "" {
			fail("%s is %v", name, value)
		}
		return s
	}
	address := func(of map[string]any, name string) {
		if s := text(of, name, false); s != "" {
			err = errors.Join(err, absolute(s))
		}
	}
	for name := range feed {
		if !slices.Contains(strings.Fields("version title home_page_url feed_url description user_comment next_url icon favicon authors "+
			"language expired hubs items"), name) && !strings.HasPrefix(name, "_") {
			fail("the feed has %s", name)
		}
	}
	if text(feed, "version", true) != "https://jsonfeed.org/version/1.1" {
		fail("version is %v", feed["version"])
	}
	text(feed, "title", true)
	for _, name := range []string{"home_page_url", "feed_url", "next_url", "icon", "favicon"} {
		address(feed, name)
	}
	items, ok := feed["items"].([]any)
	if !ok {
		fail("items is %v", feed["items"])
	}
	seen := map[string]bool{}
	for _, each := range items {
		item, ok := each.(map[string]any)
		if !ok {
			fail("an item is %v", each)
			continue
		}
		for name := range item {
			names := "id url external_url title content_html content_text summary image banner_image date_published date_modified authors tags " +
				"language attachments"
			if !slices.Contains(strings.Fields(names), name) && !strings.HasPrefix(name, "_") {
				fail("an item has %s", name)
			}
		}
		id := text(item, "id", true)
		if seen[id] {
			fail("two items have the id %s", id)
		}
		seen[id] = true
		if text(item, "content_html", false) == "" && text(item, "content_text", false) == "" {
			fail("an item has no content")
		}
		for _, name := range []string{"url", "external_url", "image", "banner_image"} {
			address(item, name)
		}
		for _, name := range []string{"date_published", "date_modified"} {
			if s := text(item, name, false); s != "" {
				err = errors.Join(err, date(s))
			}
		}
	}
	authors, _ := feed["authors"].([]any)
	for _, each := range authors {
		if author, ok := each.(map[string]any); !ok || author["name"] == nil && author["url"] == nil && author["avatar"] == nil {
			fail("an author is %v", each)
		}
	}
	return err
}

// TestRulesOfFeedsRefuseWrongFeeds shows that the rules that the feed tests
// apply refuse documents that the two formats forbid.
func TestRulesOfFeedsRefuseWrongFeeds(t *testing.T) {
	t.Parallel()
	atom := `<feed xmlns="http://www.w3.org/2005/Atom"><id>urn:x:1</id><title>t</title><updated>2026-05-04T12:00:00Z</updated>` +
		`<author><name>n</name></author>` +
		`<entry><id>urn:x:2</id><title>t</title><updated>2026-05-04T12:00:00Z</updated><link href="https://a.example/"/><content ` +
		`type="html">c</content></entry></feed>`
	require.NoError(t, checkAtom(atom))
	for _, change := range [][2]string{
		{`http://www.w3.org/2005/Atom`, `http://purl.org/atom/ns#`}, {`<id>urn:x:1</id>`, ``}, {`<title>t</title>`, ``},
		{`<title>t</title>`, `<title>t</title><title>t</title>`}, {`12:00:00Z`, `12:00:00`},
		{`2026-05-04T`, `2026-05-04t`}, {`<author><name>n</name></author>`, ``}, {`<name>n</name>`, ``}, {`urn:x:2`, `urn:x:1`},
		{`<link href="https://a.example/"/><content type="html">c</content>`, ``},
		{`https://a.example/`, `/a`}, {`type="html"`, `type="div"`}, {`>c<`, `><b>c</b><`}, {`>c<`, ">\x01<"},
		{`<link href="https://a.example/"/>`, `<link href="https://a.example/"/><link href="https://b.example/"/>`},
		{`</author>`, `</author>text`}, {`<entry>`, `<item/><entry>`}, {`</entry>`, ``},
		{`<link href="https://a.example/"/>`, `<link/>`}, {`urn:x:2`, `2`}, {`>c<`, `>&nbsp;<`},
	} {
		require.Error(t, checkAtom(strings.Replace(atom, change[0], change[1], 1)), "%q", change)
	}
	feed := `{"version":"https://jsonfeed.org/version/1.1","title":"t","feed_url":"https://a.example/feed.json","authors":[{"name":"n"}],` +
		`"items":[{"id":"1","url":"https://a.example/","content_html":"c","date_published":"2026-05-04T12:00:00Z"},{"id":"2",` +
		`"content_text":"c"}]}`
	require.NoError(t, checkJSONFeed(feed))
	for _, change := range [][2]string{
		{`1.1`, `1`}, {`"title":"t",`, ``}, {`"title":"t"`, `"title":1`}, {`"items"`, `"entries"`}, {`"id":"1"`, `"id":1`},
		{`"id":"2"`, `"id":"1"`}, {`"content_html":"c",`, ``}, {`12:00:00Z`, `noon`},
		{`https://a.example/"`, `a"`}, {`"name":"n"`, ``}, {`"id":"2"`, `"id":"2","count":3`}, {`]}`, `]`},
	} {
		require.Error(t, checkJSONFeed(strings.Replace(feed, change[0], change[1], 1)), "%q", change)
	}
}
