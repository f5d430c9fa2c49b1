// Package recovery reads an archive without its streams: it checks every segment, exports the records, and rebuilds
// a database from them.
package recovery

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/schema"
)

// Check is the result of a check of an archive.
type Check struct {
	Segments, Records, RawBytes int64
	Problems                    []string
}

// Source is an archive, and how its records are read.
type Source struct {
	Store archive.Store
	// Wires returns the wires of sources, by name, for one goroutine. They decode what is wanted; nil: all events.
	Wires  func(wanted func(collection string) bool) (map[string]consumer.Wire, error)
	Stores func(collection string) bool
}

// wires returns the wires of archived records, by name, for one goroutine.
func (s Source) wires() (map[string]consumer.Wire, error) {
	wires, err := s.Wires(s.Stores)
	if err == nil {
		wires[catalog.WireSnapshot] = consumer.Wire{Name: catalog.WireSnapshot, Decode: decodeSnapshot}
	}
	return wires, err
}

// decodeSnapshot checks a part of a snapshot. Snapshots contain no events.
func decodeSnapshot(record []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(record, arrived)
	if _, err := catalog.ParseSnapshotPart(record); err != nil {
		m.Refuse(&consumer.Malformed{Cause: err.Error(), Raw: record})
	}
}

// Wire returns the wire of a segment's records, for one goroutine.
func (s Source) Wire(m archive.Manifest) (consumer.Wire, error) {
	wires, err := s.wires()
	return wireOf(m, wires, err)
}

func wireOf(m archive.Manifest, wires map[string]consumer.Wire, err error) (consumer.Wire, error) {
	wire, known := wires[m.Wire]
	if err == nil && !known {
		err = fmt.Errorf("segment %s: this version of Weir does not know the wire %s", m.Name, m.Wire)
	}
	return wire, err
}

// Strip returns how what must be forgotten is taken out of a segment's records, in one goroutine.
func (s Source) Strip(m archive.Manifest) (archive.Strip, error) {
	if m.Wire == catalog.WireSnapshot {
		return catalog.StripSnapshot, nil
	}
	wires, err := s.Wires(nil) // what is not stored is archived too
	wire, err := wireOf(m, wires, err)
	return frames.Strip(wire), err
}

// Verify reads every segment of the store, checks all hashes, decodes every record, and compares the
// manifests with those in the database, unless db is nil.
func (s Source) Verify(ctx context.Context, db schema.DB) (check Check, err error) {
	var rows []archive.Manifest
	if db != nil {
		if rows, err = catalog.Segments(ctx, db); err != nil { // before the listing: the listing contains later segments
			return Check{}, err
		}
	}
	manifests, damaged, err := archive.ReadableManifests(ctx, s.Store)
	if err != nil {
		return Check{}, err
	}
	wires, err := s.wires()
	if err != nil {
		return Check{}, err
	}
	problem := func(format string, args ...any) {
		check.Problems = append(check.Problems, fmt.Sprintf(format, args...))
	}
	for _, segment := range slices.Sorted(maps.Keys(damaged)) {
		problem("%v", damaged[segment])
	}
	there := map[string]archive.Manifest{}
	for _, m := range manifests {
		there[m.Versions()] = m
		if err := VerifySegment(ctx, s.Store, m, wires); errors.Is(err, archive.ErrCorrupt) || errors.Is(err, archive.ErrNotFound) {
			problem("%v", err)
		} else if err != nil {
			return check, err
		}
		check.Segments, check.Records, check.RawBytes = check.Segments+1, check.Records+m.Records, check.RawBytes+m.RawBytes
	}
	for _, m := range rows {
		got, ok := there[m.Versions()]
		switch {
		case damaged[m.Versions()] != nil: // see above
		case ok && got.Rewritten > m.Rewritten: // the database is about to switch to this version
		case !ok:
			problem("segment %d, %s: the database knows it, and the store has no manifest of it", m.Number, m.Name)
		case got.SHA256 != m.SHA256 || got.Rewritten != m.Rewritten || got.Sum() != m.Sum():
			problem("segment %d, %s: its manifest is not the one in the database", m.Number, m.Name)
		}
	}
	return check, nil
}

// VerifySegment compares a segment with its manifest and decodes its records.
func VerifySegment(ctx context.Context, store archive.Store, m archive.Manifest, wires map[string]consumer.Wire) error {
	m, segment, err := archive.FetchLast(ctx, store, m)
	if err != nil {
		return err
	}
	if err := segment.Matches(m); err != nil {
		return err
	}
	wire, ok := wires[m.Wire]
	if !ok {
		return fmt.Errorf("segment %s: %w: its wire %s is unknown", m.Name, archive.ErrCorrupt, m.Wire)
	}
	var message consumer.Message
	for record, err := range segment.Records() {
		if err != nil {
			return err
		}
		// A frame is archived if some of its events could be read; the others are dead letters.
		if wire.Decode(record, m.LastAt, &message); len(message.Malformed) > 0 && len(message.Events) == 0 {
			return fmt.Errorf("segment %s: %w: %w", m.Name, archive.ErrCorrupt, message.Malformed[0])
		}
	}
	return nil
}

// segmentsOf returns the manifests of a stream, or of all if stream is empty. It is an error if
// there are none: the address of the store or the name is wrong.
func segmentsOf(ctx context.Context, store archive.Store, stream string) ([]archive.Manifest, error) {
	all, err := archive.Manifests(ctx, store)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("there is no archive at %s: it has no segment; check WEIR_ARCHIVE and its prefix", store)
	}
	some := slices.DeleteFunc(slices.Clone(all), func(m archive.Manifest) bool { return stream != "" && m.Stream != stream })
	if len(some) == 0 {
		names := map[string]bool{}
		for _, m := range all {
			names[m.Stream] = true
		}
		known := strings.Join(slices.Sorted(maps.Keys(names)), ", ")
		return nil, fmt.Errorf("the archive at %s has no segment of stream %s: it has %s", store, stream, known)
	}
	return some, nil
}

// Export writes the records of a store as JSON lines, in the order of their segments,
// without those of forgotten accounts. It converts a Nostr event to its JSON. A record that is not
// JSON becomes an object with its wire and its base64.
func (s Source) Export(ctx context.Context, stream string, out io.Writer) error {
	manifests, err := segmentsOf(ctx, s.Store, stream)
	if err != nil {
		return err
	}
	forgotten, err := archive.ReadForgotten(ctx, s.Store)
	if err != nil {
		return err
	}
	wires, err := s.wires()
	if err != nil {
		return err
	}
	for _, m := range manifests {
		m, segment, err := archive.FetchLast(ctx, s.Store, m)
		if err != nil {
			return err
		}
		records, err := s.remaining(forgotten, m, segment)
		if err != nil {
			return err
		}
		for record, err := range records {
			if err == nil {
				err = exportRecord(out, m.Wire, wires[m.Wire].JSON, record)
			}
			if err != nil {
				return fmt.Errorf("export segment %s: %w", m.Name, err)
			}
		}
	}
	return nil
}

func exportRecord(out io.Writer, wire string, export func([]byte) []byte, record []byte) error {
	if export != nil {
		record = export(record)
	}
	line := json.RawMessage(record)
	if !json.Valid(record) {
		b, err := json.Marshal(map[string]string{"wire": wire, "record": base64.StdEncoding.EncodeToString(record)})
		if err != nil {
			return err
		}
		line = b
	} else if slices.Contains(record, '\n') {
		b, err := json.Marshal(line) // without the blanks
		if err != nil {
			return err
		}
		line = b
	}
	_, err := out.Write(append(slices.Clip(line), '\n'))
	return err
}
