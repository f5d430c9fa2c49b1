package link

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A pattern matches the host, the path and the parameters of an address:
//
//	[//HOST][/PATH][?NAME=VALUE&…]
//
// Without a host, it is that of the rule's site. In a host, {x} is one or more labels, and in a
// path:
//
//   - any characters of a segment, perhaps none
//     {x}      one or more characters of a segment
//     {x:c}    as many as possible of a class: n digits, d digits and full stops, x hexadecimal digits,
//     w letters and digits, v letters, digits, "-" and "_"
//     {x:c9}   exactly nine of a class
//     {x/}     one or more characters of several segments
//     /**      at the end: any further segments, perhaps none
//
// The value of a parameter is as written, {x}, or both; ?{x} is the whole query. Other parameters do not
// matter.
type pattern struct {
	names []string // of the site
	host  []token  // nil: the host is one of the names
	path  []token
	query []wanted
	alone bool // there are no other parameters

	begin, end string // of the path, to rule out most addresses
}

// wanted is a parameter that an address must have.
type wanted struct {
	name    string
	value   string // as written; with a capture, its beginning
	capture int
}

// token is a part of a pattern.
type token struct {
	kind    tokenKind
	text    string // of a literal
	class   func(byte) bool
	length  int // of a class; 0: as long as possible
	capture int // index of the captured text; negative: none
}

type tokenKind int

const (
	literal tokenKind = iota
	within            // of a segment
	classed
	across // segments
	rest
)

// captures are the captured texts of a pattern, by index.
type captures [4]string

// named are the names of captures, by index.
type named []string

func (n *named) index(name string) (int, error) {
	if at := slices.Index(*n, name); at >= 0 {
		return at, nil
	}
	if len(*n) == len(captures{}) {
		return 0, fmt.Errorf("more than %d captures", len(captures{}))
	}
	*n = append(*n, name)
	return len(*n) - 1, nil
}

// parsePattern reads a pattern.
func parsePattern(text string, captured *named) (p pattern, err error) {
	text, query, asks := strings.Cut(text, "?")
	if after, ok := strings.CutPrefix(text, "//"); ok {
		host, path, _ := strings.Cut(after, "/")
		if p.host, err = parseTokens(host, captured); err != nil {
			return p, err
		}
		text = "/" + path
	}
	if p.path, err = parseTokens(strings.TrimSuffix(text, "/"), captured); err != nil {
		return p, err
	}
	if last := len(p.path) - 1; last >= 0 {
		p.begin, p.end = p.path[0].text, p.path[last].text
	}
	if asks {
		for part := range strings.SplitSeq(query, "&") {
			name, value, named := strings.Cut(part, "=")
			if !named { // the whole query
				name, value = "", part
			}
			w := wanted{name: name, value: value, capture: -1}
			if before, bare, ok := strings.Cut(value, "{"); ok {
				w.value = before
				if w.capture, err = captured.index(strings.TrimSuffix(bare, "}")); err != nil {
					return p, err
				}
			}
			p.query = append(p.query, w)
		}
	}
	return p, nil
}

func parseTokens(text string, captured *named) (tokens []token, err error) {
	if before, ok := strings.CutSuffix(text, "/**"); ok {
		tokens, err = parseTokens(before, captured)
		return append(tokens, token{kind: rest}), err
	}
	for text != "" {
		end := strings.IndexAny(text, "*{")
		switch {
		case end < 0:
			end = len(text)
			fallthrough
		case end > 0:
			tokens, text = append(tokens, token{kind: literal, text: text[:end]}), text[end:]
		case text[0] == '*':
			tokens, text = append(tokens, token{kind: within, capture: -1}), text[1:]
		default:
			inner, after, ok := strings.Cut(text[1:], "}")
			if !ok {
				return nil, fmt.Errorf("%q has no }", text)
			}
			t, err := parseCapture(inner, captured)
			if err != nil {
				return nil, err
			}
			tokens, text = append(tokens, t), after
		}
	}
	return tokens, nil
}

func parseCapture(text string, captured *named) (t token, err error) {
	name, class, classy := strings.Cut(text, ":")
	t.kind = within
	if bare, ok := strings.CutSuffix(name, "/"); ok {
		t.kind, name = across, bare
	}
	if t.capture, err = captured.index(name); err != nil || !classy {
		return t, err
	}
	t.kind = classed
	if t.class = classes(class[:1]); t.class == nil {
		return t, fmt.Errorf("unknown class %q", class)
	}
	if len(class) > 1 {
		if t.length, err = strconv.Atoi(class[1:]); err != nil {
			return t, fmt.Errorf("length of the class %q: %w", class, err)
		}
	}
	return t, nil
}

