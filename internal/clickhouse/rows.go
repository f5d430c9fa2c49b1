package clickhouse

import (
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/links/link"
)

// Rows returns the events of a segment. A record may contain several events. It omits
// events that the wire does not know or cannot read. Several goroutines decode the
// frames: wire is called once for each of them.
func Rows(m archive.Manifest, s *archive.Segment, wire func() (consumer.Wire, error)) ([]Row, error) {
	frames := make([][]Row, s.Frames())
	var next atomic.Int64
	var all errgroup.Group
	for range min(runtime.GOMAXPROCS(0), len(frames)) {
		all.Go(func() error {
			w, err := wire()
			for i := next.Add(1) - 1; err == nil && i < int64(len(frames)); i = next.Add(1) - 1 {
				var raw []byte
				if raw, err = s.Frame(int(i)); err == nil {
					frames[i], err = rowsOf(archive.Records(raw), m.LastAt, w)
				}
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return nil, fmt.Errorf("read a segment: %w", err)
	}
	rows := slices.Concat(frames...)
	for i := range rows {
		rows[i].Source, rows[i].Position = m.Stream, uint32(i) // far fewer
	}
	return rows, nil
}

// rowsOf returns the events of records. last is when the last record arrived. Nostr
// records have no server time, so last is used for them.
func rowsOf(records iter.Seq2[[]byte, error], last time.Time, wire consumer.Wire) ([]Row, error) {
	var rows []Row
	var m consumer.Message
	for record, err := range records {
		if err != nil {
			return nil, err
		}
		wire.Decode(record, time.Time{}, &m) // at the zero time, nothing has expired
		if m.TimeUS <= 0 {
			m.TimeUS = last.UnixMicro()
		}
		for i := range m.Events {
			ev := &m.Events[i]
			ev.TimeUS = m.TimeUS
			if r, ok := rowOf(ev); ok {
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// rowOf returns the row of an event. It returns false if the event has none.
func rowOf(ev *consumer.Event) (Row, bool) {
	r := Row{ID: frames.EventID(ev), Author: ev.Author, CreatedAt: time.UnixMicro(ev.TimeUS)}
	switch ev.Kind {
	case consumer.KindCommit:
		r.Collection, r.Key, r.Operation, r.Body = ev.Collection, ev.Key, ev.Operation.String(), string(ev.Record)
		r.CreatedAt = created(ev, r.CreatedAt)
		if ev.Record != nil {
			r.Links = linksOf(ev)
		}
	case consumer.KindIdentity:
		r.Operation, r.Body = "identity", object("handle", ev.Handle)
	case consumer.KindAccount:
		r.Operation, r.Body = "account", object("status", ev.Status)
	case consumer.KindSync:
		r.Operation = "sync"
	default:
		return Row{}, false
	}
	return r, true
}

// created returns when a record was created: the author's claim, but not later than the
// server's time. Without a claim it returns the server's time.
func created(ev *consumer.Event, at time.Time) time.Time {
	claimed := ev.Written
	if claimed.IsZero() {
		claimed = claim(ev.Record)
	}
	if claimed.IsZero() || claimed.After(at) {
		return at
	}
	return claimed
}

// claim returns the time in a record, or zero if it has none.
func claim(record []byte) time.Time {
	var claim struct {
		CreatedAt jsontext.Value `json:"createdAt"`
	}
	var text string
	if record == nil || json.Unmarshal(record, &claim, jsontext.AllowInvalidUTF8(true)) != nil ||
		json.Unmarshal(claim.CreatedAt, &text) != nil {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// linksOf returns the identities of the links of a post, a note or an article. They are
// the same for all spellings of one page.
func linksOf(ev *consumer.Event) []string {
	if ev.Collection == link.CollectionPost && !link.MayShare(ev.Record) {
		return nil // as most posts
	}
	found, err := link.InRecord(ev.Collection, ev.Author, ev.Record)
	if err != nil || len(found.Links) == 0 {
		return nil // an error means that it is not a post, whatever its collection is
	}
	links := make([]string, len(found.Links))
	for i := range found.Links {
		links[i] = found.Links[i].Identity
	}
	return links
}

// object returns a JSON object with one text, or "" without one.
func object(name, value string) string {
	if value == "" {
		return ""
	}
	b, err := json.Marshal(map[string]string{name: value})
	if err != nil {
		return "" // a handle or a status is valid UTF-8
	}
	return string(b)
}
