package lexicon

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/ipfs/go-cid"
)

// special checks an object with a special meaning in the data model: bytes, a link, a
// blob, or one with a type.
func (s *scanner) special(at uint32) {
	if s.fatal {
		return
	}
	var typ, data, ref uint32
	for child := at + 1; child < s.nodes[at].next; child = s.nodes[child].next {
		n := &s.nodes[child]
		if s.source[n.key] != '$' && !n.escapedKey { // the key ends with a quote at least
			continue
		}
		switch s.keyOf(child) {
		case "$type":
			typ = child
		case "$bytes":
			data = child
		case "$link":
			ref = child
		}
	}
	switch {
	case ref != 0:
		s.link(at, ref)
	case data != 0:
		s.bytes(at, data)
	case typ == 0:
	case s.nodes[typ].kind != str || s.nodes[typ].size == 0:
		if s.nodes[typ].kind != broken {
			s.problem("data_model", typ, "a name as $type")
		}
	case s.text(typ) == "blob":
		s.blob(at)
	}
}

func (s *scanner) link(at, ref uint32) {
	if s.nodes[at].size != 1 || s.nodes[ref].kind != str {
		s.problem("data_model", at, "a link with one string, $link")
		return
	}
	if !isCIDOfBlock(s.text(ref)) {
		s.problem("data_model", ref, "a CID of version 1 in base32")
		s.nodes[at].kind = broken
		return
	}
	s.nodes[at].kind = link
}

// isCIDOfBlock reports whether s is a CID that can be in a record.
func isCIDOfBlock(s string) bool {
	if len(s) > 256 || !strings.HasPrefix(s, "b") {
		return false
	}
	_, err := cid.Decode(s)
	return err == nil
}

func (s *scanner) bytes(at, data uint32) {
	if s.nodes[at].size != 1 || s.nodes[data].kind != str {
		s.problem("data_model", at, "bytes with one string, $bytes")
		return
	}
	text := s.text(data)
	if cutText := strings.TrimRight(text, "="); len(text)-len(cutText) <= 2 && (len(text)%4 == 0 || cutText == text) {
		text = cutText // the padding is optional
	}
	size, ok := decodedSize(text)
	if !ok {
		s.problem("data_model", data, "base64")
		s.nodes[at].kind = broken
		return
	}
	s.nodes[at].kind, s.nodes[at].size = bytesKind, size
}

// decodedSize returns the number of bytes in base64 without padding.
func decodedSize(text string) (uint32, bool) {
	if strings.ContainsAny(text, "\r\n") { // the decoder skips these
		return 0, false
	}
	plain, err := base64.RawStdEncoding.DecodeString(text)
	return uint32(len(plain)), err == nil
}

// blob checks a reference to a file: its CID, its type and its size.
func (s *scanner) blob(at uint32) {
	ref, size, media := s.member(at, "ref"), s.member(at, "size"), s.member(at, "mimeType")
	switch {
	case s.nodes[at].size != 4 || ref == 0 || size == 0 || media == 0:
		s.problem("data_model", at, "a blob with ref, mimeType and size")
	case s.nodes[ref].kind != link:
		s.blobPart(at, ref, "a link to the blob")
	case s.nodes[media].kind != str || s.nodes[media].size == 0:
		s.blobPart(at, media, "the media type of the blob")
	case s.nodes[size].kind != integer || s.integerOf(size) < 1:
		s.blobPart(at, size, "the size of the blob in bytes, 1 or more")
	default:
		s.nodes[at].kind = blob
	}
}

func (s *scanner) blobPart(at, part uint32, expected string) {
	if s.nodes[part].kind != broken {
		s.problem("data_model", part, expected)
	}
	s.nodes[at].kind = broken
}

// problems is a list of limited length.
type problems struct {
	list []Problem
	more int
}

func (p *problems) room() bool { return len(p.list) < maxProblems }

func (p *problems) add(problem Problem) {
	if p.room() {
		p.list = append(p.list, problem)
	} else {
		p.more++
	}
}

func (p *problems) any() bool { return len(p.list)+p.more > 0 }

// unsafe reports whether JavaScript rounds an integer.
func unsafe(v int64) bool { return v > maxSafe || v < -maxSafe }

func number(v int64) string { return strconv.FormatInt(v, 10) }
