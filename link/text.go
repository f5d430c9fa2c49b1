package link

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mayHoldLink is the quick answer for most posts.
func mayHoldLink(text string) bool {
	return strings.IndexByte(text, '.') >= 0
}

// bareLinks are the links of a text for which its client made no facet: URLs
// with a scheme, "www.host" and "host.tld/path". Those that touch a taken range
// are left out.
func bareLinks(text string, taken []span) []shared {
	if !mayHoldLink(text) {
		return nil
	}
	if len(text) > maxText { // at the end of a word: half a link leads elsewhere
		text = text[:strings.LastIndexAny(text[:maxText], " \n")+1]
	}
	var links []shared
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
		if url := trim(text[i:end]); url != "" && !touches(taken, span{i, i + len(url)}) {
			links = append(links, shared{i, prefix + url})
		}
		i = end
	}
	return links
}

// startsWord says whether a link may begin at a byte: not inside a word, an
// e-mail address, a handle, a path or another URI. Letters of scripts that are
// written without spaces may stand before a link.
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

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// hostEnd is where the host that begins at a byte would end.
func hostEnd(text string, i int) int {
	for i < len(text) && (letterOrDigit(text[i]) || text[i] == '.' || text[i] == '-') {
		i++
	}
	return i
}

// isBareHost says whether text[i:end] is a host that is meant as a link.
func isBareHost(text string, i, end int) bool {
	host := strings.ToLower(text[i:end])
	rest := text[end:]
	www := strings.HasPrefix(host, "www.")
	if www && !strings.HasPrefix(rest, "@") {
		host = strings.TrimRight(host, ".") // the sentence's
		if strings.Count(host, ".") < 2 {
			return false
		}
	} else if !beginsPath(rest) {
		return false
	}
	_, err := normalHost(host)
	return err == nil
}

// beginsPath says whether what follows a host is a path, perhaps after a port.
func beginsPath(rest string) bool {
	if port, ok := strings.CutPrefix(rest, ":"); ok {
		rest = strings.TrimLeft(port, "0123456789")
		if len(rest) == len(port) {
			return false
		}
	}
	return strings.HasPrefix(rest, "/")
}

// wordEnd is where the link that begins at a byte ends at the latest. Beyond
// ASCII only what words and titles are written with belongs to it: no brackets,
// quotes and full stops of other scripts, no emoji. An ellipsis does, so that
// trim sees it.
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

// trim takes the sentence's own punctuation off a link. It gives "" for one that
// a client has shortened for display: where it leads is not known.
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

func touches(taken []span, s span) bool {
	return slices.ContainsFunc(taken, func(t span) bool { return t.start < s.end && s.start < t.end })
}
