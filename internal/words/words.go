// Package words finds the words of texts, for an index of Postgres and for the search in it. Both must find the
// same words: docs/decisions/ranking.md explains them.
package words

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Weir splits titles, descriptions, addresses and posts into words itself. Postgres'
// parser depends on the locale of the database, keeps accents, and takes a sentence
// without spaces for one word. The searched texts and the text of a search go through
// the same functions.

const (
	maxWord    = 64   // bytes of a word; the rest of it is ignored
	maxIndexed = 4096 // bytes of a text in which words can be found
)

// split returns the words of a text: lower case, without accents. In scripts without
// spaces each character is a word.
func split(text string) (all []string) {
	if isASCII(text) {
		return plainWords(text)
	}
	var word strings.Builder
	spaceless := false // the current word is a character of such a script
	end := func() {
		if word.Len() > 0 {
			all = append(all, word.String())
			word.Reset()
		}
	}
	for _, r := range norm.NFKC.String(strings.ToValidUTF8(text, " ")) {
		switch {
		case r >= 0x300 && r <= 0x36F, r == 0xAD, r >= 0x200B && r <= 0x200D:
			continue // a separate accent or an invisible character: neither ends a word
		case unicode.IsMark(r):
			if word.Len() == 0 {
				continue
			}
		case !unicode.IsLetter(r) && !unicode.IsNumber(r):
			end()
			continue
		case isSpaceless(r):
			end()
			spaceless = true
		case spaceless:
			end()
			spaceless = false
		}
		if r = plain(r); word.Len()+utf8.RuneLen(r) <= maxWord {
			word.WriteRune(r)
		}
	}
	end()
	return all
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// plainWords is words for an ASCII text, which most texts are. Its words share the
// memory of one string.
func plainWords(text string) []string {
	all := strings.FieldsFunc(strings.ToLower(text), separates)
	for i, word := range all {
		all[i] = word[:min(len(word), maxWord)]
	}
	return all
}

// separates reports whether a character is neither a lower-case letter of ASCII nor a
// digit.
func separates(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }

func isSpaceless(r rune) bool {
	return r >= 0xE00 && (r == 'ー' || unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer,
		unicode.Myanmar))
}

// plain makes a letter lower case and removes its accent.
func plain(r rune) rune {
	if r >= 0xC0 && unicode.In(r, unicode.Latin, unicode.Greek, unicode.Cyrillic) {
		if parts := norm.NFD.PropertiesString(string(r)).Decomposition(); parts != nil {
			r, _ = utf8.DecodeRune(parts)
		}
	}
	return unicode.ToLower(r)
}

// Vector returns the words of texts as a tsvector, or nil if they have none. A phrase
// never spans two texts.
func Vector(texts ...string) *string {
	var b strings.Builder
	position := 0
	for _, text := range texts {
		for _, word := range split(bounded(text)) {
			position++
			b.WriteByte('\'')
			b.WriteString(word)
			b.WriteString("':")
			b.WriteString(strconv.Itoa(position))
			b.WriteByte(' ')
		}
		position++
	}
	if b.Len() == 0 {
		return nil
	}
	s := b.String()
	return &s
}

// bounded returns the beginning of a text, up to the limit.
func bounded(text string) string {
	if len(text) <= maxIndexed {
		return text
	}
	end := maxIndexed
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// Of returns the words in the first most bytes of a text as a tsvector, or nil if
// there are none.
func Of(text string, most int) *string {
	var parts []string
	for text != "" && most > 0 {
		part := bounded(text[:min(len(text), most)])
		if len(part) < len(text) {
			if end := strings.LastIndexFunc(part, unicode.IsSpace); end > 0 {
				part = part[:end]
			}
		}
		if part == "" {
			break
		}
		parts = append(parts, part)
		text, most = text[len(part):], most-len(part)
	}
	return Vector(parts...)
}

// Search is the parsed text of a search. A link matches if its address contains the
// text, or if one text of a sharer contains all words.
type Search struct {
	Words   string  // a tsquery; empty matches nothing
	Address *string // a pattern for LIKE; nil: the text cannot be part of an address
	Part    *string // a pattern of the text's rarest part: many addresses have the trigrams of the other parts
}

// MaxText is the maximum length of the text of a search, in characters.
const MaxText = 200

const minPrefix = 3 // characters from which the last word also matches longer words that begin with it

// Parse never fails. Words in quotes, or written without spaces, are a phrase. The last
// word also matches longer words that begin with it, unless it is short or in a phrase.
func Parse(text string) Search {
	var phrases []string
	parts := strings.Split(strings.NewReplacer("“", `"`, "”", `"`, "„", `"`).Replace(text), `"`)
	for i, part := range parts {
		if i%2 == 1 {
			phrases = appendPhrase(phrases, part, false)
			continue
		}
		fields := strings.Fields(part)
		for n, field := range fields {
			phrases = appendPhrase(phrases, field, i == len(parts)-1 && n == len(fields)-1)
		}
	}
	s := Search{Words: strings.Join(phrases, " & ")}
	s.Address, s.Part = addressPatterns(text)
	return s
}

// Query returns the words of a search text as a tsquery. An empty tsquery matches
// nothing.
func Query(text string) string { return Parse(text).Words }

func appendPhrase(phrases []string, text string, begins bool) []string {
	all := split(text)
	if len(all) == 0 {
		return phrases
	}
	phrase := "'" + strings.Join(all, "' <-> '") + "'"
	// "news.example" matches as a whole: half of all addresses end like it
	if begins && len(all) == 1 && utf8.RuneCountInString(all[0]) >= minPrefix {
		phrase += ":*"
	}
	return append(phrases, phrase)
}

// addressPatterns returns LIKE patterns for a text that may be part of an address, and
// for its longest word. The identity of a link has no scheme and no www. A text without
// three letters or digits in a row has no trigram to look up.
func addressPatterns(text string) (whole, part *string) {
	text = strings.ToLower(strings.TrimSpace(text))
	if strings.ContainsFunc(text, unicode.IsSpace) || !strings.ContainsAny(text, "./") {
		return nil, nil
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "http://"), "https://")
	text = strings.TrimSuffix(strings.TrimPrefix(text, "www."), "/")
	longest := ""
	for _, word := range strings.FieldsFunc(text, separates) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	if len(longest) < minPrefix || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return nil, nil
	}
	longest = "%" + longest + "%"
	pattern := "%" + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + "%"
	return &pattern, &longest
}
