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

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/link"
	"github.com/weir-social/weir/schema"
)

// Rows returns the events of a segment. A record may hold several; what the wire does not
// know is left out, and so is what it cannot read. The frames are decoded side by side:
// wire is called once for each of the goroutines.
func Rows(s *archive.Segment, source string, wire func() (consumer.Wire, error)) ([]Row, error) {
	frames := make([][]Row, s.Frames())
	var next atomic.Int64
	var all errgroup.Group
	for range min(runtime.GOMAXPROCS(0), len(frames)) {
		all.Go(func() error {
			w, err := wire()
			for i := next.Add(1) - 1; err == nil && i < int64(len(frames)); i = next.Add(1) - 1 {
				var raw []byte
				if raw, err = s.Frame(int(i)); err == nil {
					frames[i], err = rowsOf(archive.Records(raw), w)
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
		rows[i].Source, rows[i].Position = source, uint32(i) //nolint:gosec // far fewer
	}
	return rows, nil
}

// rowsOf returns the events of records.
func rowsOf(records iter.Seq2[[]byte, error], wire consumer.Wire) ([]Row, error) {
	var rows []Row
	var m consumer.Message
	for record, err := range records {
		if err != nil {
			return nil, err
		}
		wire.Decode(record, time.Time{}, &m)
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

// rowOf returns the row of an event; false: it has none.
func rowOf(ev *consumer.Event) (Row, bool) {
	r := Row{ID: consumer.EventID(ev), Author: ev.Author, CreatedAt: time.UnixMicro(ev.TimeUS)}
	switch ev.Kind {
	case consumer.KindCommit:
		r.Collection, r.Key, r.Operation, r.Body = ev.Collection, ev.Key, ev.Operation.String(), string(ev.Record)
		r.CreatedAt = created(ev.Record, r.CreatedAt)
		if ev.Collection == schema.PostCollection && ev.Record != nil {
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

// created returns when a record was created: as its author claims, but not later than the
// server's time. Without a claim it is the server's time.
func created(record []byte, at time.Time) time.Time {
	var claim struct {
		CreatedAt jsontext.Value `json:"createdAt"`
	}
	var text string
	if record == nil || json.Unmarshal(record, &claim, jsontext.AllowInvalidUTF8(true)) != nil || json.Unmarshal(claim.CreatedAt, &text) != nil {
		return at
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil && t.Before(at) {
		return t
	}
	return at
}

// linksOf returns the identities of a post's links: they are the same for all spellings
// of one article.
func linksOf(ev *consumer.Event) []string {
	post, err := link.InPost(ev.Author, ev.Record)
	if err != nil {
		return nil // not a post, whatever its collection is
	}
	links := make([]string, len(post.Links))
	for i := range post.Links {
		links[i] = post.Links[i].Identity
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
