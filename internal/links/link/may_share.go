package link

import "bytes"

// MayShare reports whether InPost may find a link or a quote in a post, which must be
// valid JSON. It is much faster than InPost. If it returns false, InPost finds nothing
// and returns no error.
func MayShare(post []byte) bool {
	s := scanner(post)
	if s.next() != '{' {
		return true
	}
	if s = s[1:]; s.next() == '}' {
		return false
	}
	for {
		key := s.value()
		if s.next() != ':' || mayHideASCII(key) {
			return true
		}
		s = s[1:]
		if value := s.value(); value == nil || mayShare(string(key), value) {
			return true
		}
		switch s.next() {
		case ',':
			s = s[1:]
		case '}':
			return false
		default:
			return true
		}
	}
}

// mayShare reports the same for one field. A name may occur several times, and each
// occurrence counts.
func mayShare(key string, value []byte) bool {
	switch key {
	case `"text"`:
		return mayHideASCII(value) || mayContainLink(string(value))
	case `"facets"`:
		return mayHideASCII(value) || bytes.Contains(value, []byte("#link"))
	case `"embed"`:
		return mayHideASCII(value) || bytes.Contains(value, []byte("app.bsky.embed.external")) ||
			bytes.Contains(value, []byte("app.bsky.embed.record"))
	}
	return false
}

// mayHideASCII reports whether a JSON text may contain an escape for a character that
// occurs in names.
func mayHideASCII(text []byte) bool { return bytes.Contains(text, []byte(`\u00`)) }

// scanner is the rest of a JSON text.
type scanner []byte

// next skips white space and returns the byte after it; 0 at the end.
func (s *scanner) next() byte {
	for len(*s) > 0 {
		switch c := (*s)[0]; c {
		case ' ', '\t', '\r', '\n':
			*s = (*s)[1:]
		default:
			return c
		}
	}
	return 0
}

// value skips white space and one value, which it returns as written; nil if there is
// none.
func (s *scanner) value() []byte {
	s.next()
	text := *s
	end := valueEnd(text)
	if end <= 0 {
		return nil
	}
	*s = text[end:]
	return text[:end]
}

// valueEnd returns the length of the value at the beginning of a JSON text, or -1.
func valueEnd(text []byte) int {
	if len(text) == 0 {
		return -1
	}
	switch text[0] {
	case '"':
		return stringEnd(text)
	case '{', '[':
	default:
		return bytes.IndexAny(text, ",:]} \t\r\n")
	}
	for i, depth := 0, 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			n := stringEnd(text[i:])
			if n < 0 {
				return -1
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}

// stringEnd returns the length of the string at the beginning of a JSON text, or -1.
func stringEnd(text []byte) int {
	for end := 1; ; {
		n := bytes.IndexByte(text[end:], '"')
		if n < 0 {
			return -1
		}
		end += n + 1
		escapes := 0
		for i := end - 2; i > 0 && text[i] == '\\'; i-- {
			escapes++
		}
		if escapes%2 == 0 {
			return end
		}
	}
}
