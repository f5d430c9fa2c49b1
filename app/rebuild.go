package app

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/schema"
)

// errNoArchive means that no archive is configured.
var errNoArchive = errors.New("WEIR_ARCHIVE is empty: set it to the archive, such as dir:/path or s3://bucket/prefix")

// OpenArchive returns the configured store.
func (c Config) OpenArchive() (archive.Store, error) {
	store, err := c.archive()
	if err == nil && store == nil {
		err = errNoArchive
	}
	return store, err
}

// ArchiveCheck is the result of a check of an archive.
type ArchiveCheck struct {
	Segments, Records, RawBytes int64
	Problems                    []string
}

// VerifyArchive reads every segment of the store, checks all hashes, decodes every record,
// and compares the manifests with those in the database.
func (p App) VerifyArchive(ctx context.Context) (ArchiveCheck, error) {
	store, err := p.cfg.OpenArchive()
	if err != nil {
		return ArchiveCheck{}, err
	}
	rows, err := schema.Segments(ctx, p.pool) // before the listing: later ones are in it
	if err != nil {
		return ArchiveCheck{}, err
	}
	manifests, err := archive.Manifests(ctx, store)
	if err != nil {
		return ArchiveCheck{}, err
	}
	wires := p.archivedWires()
	var check ArchiveCheck
	problem := func(format string, args ...any) {
		check.Problems = append(check.Problems, fmt.Sprintf(format, args...))
	}
	there := map[string]archive.Manifest{}
	for _, m := range manifests {
		there[m.Name] = m
		if err := verifySegment(ctx, store, m, wires); errors.Is(err, archive.ErrCorrupt) || errors.Is(err, archive.ErrNotFound) {
			problem("%v", err)
		} else if err != nil {
			return check, err
		}
		check.Segments, check.Records, check.RawBytes = check.Segments+1, check.Records+m.Records, check.RawBytes+m.RawBytes
	}
	for _, m := range rows {
		got, ok := there[m.Name]
		switch {
		case !ok:
			problem("segment %d, %s: the database knows it, and the store has no manifest of it", m.Number, m.Name)
		case got.SHA256 != m.SHA256 || got.Sum() != m.Sum():
			problem("segment %d, %s: its manifest is not the one in the database", m.Number, m.Name)
		}
	}
	return check, nil
}

// verifySegment compares a segment with its manifest and decodes its records.
func verifySegment(ctx context.Context, store archive.Store, m archive.Manifest, wires map[string]consumer.Wire) error {
	segment, err := archive.FetchSegment(ctx, store, m)
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
		if wire.Decode(record, m.LastAt, &message); len(message.Malformed) > 0 {
			return fmt.Errorf("segment %s: %w: %w", m.Name, archive.ErrCorrupt, message.Malformed[0])
		}
	}
	return nil
}

// ExportArchive writes the records of a store as JSON lines, in the order of their
// segments. A record that is no JSON becomes an object with its wire and its base64.
func ExportArchive(ctx context.Context, store archive.Store, stream string, out io.Writer) error {
	manifests, err := archive.Manifests(ctx, store)
	if err != nil {
		return err
	}
	for _, m := range manifests {
		if stream != "" && m.Stream != stream {
			continue
		}
		segment, err := archive.FetchSegment(ctx, store, m)
		if err != nil {
			return err
		}
		for record, err := range segment.Records() {
			if err == nil {
				err = exportRecord(out, m.Wire, record)
			}
			if err != nil {
				return fmt.Errorf("export segment %s: %w", m.Name, err)
			}
		}
	}
	return nil
}

func exportRecord(out io.Writer, wire string, record []byte) error {
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

// RebuildDatabase reads the archive into an empty database through the normal commit, and
// processes the jobs that result. The streams are then at the archived position. An
// interrupted rebuild goes on after the last whole segment. progress is called after
// each.
func (p App) RebuildDatabase(ctx context.Context, progress func(done, all int, m archive.Manifest)) error {
	store, err := p.cfg.OpenArchive()
	if err != nil {
		return err
	}
	reason, err := schema.Rebuildable(ctx, p.pool)
	if err == nil && reason != "" {
		err = fmt.Errorf("the database is not empty: %s", reason)
	}
	if err != nil {
		return err
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	now := time.Now()
	if err := schema.EnsureArchivedDays(ctx, p.pool, now.Add(-p.cfg.ShareRetention), now); err != nil {
		return err
	}
	return p.processing(ctx, func(ctx context.Context) error { return p.rebuild(ctx, store, progress) })
}

// rebuild reads the segments that have not been read, in their order, and sets the
// positions of the streams.
func (p App) rebuild(ctx context.Context, store archive.Store, progress func(done, all int, m archive.Manifest)) error {
	manifests, err := archive.Manifests(ctx, store)
	if err != nil {
		return err
	}
	done, err := schema.Segments(ctx, p.pool)
	if err != nil {
		return err
	}
	positions := map[string]json.RawMessage{}
	for i, m := range manifests {
		if m.Position != nil {
			positions[m.Stream] = m.Position
		}
		if slices.ContainsFunc(done, func(d archive.Manifest) bool { return d.Name == m.Name }) {
			continue
		}
		if err := p.readSegment(ctx, store, m); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err() // the consumer stopped before the end
		}
		if err := schema.RestoreSegment(ctx, p.pool, m, store.String(), time.Now()); err != nil {
			return err
		}
		progress(i+1, len(manifests), m)
	}
	for stream, position := range positions {
		if err := schema.RestorePosition(ctx, p.pool, stream, position); err != nil {
			return err
		}
	}
	return nil
}

// readSegment commits the records of a segment.
func (p App) readSegment(ctx context.Context, store archive.Store, m archive.Manifest) error {
	wire, err := p.archivedWire(m)
	if err != nil {
		return err
	}
	segment, err := archive.FetchSegment(ctx, store, m)
	if err == nil {
		err = segment.Matches(m)
	}
	if err != nil {
		return err
	}
	stream := p.cfg.Stream + "-rebuild"
	c, err := p.consumer(consumer.Config{
		Stream: stream, Wire: schema.WireRecording, Source: &recording.Records{Name: m.Name, Wire: wire, Frames: segment.Records()}, IgnorePosition: true, BlockOnFullBuffer: true,
		Archived: true, BatchEvents: p.cfg.BatchEvents, BatchInterval: p.cfg.BatchInterval, BufferBytes: min(p.cfg.BufferBytes, 8<<20), LeaseTTL: p.cfg.LeaseTTL,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, p.pool, stream))
}
