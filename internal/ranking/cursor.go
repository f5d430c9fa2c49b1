package ranking

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"
)

// Cursor is an opaque position in a ranking. It contains the time of the first page, so
// that all pages show the same window.
type Cursor string

// ErrCursor means that a cursor is invalid, too old, or from a ranking with other
// options.
var ErrCursor = errors.New("the cursor is invalid, too old, or belongs to another ranking")

const (
	// CursorAge is the maximum age of the first page when a later one is read: counting
	// far back takes long.
	CursorAge = time.Hour
	maxCursor = 200 // bytes
)

// View returns a text that is the same for two queries with the same links in the same
// order at the same time.
func (q Query) View() string {
	ways := slices.Clone(q.OnlyWays())
	slices.Sort(ways)
	return fmt.Sprintf("%s %s %d %s %s %q %q %q %q %q", q.Window, cmp.Or(q.Sort, Sharers), q.least(), strings.Join(ways, ","),
		q.Network, q.Site, q.Text, q.By, q.Watch, q.Degree)
}

func (q Query) mark() uint32 {
	h := fnv.New32a()
	h.Write([]byte(q.View())) // it never fails
	return h.Sum32()
}

// newCursor returns the position of an entry. before is the number of links up to and
// including it.
func newCursor(end time.Time, before int, e entry, q Query) Cursor {
	return Cursor(base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %d %d %d %d %d", q.mark(), end.UnixMicro(),
		before, e.value(q.Sort), e.Last.UnixMicro(), e.ID)))
}

// read returns the end of the window, the number of links on the pages before, and the
// last of these. The cursor is untrusted.
func (c Cursor) read(q Query, now time.Time) (end time.Time, before int, e *entry, err error) {
	if len(c) > maxCursor {
		return end, 0, nil, ErrCursor
	}
	raw, err := base64.RawURLEncoding.DecodeString(string(c))
	if err != nil {
		return end, 0, nil, ErrCursor
	}
	var mark uint32
	var at, last, id int64
	var value int
	if _, err := fmt.Sscanf(string(raw), "%d %d %d %d %d %d", &mark, &at, &before, &value, &last, &id); err != nil {
		return end, 0, nil, ErrCursor
	}
	end = time.UnixMicro(at)
	e = &entry{ID: id, Sharers: value, Speed: value, Last: time.UnixMicro(last)}
	switch {
	case end.Before(now.Add(-CursorAge)), end.After(now.Add(CursorAge)):
	case id < 0, before < 0, before > math.MaxInt32, value < 0, value > math.MaxInt32, e.Last.Year() < 1, e.Last.Year() > 9999:
	case newCursor(end, before, *e, q) != c: // from another ranking, or with extra bytes
	default:
		return end, before, e, nil
	}
	return end, 0, nil, ErrCursor
}

// bare returns the links with their counts only.
func bare(entries []entry, sort Sort) []TrendingLink {
	links := make([]TrendingLink, len(entries))
	for i, e := range entries {
		links[i] = TrendingLink{LinkCard: LinkCard{ID: e.ID}, Sharers: e.Sharers, LastShared: e.Last}
		if sort == Speed {
			links[i].Speed = float64(e.Speed) / speedPerHour
		}
	}
	return links
}
