package archive

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// ErrExists means that an object with that name exists. Objects never change.
var ErrExists = errors.New("the object exists")

// ErrNotFound means that there is no object with that name.
var ErrNotFound = errors.New("there is no such object")

// Store stores objects under names with slashes.
type Store interface {
	// Put stores an object as a whole or not at all. If there is an object with that name,
	// it returns ErrExists.
	Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error
	// Get opens an object, or returns ErrNotFound.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// Stat returns an object's size, or ErrNotFound.
	Stat(ctx context.Context, name string) (Object, error)
	// List yields the objects whose names begin with prefix. An error names the store.
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
	// Delete deletes an object. It is not an error if there is none.
	Delete(ctx context.Context, name string) error
	// String returns the address of the store, without secrets.
	String() string
}

// Sweeper is a store in which a process that is killed during a Put leaves data that is not
// an object.
type Sweeper interface {
	// Sweep deletes such data from before a time, and returns how many items it deleted.
	Sweep(ctx context.Context, before time.Time) (deleted int, err error)
}

// Object is an entry of a store's listing.
type Object struct {
	Name     string
	Size     int64
	Modified time.Time
}

// Fetch reads an object. It returns an error if the object has more than most bytes.
func Fetch(ctx context.Context, s Store, name string, most int64) ([]byte, error) {
	in, err := s.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer in.Close() // it was only read
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case int64(len(b)) > most:
		return nil, fmt.Errorf("read %s: %w", name, corrupt("more than %d bytes", most))
	}
	return b, nil
}

// Try writes an object, reads it back and deletes it again. Nothing takes the object for a part
// of the archive.
func Try(ctx context.Context, s Store) error {
	const content = "weir doctor"
	name := "doctor-" + rand.Text()
	if err := s.Put(ctx, name, strings.NewReader(content), int64(len(content))); err != nil {
		return err
	}
	got, err := Fetch(ctx, s, name, int64(len(content)))
	if err == nil && string(got) != content {
		err = fmt.Errorf("read %s: %w", name, corrupt("other bytes than were written"))
	}
	return errors.Join(err, s.Delete(ctx, name))
}

// FetchSegment reads a segment and checks the hash of the file.
func FetchSegment(ctx context.Context, s Store, m Manifest) (*Segment, error) {
	data, err := Fetch(ctx, s, m.Name, m.StoredBytes)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != m.SHA256 {
		return nil, fmt.Errorf("segment %s: %w", m.Name, corrupt("its SHA-256 is %x instead of %s", sum, m.SHA256))
	}
	segment, err := Open(data)
	if err != nil {
		return nil, fmt.Errorf("segment %s: %w", m.Name, err)
	}
	return segment, nil
}

// Verify reads a segment back and compares it with its manifest.
func Verify(ctx context.Context, s Store, m Manifest) error {
	segment, err := FetchSegment(ctx, s, m)
	if err != nil {
		return err
	}
	return segment.Matches(m)
}

// Matches reads everything and compares it with the manifest.
func (s *Segment) Matches(m Manifest) error {
	sum, err := s.Check()
	if err != nil {
		return fmt.Errorf("segment %s: %w", m.Name, err)
	}
	if sum.SHA256 = m.SHA256; sum != m.Sum() {
		return fmt.Errorf("segment %s: %w", m.Name, corrupt("it holds %d records of %d bytes (%s), its manifest says %d of %d (%s)",
			sum.Records, sum.RawBytes, sum.Content, m.Records, m.RawBytes, m.Content))
	}
	return nil
}

// PutManifest stores a manifest's copy. If one is stored already, it returns that one.
func PutManifest(ctx context.Context, s Store, m Manifest) (Manifest, error) {
	b, err := m.Encode()
	if err != nil {
		return Manifest{}, err
	}
	err = s.Put(ctx, m.ManifestName(), bytes.NewReader(b), int64(len(b)))
	if errors.Is(err, ErrExists) {
		return ReadManifest(ctx, s, m.ManifestName())
	}
	return m, err
}

// ReadManifest reads a manifest's copy.
func ReadManifest(ctx context.Context, s Store, name string) (Manifest, error) {
	b, err := Fetch(ctx, s, name, maxManifest)
	if err != nil {
		return Manifest{}, err
	}
	m, err := ParseManifest(b)
	if err == nil && m.ManifestName() != name {
		err = corrupt("it is the manifest of %s", m.ManifestName())
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("manifest %s: %w", name, err)
	}
	return m, nil
}

// Manifests reads the manifests of a store's segments, ordered by number. It returns the
// last version of each. It fails if one cannot be read, because that segment would be
// missing.
func Manifests(ctx context.Context, s Store) ([]Manifest, error) {
	all, damaged, err := ReadableManifests(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, segment := range slices.Sorted(maps.Keys(damaged)) {
		return nil, fmt.Errorf("%w: restore it from a copy of the archive, or move it out of the archive to go on without its segment",
			damaged[segment])
	}
	return all, nil
}

// ReadableManifests is Manifests without those that cannot be read. damaged has the errors
// of these, by Manifest.Versions.
func ReadableManifests(ctx context.Context, s Store) (all []Manifest, damaged map[string]error, err error) {
	last, err := lastVersions(ctx, s, "")
	if err != nil {
		return nil, nil, err
	}
	all, damaged = make([]Manifest, 0, len(last)), map[string]error{}
	for segment := range last {
		m, err := readLast(ctx, s, segment, last[segment])
		switch {
		case err == nil:
			all = append(all, m)
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrNotFound), errors.Is(err, errFormat):
			damaged[segment] = err
		default:
			return nil, nil, err
		}
	}
	slices.SortFunc(all, func(a, b Manifest) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), strings.Compare(a.Versions(), b.Versions()))
	})
	return all, damaged, nil
}

// lastVersions returns the name of the manifest of each segment's last version.
func lastVersions(ctx context.Context, s Store, prefix string) (map[string]string, error) {
	last, versions := map[string]string{}, map[string]int{}
	for o, err := range s.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		segment, version, ok := VersionOf(o.Name)
		if !ok {
			continue
		}
		if _, seen := last[segment]; !seen || version > versions[segment] {
			last[segment], versions[segment] = o.Name, version
		}
	}
	return last, nil
}

// readLast reads a manifest. If it was deleted meanwhile, it reads the manifest of a later
// version.
func readLast(ctx context.Context, s Store, segment, name string) (Manifest, error) {
	for {
		m, err := ReadManifest(ctx, s, name)
		if !errors.Is(err, ErrNotFound) {
			return m, err
		}
		last, listed := lastVersions(ctx, s, segment)
		if listed != nil {
			return m, listed
		}
		if last[segment] == "" || last[segment] == name {
			return m, err
		}
		name = last[segment]
	}
}

// FetchLast reads a segment. If that version was deleted, it reads the last version. It
// also returns the manifest of the version that it read.
func FetchLast(ctx context.Context, s Store, m Manifest) (Manifest, *Segment, error) {
	for {
		segment, err := FetchSegment(ctx, s, m)
		if !errors.Is(err, ErrNotFound) {
			return m, segment, err
		}
		last, listed := lastVersions(ctx, s, m.Versions())
		if listed != nil {
			return m, nil, listed
		}
		name := last[m.Versions()]
		if _, version, _ := VersionOf(name); name == "" || version <= m.Rewritten {
			return m, nil, err
		}
		if m, err = readLast(ctx, s, m.Versions(), name); err != nil {
			return m, nil, err
		}
	}
}
