package lexicon

import (
	"strconv"
	"unicode/utf8"
)

// scanner reads the JSON of a record into nodes, each byte once. It checks the rules
// for every record: JSON without duplicate names and with valid UTF-8, and the
// network's data model.
type scanner struct {
	document
	at       int
	problems problems
	fatal    bool // the record is not JSON, and its rest was not read
}

// scan returns the nodes of a record. It is fatal if they are not the whole record.
func scan(source string) *scanner {
	s := &scanner{document: document{source: source}}
	if len(source) > maxRecord {
		s.refuse("record_size", strconv.Itoa(maxRecord)+" bytes of JSON at most", strconv.Itoa(len(source))+" bytes")
		return s
	}
	s.nodes = make([]node, 0, len(source)/24+8)
	s.value(node{}, 0)
	s.space()
	switch {
	case s.fatal:
	case s.at < len(source):
		s.syntax("the end of the record")
	case s.nodes[0].kind != object && s.nodes[0].kind != broken:
		s.problem("data_model", 0, "an object as the record")
	}
	return s
}

// refuse ends the scan.
func (s *scanner) refuse(rule, expected, received string) {
	if !s.fatal {
		s.fatal = true
		s.problems.add(Problem{rule, "", expected, received})
	}
}

// syntax ends the scan: the record is not JSON here.
func (s *scanner) syntax(expected string) {
	received := "the end"
	if s.at < len(s.source) {
		received = strconv.QuoteToASCII(s.source[s.at:min(s.at+12, len(s.source))])
	}
	s.refuse("json", expected, received+" at byte "+strconv.Itoa(s.at))
}

// problem records that the data model refuses a node. Schemas then ignore the node.
func (s *scanner) problem(rule string, at uint32, expected string) {
	if s.problems.room() {
		s.problems.add(Problem{rule, s.pointer(at), expected, s.received(at)})
	} else {
		s.problems.more++
	}
	s.nodes[at].kind = broken
}

func (s *scanner) space() {
	for s.at < len(s.source) {
		switch s.source[s.at] {
		case ' ', '\n', '\t', '\r':
			s.at++
		default:
			return
		}
	}
}

// peek returns the next byte after blanks, or 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.at == len(s.source) {
		return 0
	}
	return s.source[s.at]
}

// value reads a value at a nesting depth, and returns its node. n holds the node's
// position.
func (s *scanner) value(n node, depth int) uint32 {
	c := s.peek()
	at := uint32(len(s.nodes))
	n.start = uint32(s.at)
	s.nodes = append(s.nodes, n)
	switch {
	case c == '{' || c == '[':
		if depth == maxDepth {
			s.refuse("depth", strconv.Itoa(maxDepth)+" levels at most", "more")
		} else if c == '{' {
			s.object(at, depth)
		} else {
			s.array(at, depth)
		}
	case c == '"':
		start, end, size, escaped := s.str()
		n := &s.nodes[at]
		n.kind, n.start, n.end, n.size, n.escaped = str, start, end, size, escaped
		if size > maxString && !s.fatal {
			s.problem("data_model", at, strconv.Itoa(maxString)+" bytes at most")
		}
	case c == '-' || c >= '0' && c <= '9':
		s.number(at)
	case c == 't':
		s.literal(at, "true", boolean)
	case c == 'f':
		s.literal(at, "false", boolean)
	case c == 'n':
		s.literal(at, "null", null)
	default:
		s.syntax("a value")
	}
	s.nodes[at].next = uint32(len(s.nodes))
	if s.nodes[at].end == 0 {
		s.nodes[at].end = uint32(s.at)
	}
	return at
}

func (s *scanner) literal(at uint32, word string, k kind) {
	if s.at+len(word) > len(s.source) || s.source[s.at:s.at+len(word)] != word {
		s.syntax("a value")
		return
	}
	s.at += len(word)
	s.nodes[at].kind = k
}

func (s *scanner) digits() {
	if s.at == len(s.source) || s.source[s.at] < '0' || s.source[s.at] > '9' {
		s.syntax("a digit")
		return
	}
	for s.at < len(s.source) && s.source[s.at] >= '0' && s.source[s.at] <= '9' {
		s.at++
	}
}

// number reads a number. The data model allows only 64-bit integers.
func (s *scanner) number(at uint32) {
	start := s.at
	if s.source[s.at] == '-' {
		s.at++
	}
	if s.at < len(s.source) && s.source[s.at] == '0' {
		s.at++
	} else {
		s.digits()
	}
	whole := s.at
	if s.at < len(s.source) && s.source[s.at] == '.' {
		s.at++
		s.digits()
	}
	if s.at < len(s.source) && s.source[s.at]|0x20 == 'e' {
		s.at++
		if s.at < len(s.source) && (s.source[s.at] == '+' || s.source[s.at] == '-') {
			s.at++
		}
		s.digits()
	}
	if s.fatal {
		return
	}
	n := &s.nodes[at]
	n.kind, n.end = integer, uint32(s.at)
	if whole != s.at {
		s.problem("data_model", at, "an integer without fraction and exponent")
	} else if s.at-start > 18 { // may be too large
		if _, err := strconv.ParseInt(s.source[start:s.at], 10, 64); err != nil {
			s.problem("data_model", at, "an integer of 64 bits")
		}
	}
}