func classes(name string) func(byte) bool {
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	switch name {
	case "n":
		return digit
	case "d":
		return func(c byte) bool { return digit(c) || c == '.' }
	case "x":
		return isHex
	case "w":
		return letterOrDigit
	case "v":
		return func(c byte) bool { return letterOrDigit(c) || c == '-' || c == '_' }
	}
	return nil
}

// match reports whether tokens match all of a text, and sets what they capture. Wildcards take as
// much as they can. A wildcard other than {x/} ends at the next slash, so the work is limited.
func match(tokens []token, text string, found *captures) bool {
	if len(tokens) == 0 {
		return text == ""
	}
	t := &tokens[0]
	switch t.kind {
	case literal:
		after, ok := strings.CutPrefix(text, t.text)
		return ok && match(tokens[1:], after, found)
	case rest:
		return text == "" || text[0] == '/'
	case classed:
		end := 0
		for end < len(text) && t.class(text[end]) && (t.length == 0 || end < t.length) {
			end++
		}
		return end > 0 && end >= t.length && t.take(tokens, text, end, found)
	}
	end := len(text)
	if t.kind == within {
		if slash := strings.IndexByte(text, '/'); slash >= 0 {
			end = slash
		}
	}
	least := 1
	if t.capture < 0 {
		least = 0
	}
	for ; end >= least; end-- {
		if t.take(tokens, text, end, found) {
			return true
		}
	}
	return false
}

// take matches the first token with the beginning of a text.
func (t *token) take(tokens []token, text string, end int, found *captures) bool {
	if !match(tokens[1:], text[end:], found) {
		return false
	}
	if t.capture >= 0 {
		found[t.capture] = text[:end]
	}
	return true
}

// mayMatch rules out most paths.
func (p *pattern) mayMatch(path string) bool {
	return len(path) >= len(p.begin) && path[:len(p.begin)] == p.begin && len(path) >= len(p.end) && path[len(path)-len(p.end):] == p.end
}

// matches reports whether a pattern matches an address whose host and path are given: the host
// without "www.", the path without a slash at its end.
func (p *pattern) matches(host, path string, query []parameter, found *captures) bool {
	if p.host == nil {
		if !slices.ContainsFunc(p.names, func(name string) bool { return isNamed(host, name) }) {
			return false
		}
	} else if !match(p.host, host, found) {
		return false
	}
	if !match(p.path, path, found) {
		return false
	}
	for i := range p.query {
		w := &p.query[i]
		if w.name == "" && len(query) > 0 {
			continue
		}
		at := slices.IndexFunc(query, func(q parameter) bool { return q.name == w.name })
		if at < 0 {
			return false
		}
		value := query[at].value()
		switch after, ok := strings.CutPrefix(value, w.value); {
		case w.capture < 0 && value != w.value, w.capture >= 0 && (!ok || after == ""):
			return false
		case w.capture >= 0:
			found[w.capture] = after
		}
	}
	return !p.alone || len(query) == len(p.query)
}

// isNamed reports whether a host is the one with a name, or the domain of a brand ("amazon.*") in
// some country.
func isNamed(host, name string) bool {
	brand, ok := strings.CutSuffix(name, "*")
	return host == name || brand == "" && ok || ok && strings.HasPrefix(host, brand) && domainOf(host) == host
}

// A form is an address with the names of captures in it.
type form struct {
	host, path []piece
	query      []piece // "" : none
}

// piece is a text or a capture.
type piece struct {
	text    string
	capture int // negative: text
}

// parseForm reads [//HOST]/PATH[?QUERY].
func parseForm(text string, captured named) (f form, err error) {
	text, query, asks := strings.Cut(text, "?")
	if after, ok := strings.CutPrefix(text, "//"); ok {
		host, path, _ := strings.Cut(after, "/")
		if f.host, err = parsePieces(host, captured); err != nil {
			return f, err
		}
		text = "/" + path
	}
	if f.path, err = parsePieces(text, captured); err != nil || !asks {
		return f, err
	}
	f.query, err = parsePieces(query, captured)
	return f, err
}

func parsePieces(text string, captured named) (pieces []piece, err error) {
	for text != "" {
		before, after, found := strings.Cut(text, "{")
		if before != "" {
			pieces = append(pieces, piece{before, -1})
		}
		if text = ""; !found {
			break
		}
		name, more, _ := strings.Cut(after, "}")
		at := slices.Index(captured, name)
		if at < 0 {
			return nil, fmt.Errorf("{%s} is captured nowhere", name)
		}
		pieces, text = append(pieces, piece{capture: at}), more
	}
	return pieces, nil
}

func fill(pieces []piece, found *captures) string {
	if len(pieces) == 1 && pieces[0].capture < 0 {
		return pieces[0].text
	}
	var b strings.Builder
	for _, p := range pieces {
		if p.capture >= 0 {
			b.WriteString(found[p.capture])
		} else {
			b.WriteString(p.text)
		}
	}
	return b.String()
}
