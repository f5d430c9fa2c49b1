package link

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	CollectionPost    = "app.bsky.feed.post"
	CollectionNote    = "nostr.1"
	CollectionArticle = "nostr.30023"

	CollectionRepost = "app.bsky.feed.repost"

	CollectionNoteRepost  = "nostr.6"  // of a note
	CollectionEventRepost = "nostr.16" // of any other event
)

// Collections returns the collections of records that share links.
func Collections() []string {
	return []string{CollectionPost, CollectionRepost, CollectionNote, CollectionNoteRepost, CollectionEventRepost, CollectionArticle}
}

// InRecord reads the links that a record contains. Reposts contain none, nor do records of other collections.
func InRecord(collection, did string, record []byte) (Post, error) {
	switch collection {
	case CollectionPost:
		return InPost(did, record)
	case CollectionNote:
		return InNote(record)
	case CollectionArticle:
		return InArticle(record)
	}
	return Post{}, nil
}

const (
	maxArticle = 256 * 1024 // bytes of an article in which links are searched
	maxTags    = 2000       // tags of an event that are read; relays allow no more
	maxFields  = 100        // fields of a tag that are read
	maxTarget  = 2 * MaxBytes
)

// event holds the fields of a stored Nostr event that this package reads.
type event struct {
	Content str     `json:"content"`
	Tags    tagList `json:"tags"`
}

// InNote reads the links of a Nostr note (kind 1): the URLs in its text. Pictures, sounds
// and films do not count, because clients show them instead of their address. References
// such as nostr:npub1… do not count either. Tags are not read for links: an r tag repeats
// the text, or is a topic. InNote returns an error for a record that is not a JSON
// object; it ignores a field of a wrong type.
func InNote(note []byte) (Post, error) {
	e, err := readEvent(note)
	if err != nil {
		return Post{}, fmt.Errorf("read note: %w", err)
	}
	return e.post(cut(string(e.Content), maxText)), nil
}

// InArticle reads the links of a Nostr article (kind 30023), whose text is Markdown, like
// InNote. Its links have no cards, because the article's title and summary describe the
// article, not the pages that it links to.
func InArticle(article []byte) (Post, error) {
	e, err := readEvent(article)
	if err != nil {
		return Post{}, fmt.Errorf("read article: %w", err)
	}
	text := string(e.Content)
	p := e.post(withoutMarkup(cut(text, maxArticle)))
	p.Text = strings.TrimSpace(e.Tags.first("title") + "\n" + e.Tags.first("summary") + "\n" + text)
	return p, nil
}

func readEvent(record []byte) (e event, err error) {
	if jsontext.Value(record).Kind() != '{' {
		return e, errors.New("it is not a JSON object")
	}
	err = json.Unmarshal(record, &e, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	return e, err
}

// post returns the shares of an event whose links are in a text.
func (e *event) post(text string) Post {
	p := Post{Text: string(e.Content), Quoted: e.quoted(), Original: e.original()}
	media := e.media()
	for _, l := range bareLinks(text, nil) {
		if len(p.Links) == maxLinks {
			break
		}
		if !isMedia(l.uri) && !media[identityOf(l.uri)] {
			p.add(l.uri)
		}
	}
	return p
}

// media returns the identities of the URLs that imeta tags describe (NIP-92).
func (e *event) media() map[string]bool {
	var found map[string]bool
	for _, tag := range e.Tags {
		if tag[0] != "imeta" {
			continue
		}
		for _, field := range tag[1:] {
			url, ok := strings.CutPrefix(field, "url ")
			id := identityOf(strings.TrimSpace(url))
			if !ok || id == "" {
				continue
			}
			if found == nil {
				found = map[string]bool{}
			}
			found[id] = true
		}
	}
	return found
}

// identityOf returns the identity of a URL, or "" if it is not a link.
func identityOf(uri string) string {
	l, err := Parse(uri)
	if err != nil {
		return ""
	}
	return l.Identity
}

// isMedia reports whether the path of a URL ends like the file name of a picture, a sound
// or a film.
func isMedia(uri string) bool {
	if end := strings.IndexAny(uri, "?#"); end >= 0 {
		uri = uri[:end]
	}
	_, uri, _ = strings.Cut(uri, "://")
	_, name, ok := strings.Cut(uri, "/")
	if !ok {
		return false
	}
	switch strings.ToLower(path.Ext(name)) {
	case ".jpg", ".jpeg", ".png", ".gif", ".webp", ".avif", ".heic", ".bmp", ".svg", ".apng", ".jxl",
		".mp4", ".webm", ".mov", ".m4v", ".mkv", ".avi", ".m3u8",
		".mp3", ".ogg", ".oga", ".opus", ".wav", ".flac", ".m4a", ".aac":
		return true
	}
	return false
}

// withoutMarkup returns a Markdown text in which the targets of links are separate words
// and the targets of pictures are removed. Otherwise the text of a link may run into the
// next one.
func withoutMarkup(text string) string {
	if !strings.Contains(text, "](") {
		return text
	}
	var b strings.Builder
	var open []bool // the open brackets: whether each belongs to a picture
	written := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '[':
			open = append(open, i > 0 && text[i-1] == '!')
		case ']':
			if len(open) == 0 {
				continue
			}
			picture := open[len(open)-1]
			open = open[:len(open)-1]
			end := targetEnd(text, i+1)
			if end < 0 {
				continue
			}
			b.WriteString(text[written : i+1])
			if !picture {
				b.WriteString(" " + text[i+2:end])
			}
			b.WriteByte(' ')
			written, i = end+1, end
		}
	}
	b.WriteString(text[written:])
	return b.String()
}

// targetEnd returns the position of the parenthesis that closes the one at a position, on
// the same line and not too far away, or -1 if there is none.
func targetEnd(text string, at int) int {
	depth := 0
	for i := at; i < min(len(text), at+maxTarget) && text[i] != '\n'; i++ {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 {
			if i == at {
				return -1
			}
			return i
		}
	}
	return -1
}

// tagList holds the tags of an event, each with at least its name. A value that is not a
// string reads as "".
type tagList [][]string

// first returns the value of the first tag with a name, or "".
func (l tagList) first(name string) string {
	for _, tag := range l {
		if tag[0] == name && len(tag) > 1 {
			return tag[1]
		}
	}
	return ""
}

// UnmarshalJSONFrom reads a value of any type. It keeps the tags that are arrays of
// strings.
func (l *tagList) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	*l = nil
	return elements(d, func() error {
		var tag []string
		err := elements(d, func() error {
			var s str
			err := s.UnmarshalJSONFrom(d)
			if len(tag) < maxFields {
				tag = append(tag, string(s))
			}
			return err
		})
		if len(tag) > 0 && len(*l) < maxTags {
			*l = append(*l, tag)
		}
		return err
	})
}

// elements calls read for each element of an array. For a value of another type it calls
// read never.
func elements(d *jsontext.Decoder, read func() error) error {
	if d.PeekKind() != '[' {
		return d.SkipValue()
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	for d.PeekKind() != ']' {
		if err := read(); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}
