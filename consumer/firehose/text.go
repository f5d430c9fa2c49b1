package firehose

import "unicode/utf8"

// plain is the set of the ASCII characters below 64 that JSON writes unchanged.
const plain = ^uint64(0) &^ (1<<32 - 1) &^ (1<<'"' | 1<<'&' | 1<<'<' | 1<<'>')

// writeText writes a string.
func (t *transcoder) writeText(s []byte) {
	out, from := append(t.out, '"'), 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < 64 && plain>>c&1 == 1 || c >= 64 && c != '\\' {
				i++
				continue
			}
			out = t.escape(append(out, s[from:i]...), c)
			i++
			from = i
			continue
		}
		r, size := utf8.DecodeRune(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			out = append(append(out, s[from:i]...), `\ufffd`...)
			t.replaced++
			from = i + size
		case r == '\u2028', r == '\u2029':
			out = append(append(append(out, s[from:i]...), `\u202`...), byte('8'+r-'\u2028'))
			from = i + size
		}
		i += size
	}
	t.out = append(append(out, s[from:]...), '"')
}

// escape writes an ASCII character that JSON, or a page with JSON in it, would
// misread.
func (t *transcoder) escape(out []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\n':
		return append(out, `\n`...)
	case '\r':
		return append(out, `\r`...)
	case '\t':
		return append(out, `\t`...)
	case '\b':
		return append(out, `\b`...)
	case '\f':
		return append(out, `\f`...)
	case 0:
		t.replaced++
		return append(out, `\ufffd`...)
	}
	return append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}
