package link

import (
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mayContainLink rules out most posts quickly: a link has a host with a full stop, and
// a scheme, "www." or a path. The text may contain JSON escapes.
func mayContainLink(text string) bool {
	dot := strings.IndexByte(text, '.')
	if dot < 0 {
		return false
	}
	if strings.IndexByte(text, '/') >= 0 {
		return true
	}
	for at := dot; ; {
		if hasSuffixFold(text[:at], "www") {
			return true
		}
		next := strings.IndexByte(text[at+1:], '.')
		if next < 0 {
			return false
		}
		at += 1 + next
	}
}

// cut returns the beginning of a text, limited to most bytes. It cuts after a word,
// because half a link leads elsewhere.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return text[:strings.LastIndexAny(text[:most], " \n")+1]
}

// bareLinks returns the links of a text that have no facet: URLs with a scheme,
// "www.host" and "host.tld/path". It skips those that overlap a covered range.
func bareLinks(text string, covered []span) []rawLink {
	if !mayContainLink(text) {
		return nil
	}
	var links []rawLink
	for i := 0; i < len(text); {
		if !startsWord(text, i) {
			i++
			continue
		}
		prefix, host := "", hostEnd(text, i)
		switch {
		case hasScheme(text[i:]):
		case isBareHost(text, i, host):
			prefix = "https://"
		default:
			i = max(host, i+1)
			continue
		}
		end := wordEnd(text, i)
		if url := trim(text[i:end]); url != "" && !overlaps(covered, span{i, i + len(url)}) {
			links = append(links, rawLink{i, prefix + url})
		}
		i = end
	}
	return links
}

// startsWord reports whether a link may begin at a byte: not inside a word, an
// e-mail address, a handle, a path or another URI. A URL with a scheme may follow
// a letter beyond ASCII, because some scripts are written without spaces.
func startsWord(text string, i int) bool {
	if !letterOrDigit(text[i]) {
		return false
	}
	if i == 0 {
		return true
	}
	switch c := text[i-1]; {
	case letterOrDigit(c):
		return false
	case c == ':':
		return hasScheme(text[i:])
	case c < 0x80:
		return strings.IndexByte("@/._-+=&?#%~$\\", c) < 0
	}
	before, _ := utf8.DecodeLastRuneInString(text[:i])
	return hasScheme(text[i:]) || !unicode.In(before, unicode.L, unicode.M, unicode.N)
}

