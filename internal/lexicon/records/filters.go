package records

import (
	"regexp"
	"strings"

	"github.com/weir-social/weir/internal/lexicon"
)

// A filter is a lexeme beside the words of a record. It begins with a character that no word
// contains.
const (
	filterLanguage = "=language="
	filterMedia    = "=media="
)

const maxFilters = 128 // of a record: a schema allows as many languages

var (
	language  = regexp.MustCompile(`^[a-z]{2,8}(-[a-z0-9]{1,8}){0,4}$`)
	mediaType = regexp.MustCompile(`^[a-z]{1,32}(/[a-z0-9][a-z0-9.+-]{0,95})?$`)
)

// Filters returns what Search can filter a record by, as a tsvector: the languages that the record
// declares, and the media types of what it contains or describes. It is nil if there are none.
func Filters(record lexicon.Value) *string {
	var b strings.Builder
	left := maxFilters
	add := func(pattern *regexp.Regexp, prefix, value, separator string) {
		value = strings.ToLower(value)
		if left--; left < 0 || !pattern.MatchString(value) {
			return
		}
		whole, _, _ := strings.Cut(value, separator)
		b.WriteString("'" + prefix + value + "' '" + prefix + whole + "' ")
	}
	for _, name := range []string{"languages", "langs"} {
		for _, v := range record.Field(name).Items() {
			add(language, filterLanguage, v.Text(), "-")
		}
	}
	add(mediaType, filterMedia, record.Field("mimeType").Text(), "/")
	for _, name := range []string{"blob", "mediaBlob"} {
		add(mediaType, filterMedia, record.Field(name).Field("mimeType").Text(), "/")
	}
	if b.Len() == 0 {
		return nil
	}
	s := b.String()
	return &s
}

// ValidLanguage reports whether a search can name a language: a tag such as de, or de-CH.
func ValidLanguage(text string) bool { return language.MatchString(strings.ToLower(text)) }

// ValidMediaType reports whether a search can name a media type: one such as audio/mpeg, or its
// first part.
func ValidMediaType(text string) bool { return mediaType.MatchString(strings.ToLower(text)) }

// filtered adds filters to a tsquery; an empty one is left out.
func filtered(words, language, mediaType string) string {
	if words == "" {
		return ""
	}
	if language != "" {
		words += " & '" + filterLanguage + strings.ToLower(language) + "'"
	}
	if mediaType != "" {
		words += " & '" + filterMedia + strings.ToLower(mediaType) + "'"
	}
	return words
}
