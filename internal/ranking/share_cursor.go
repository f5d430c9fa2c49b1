package ranking

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weir-social/weir/schema"
)

// sharePosition is a position among the shares of a link.
type sharePosition struct {
	Mark    uint32     // identifies the query
	Waiting bool       // among the waiting shares
	At      time.Time  // of the share
	Record  schema.Key // that shares the link
	Named   int64      // the link that the record names: it may name several merged links
	Subject schema.Key // the subject that it waits for
}

// maxShareCursor limits a cursor, in bytes: two keys with the longest names.
const maxShareCursor = 8 << 10

func (q LinkQuery) mark() uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %s %q %q", q.ID, q.Window, q.Watch, q.Degree)
	return h.Sum32()
}

func (s LinkShare) position() sharePosition {
	if s.waits {
		return sharePosition{Waiting: true, Record: s.record, Subject: s.subject}
	}
	return sharePosition{At: s.SharedAt, Record: s.record, Named: s.named}
}

func (p sharePosition) cursor(q LinkQuery) Cursor {
	p.Mark, p.At = q.mark(), p.At.UTC()
	raw, _ := json.Marshal(p) // it has no field that cannot be written
	return Cursor(base64.RawURLEncoding.EncodeToString(raw))
}

// readShare returns the position of the last share on the page before. The cursor is
// untrusted.
func (c Cursor) readShare(q LinkQuery) (p sharePosition, err error) {
	if c == "" {
		return sharePosition{At: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(string(c))
	if len(c) > maxShareCursor || err != nil || json.Unmarshal(raw, &p) != nil || p.Mark != q.mark() || p.At.Year() < 0 || p.At.Year() > 9999 {
		return p, ErrCursor
	}
	for _, text := range []string{p.Record.DID, p.Record.Collection, p.Record.Rkey, p.Subject.DID, p.Subject.Collection, p.Subject.Rkey} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return p, ErrCursor
		}
	}
	return p, nil
}