func letterOrDigit(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func hasScheme(s string) bool { return hasPrefixFold(s, "https://") || hasPrefixFold(s, "http://") }

func hasSuffixFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// hostEnd returns the end of a possible host that begins at a byte.
func hostEnd(text string, i int) int {
	for i < len(text) && (letterOrDigit(text[i]) || text[i] == '.' || text[i] == '-') {
		i++
	}
	return i
}

// isBareHost reports whether text[i:end] is a host that is meant as a link.
func isBareHost(text string, i, end int) bool {
	host := strings.ToLower(text[i:end])
	rest := text[end:]
	www := strings.HasPrefix(host, "www.")
	if www && !strings.HasPrefix(rest, "@") {
		host = strings.TrimRight(host, ".") // full stops of the sentence
		if strings.Count(host, ".") < 2 {
			return false
		}
	} else if !beginsPath(rest) {
		return false
	}
	_, _, err := normalHost(host)
	return err == nil
}

// beginsPath reports whether the text after a host is a path, perhaps after a port.
func beginsPath(rest string) bool {
	if port, ok := strings.CutPrefix(rest, ":"); ok {
		rest = strings.TrimLeft(port, "0123456789")
		if len(rest) == len(port) {
			return false
		}
	}
	return strings.HasPrefix(rest, "/")
}

// wordEnd returns the latest end of a link that begins at a byte. Beyond ASCII, a
// link contains letters, marks and numbers, but no brackets, quotes or full stops
// of other scripts and no emoji. It may contain an ellipsis, which trim checks.
func wordEnd(text string, i int) int {
	for j, r := range text[i:] {
		if r < 0x80 {
			if r <= ' ' || r == 0x7F || strings.IndexByte("<>\"`{}|^", byte(r)) >= 0 {
				return i + j
			}
			continue
		}
		switch r {
		case '…', '–', '·', '・':
			continue
		}
		if !unicode.In(r, unicode.L, unicode.M, unicode.N) {
			return i + j
		}
	}
	return len(text)
}

// trim removes the punctuation of the sentence from the end of a link. It returns ""
// for a link that a client has shortened for display: its target is unknown.
func trim(url string) string {
	if strings.Contains(url, "…") {
		return ""
	}
	for url != "" {
		r, size := utf8.DecodeLastRuneInString(url)
		switch r {
		case '.':
			if strings.HasSuffix(url, "..") {
				return ""
			}
		case ',', ';', ':', '!', '?', '\'', '*', '–', '·', '・':
		case ')':
			if strings.Count(url, "(") >= strings.Count(url, ")") {
				return url
			}
		case ']':
			if strings.Count(url, "[") >= strings.Count(url, "]") {
				return url
			}
		default:
			return url
		}
		url = url[:len(url)-size]
	}
	return url
}

// closing are quotes and brackets that close, and those that open before them.
var closing = map[rune]string{
	')': "(", ']': "[", '}': "{", '>': "<", '"': `"`, '\'': "'", '”': "“„”", '“': "„", '’': "‘‚’", '»': "«", '«': "»",
	'」': "「", '』': "『", '）': "（(", '】': "【", '》': "《",
}

// maxClosing is how many quotes and brackets are removed: each is looked for in the whole URL.
const maxClosing = 8

// withoutClosing removes the quotes and brackets from the end of a URL that the text before it has
// opened.
func withoutClosing(url, before string) string {
	for range maxClosing {
		last, size := utf8.DecodeLastRuneInString(url)
		opened, width := utf8.DecodeLastRuneInString(before)
		if width == 0 || !strings.ContainsRune(closing[last], opened) || strings.ContainsRune(url, opened) && opened != last {
			return url
		}
		url, before = url[:len(url)-size], before[:len(before)-width]
	}
	return url
}

// withoutStray removes quotes and brackets that have nothing to close from the end of a normalised path, and
// invisible characters. A sign stays if it is all that a segment has, after a number (inches), and beside other signs (`=>`).
func withoutStray(path string) string {
	path = withoutInvisible(path)
	if len(path) <= 3 || len(path) > MaxBytes || path[len(path)-3] != '%' {
		return path
	}
	text, err := url.PathUnescape(path)
	if err != nil {
		return path
	}
	unopened := "" // signs that are known to close nothing, so that the work is linear
	for {
		last, size := utf8.DecodeLastRuneInString(text)
		before := text[:len(text)-size]
		beside, _ := utf8.DecodeLastRuneInString(before)
		cut, escaped := strings.CutSuffix(path, escape(string(last)))
		switch last {
		case '"', '”':
			escaped = escaped && !unicode.IsNumber(beside)
		case '>', ']', '}':
			escaped = escaped && (unicode.IsLetter(beside) || unicode.IsNumber(beside))
		case '»', '」', '』', '）', '】', '》':
		default:
			return path
		}
		if !escaped || beside == '/' {
			return path
		}
		if !strings.ContainsRune(unopened, last) {
			if strings.ContainsAny(before, closing[last]) {
				return path
			}
			unopened += string(last)
		}
		path = withoutInvisible(cut)
		text = before[:len(before)-(len(cut)-len(path))/len("%20")]
	}
}

// invisible are the characters that a URL has at its end because it was copied with them: those
// without a width, white space, the choice of a picture before them, one that was lost (NUL is stored so), and an
// ellipsis.
const invisible = "\u200b\u200c\u200d\u200e\u200f\u2060\u00ad\ufeff\ufe0e\ufe0f\ufffc\ufffd\u2026" +
	"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c\u034f\u180e\u2028\u2029 \u00a0\u3000\t\r\n"

// escapedInvisible are the same in a normalised URL.
var escapedInvisible = func() (all []string) {
	for _, r := range invisible {
		all = append(all, escape(string(r)))
	}
	return all
}()

// withoutInvisible removes them from the end of a part of a normalised URL.
func withoutInvisible(part string) string {
	for len(part) > 3 && part[len(part)-3] == '%' {
		at := slices.IndexFunc(escapedInvisible, func(e string) bool { return strings.HasSuffix(part, e) })
		if at < 0 || strings.HasSuffix(part, "="+escapedInvisible[at]) { // the whole value: a page about the character
			break
		}
		part = strings.TrimSuffix(part, escapedInvisible[at])
	}
	return part
}

func overlaps(covered []span, s span) bool {
	return slices.ContainsFunc(covered, func(t span) bool { return t.start < s.end && s.start < t.end })
}