// str reads a string and returns its position, without its quotes.
func (s *scanner) str() (start, end, size uint32, escaped bool) {
	s.at++
	begin := s.at
	saved := 0 // bytes by which escapes are longer than the characters that they stand for
	for s.at < len(s.source) {
		switch c := s.source[s.at]; {
		case c == '"':
			s.at++
			return uint32(begin), uint32(s.at - 1), uint32(s.at - 1 - begin - saved), escaped
		case c == '\\':
			escaped = true
			saved += s.escape()
			if s.fatal {
				return 0, 0, 0, false
			}
		case c < ' ':
			s.syntax("a string without control characters")
			return 0, 0, 0, false
		case c < utf8.RuneSelf:
			s.at++
		default:
			r, size := utf8.DecodeRuneInString(s.source[s.at:])
			if r == utf8.RuneError && size == 1 {
				s.syntax("valid UTF-8")
				return 0, 0, 0, false
			}
			s.at += size
		}
	}
	s.syntax("the end of a string")
	return 0, 0, 0, false
}

// escape reads an escape, and returns how many bytes longer than its character it is.
func (s *scanner) escape() (saved int) {
	if s.at+1 == len(s.source) {
		s.at++
		s.syntax("an escaped character")
		return 0
	}
	switch s.source[s.at+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.at += 2
		return 1
	case 'u':
	default:
		s.syntax("an escaped character")
		return 0
	}
	r, ok := s.hex(s.at)
	switch {
	case !ok:
		s.syntax("four hexadecimal digits")
	case r >= 0xdc00 && r < 0xe000:
		s.syntax("a surrogate with its pair")
	case r >= 0xd800 && r < 0xdc00:
		if low, ok := s.hex(s.at + 6); !ok || low < 0xdc00 || low >= 0xe000 {
			s.syntax("a surrogate with its pair")
			return 0
		}
		s.at += 12
		return 12 - 4
	default:
		s.at += 6
		return 6 - utf8.RuneLen(r)
	}
	return 0
}

// hex returns the number in the escape \uXXXX at a position.
func (s *scanner) hex(at int) (rune, bool) {
	if at+6 > len(s.source) || s.source[at] != '\\' || s.source[at+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s.source[at+2 : at+6]) {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

func (s *scanner) array(at uint32, depth int) {
	s.at++
	s.nodes[at].kind = array
	count := uint32(0)
	if s.peek() == ']' {
		s.at++
		return
	}
	for !s.fatal {
		s.value(node{parent: at, key: count}, depth+1)
		count++
		s.nodes[at].size = count
		switch s.peek() {
		case ',':
			s.at++
			continue
		case ']':
			s.at++
			if count > maxContainer && !s.fatal {
				s.problem("data_model", at, strconv.Itoa(maxContainer)+" elements at most")
			}
			return
		}
		s.syntax("a comma or the end of the array")
	}
}

func (s *scanner) object(at uint32, depth int) {
	s.at++
	s.nodes[at].kind = object
	if s.peek() == '}' {
		s.at++
		return
	}
	names := names{}
	for !s.fatal {
		if s.peek() != '"' {
			s.syntax("the name of a member")
			return
		}
		from := s.at
		key, keyEnd, size, escaped := s.str()
		if !s.fatal && s.peek() != ':' {
			s.syntax("a colon")
		}
		if s.fatal {
			return
		}
		s.at++
		member := s.value(node{parent: at, key: key, keyEnd: keyEnd, escapedKey: escaped, member: true}, depth+1)
		s.nodes[at].size++
		if !s.fatal && names.repeats(&s.document, at, member) {
			s.at = from
			s.syntax("no name twice in an object")
			return
		}
		if size > maxKey && !s.fatal {
			s.problem("data_model", member, "a name of "+strconv.Itoa(maxKey)+" bytes at most")
		}
		switch s.peek() {
		case ',':
			s.at++
			continue
		case '}':
			s.at++
			s.nodes[at].next, s.nodes[at].end = uint32(len(s.nodes)), uint32(s.at)
			s.special(at)
			return
		}
		s.syntax("a comma or the end of the object")
	}
}

// names finds duplicate names in an object. It compares the names of a small object,
// and uses a set for a large one.
type names struct{ set map[string]struct{} }

func (n *names) repeats(d *document, at, member uint32) bool {
	key := d.keyOf(member)
	if n.set == nil && d.nodes[at].size > 16 {
		n.set = make(map[string]struct{}, 64)
		for other := at + 1; other < member; other = d.nodes[other].next {
			n.set[d.keyOf(other)] = struct{}{}
		}
	}
	if n.set == nil {
		for other := at + 1; other < member; other = d.nodes[other].next {
			if d.keyOf(other) == key {
				return true
			}
		}
		return false
	}
	if _, ok := n.set[key]; ok {
		return true
	}
	n.set[key] = struct{}{}
	return false
}
