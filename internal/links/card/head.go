package card

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"

	"github.com/weir-social/weir/internal/links/link/title"
)

const (
	maxTitle       = 300 // characters, as for the cards of posts
	maxDescription = 1000
	maxSiteName    = 100
)

// head is the content of a page's head.
type head struct {
	title, description, site said
	canonical, base          string
}

// said is a text that the head may contain several times. The one from the best source is
// kept.
type said struct {
	text string
	rank int // of its source; 0: none
	most int // characters
}

// say offers a text. A smaller rank is better; for equal ranks the first text is kept.
func (s *said) say(rank int, text string) {
	if s.rank != 0 && s.rank <= rank {
		return
	}
	if text = title.Clean(title.Decode(text), s.most); text != "" {
		s.text, s.rank = text, rank
	}
}

// readHead reads the head of the page in a response.
func readHead(resp *http.Response) (head, error) {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || kind != "text/html" && kind != "application/xhtml+xml" {
		return head{}, &Dead{"it is no HTML"}
	}
	body, err := bounded(resp, maxBytes)
	if err != nil {
		return head{}, err
	}
	text, err := decoded(body, resp.Header.Get("Content-Type"))
	if errors.Is(err, io.EOF) {
		return head{}, nil // empty
	}
	if err != nil {
		return head{}, broken(err)
	}
	return parseHead(text)
}

// How many bytes of a page are read for its charset: as browsers do, and if they do not tell it.
const (
	declaredWithin = 1 << 10
	undeclared     = 64 << 10
)

// decoded returns a page as UTF-8. A page that does not say in time what it is, is UTF-8 if its beginning is, and
// windows-1252 otherwise.
func decoded(body io.Reader, kind string) (io.Reader, error) {
	start := make([]byte, undeclared)
	n, err := io.ReadFull(body, start[:declaredWithin])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	encoding, name, certain := charset.DetermineEncoding(start[:n], kind)
	if err == nil && !certain && name == "windows-1252" {
		more, _ := io.ReadFull(body, start[n:]) // the next read has the error
		if n += more; utf8.Valid(withoutPart(start[:n])) {
			encoding, _ = charset.Lookup("utf-8")
		}
	}
	return encoding.NewDecoder().Reader(io.MultiReader(bytes.NewReader(start[:n]), body)), nil
}

// withoutPart returns a text without a character of which only a part is there.
func withoutPart(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if utf8.FullRune(text[i:]) {
				return text
			}
			return text[:i]
		}
	}
	return text
}

// bounded returns a reader of the body that ends after most bytes, compressed or not.
func bounded(resp *http.Response, most int64) (io.Reader, error) {
	body := io.LimitReader(resp.Body, most)
	switch encoding := strings.ToLower(resp.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return body, nil
	case "gzip", "x-gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, broken(err)
		}
		return io.LimitReader(unzipped, most), nil
	}
	return nil, &Dead{"it is compressed in another way than gzip"}
}

// broken returns the error of a body that could not be read: a *Dead if a retry would not
// help.
func broken(err error) error {
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return &Dead{"its compression is broken"}
	}
	return err
}

// parseHead parses HTML up to the end of the head. If the page is longer than the limit, or
// breaks off, the part that was read counts.
func parseHead(text io.Reader) (head, error) {
	h := head{title: said{most: maxTitle}, description: said{most: maxDescription}, site: said{most: maxSiteName}}
	z := html.NewTokenizer(text)
	z.SetMaxBuf(maxBytes)
	within := atom.Atom(0) // the current element, if its content does not belong to the head
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) &&
				!errors.Is(err, html.ErrBufferExceeded) {
				return head{}, fmt.Errorf("parse: %w", broken(err))
			}
			return h, nil
		case html.StartTagToken, html.SelfClosingTagToken:
			name, more := z.TagName()
			of := atom.Lookup(name)
			switch {
			case within != 0:
			case of == atom.Title:
				if z.Next() == html.TextToken {
					h.title.say(3, string(z.Text()))
				}
			case of == atom.Template:
				within = of
			case of == atom.Meta && more:
				h.meta(attributes(z, "property", "name", "content"))
			case of == atom.Link && more:
				h.link(attributes(z, "rel", "href"))
			case of == atom.Base && more && h.base == "":
				h.base = attributes(z, "href")["href"]
			case !inHead(of):
				return h, nil
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			switch of := atom.Lookup(name); {
			case of == within:
				within = 0
			case of == atom.Head && within == 0:
				return h, nil
			}
		}
	}
}

// inHead reports whether an element may be in the head. Any other element begins the body.
func inHead(of atom.Atom) bool {
	switch of {
	case atom.Html, atom.Head, atom.Title, atom.Meta, atom.Link, atom.Base, atom.Style, atom.Script, atom.Noscript, atom.Template:
		return true
	}
	return false
}

// attributes returns the first value of each named attribute of a tag.
func attributes(z *html.Tokenizer, names ...string) map[string]string {
	found := make(map[string]string, len(names))
	for more := true; more; {
		var name, value []byte
		name, value, more = z.TagAttr()
		for _, n := range names {
			if _, again := found[n]; string(name) == n && !again {
				found[n] = string(bytes.TrimSpace(value))
			}
		}
	}
	return found
}

// meta reads a meta element. Some pages write name instead of property, and the reverse.
func (h *head) meta(of map[string]string) {
	content := of["content"]
	for _, name := range []string{of["property"], of["name"]} {
		switch strings.ToLower(name) {
		case "og:title":
			h.title.say(1, content)
		case "twitter:title":
			h.title.say(2, content)
		case "og:description":
			h.description.say(1, content)
		case "twitter:description":
			h.description.say(2, content)
		case "description":
			h.description.say(3, content)
		case "og:site_name":
			h.site.say(1, content)
		case "application-name":
			h.site.say(2, content)
		}
	}
}

// link reads a link element.
func (h *head) link(of map[string]string) {
	for rel := range strings.FieldsSeq(of["rel"]) {
		if strings.EqualFold(rel, "canonical") && h.canonical == "" && len(of["href"]) <= maxAddress {
			h.canonical = of["href"]
		}
	}
}

// baseOf returns the address that the page's relative addresses belong to.
func (h *head) baseOf(at *url.URL) *url.URL {
	if base, err := at.Parse(h.base); err == nil && len(h.base) <= maxAddress && (base.Scheme == "https" || base.Scheme == "http") {
		return base
	}
	return at
}
