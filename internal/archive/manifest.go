package archive

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Format is the version of the format of segments and manifests.
const Format = 1

// errFormat means that another version of Weir wrote a manifest.
var errFormat = errors.New("this version of Weir reads format")

// Manifest describes a sealed segment. A copy is stored beside the segment, so that the
// archive can be read without a database.
type Manifest struct {
	Number      int64      `json:"number"` // from one sequence for all streams
	Stream      string     `json:"stream"`
	Wire        string     `json:"wire"` // the format of the records
	Name        string     `json:"name"` // name of the segment in the store
	Format      int        `json:"format"`
	Records     int64      `json:"records"`
	RawBytes    int64      `json:"raw_bytes"`
	StoredBytes int64      `json:"stored_bytes"`
	SHA256      string     `json:"sha256"`  // hash of the file
	Content     string     `json:"content"` // XXH64 of the decompressed bytes
	FirstAt     time.Time  `json:"first_arrival"`
	LastAt      time.Time  `json:"last_arrival"`
	CreatedFrom *time.Time `json:"min_created_at,omitempty"` // of the stored records; absent: there are none
	CreatedTo   *time.Time `json:"max_created_at,omitempty"`
	SealedAt    time.Time  `json:"sealed_at"`
	// the stream's position; everything up to it is in this segment and earlier ones; absent: unknown
	Position json.RawMessage `json:"position,omitempty"`

	// A segment is rewritten without the data to forget.
	Rewritten   int        `json:"rewritten,omitempty"`    // how many times it was rewritten
	Origin      string     `json:"origin,omitempty"`       // Content of its first version
	ForgottenAt *time.Time `json:"forgotten_at,omitempty"` // the segment contains no data that had to be forgotten at this time
}

// maxManifest limits a manifest's JSON.
const maxManifest = 64 << 10

// manifestSuffix ends the names of manifests.
const manifestSuffix = ".json"

// NewManifest returns the manifest of a sealed segment. Its folder is the day, in UTC, on
// which its first record arrived.
func NewManifest(number int64, stream, wire string, sum Sum, first, sealed time.Time) Manifest {
	m := Manifest{Number: number, Stream: stream, Wire: wire, Format: Format, FirstAt: first.UTC(), SealedAt: sealed.UTC()}
	m.Name = url.PathEscape(stream) + "/" + m.FirstAt.Format(time.DateOnly) + "/"
	m.Refile(sum)
	return m
}

// Refile makes the manifest describe another file of its segment, in the same folder.
func (m *Manifest) Refile(sum Sum) {
	m.Records, m.RawBytes, m.StoredBytes, m.SHA256, m.Content = sum.Records, sum.RawBytes, sum.StoredBytes, sum.SHA256, sum.Content
	folder, _, _ := cutLast(m.Name, "/")
	m.Name = fmt.Sprintf("%s/%012d-%s.seg.zst", folder, m.Number, sum.SHA256[:8])
}

// ManifestName returns the name of the manifest's copy. The name depends on the number and
// the records and not on how they are compressed. So there is at most one manifest for
// them, and the segment that it names is the valid one. Likewise there is at most one
// manifest for the n-th rewrite of a segment.
func (m Manifest) ManifestName() string {
	if m.Rewritten == 0 {
		return m.Versions() + manifestSuffix
	}
	return fmt.Sprintf("%s.%d%s", m.Versions(), m.Rewritten, manifestSuffix)
}

// Versions returns the prefix of the names of the manifests of all versions of a segment.
func (m Manifest) Versions() string {
	folder, _, _ := cutLast(m.Name, "/")
	return fmt.Sprintf("%s/%012d-%s", folder, m.Number, cmp.Or(m.Origin, m.Content))
}

// Rewrite returns the manifest of the segment's next version, without the data that had to
// be forgotten at a time.
func (m Manifest) Rewrite(sum Sum, forgotten time.Time) Manifest {
	forgotten = forgotten.UTC()
	m.Origin, m.ForgottenAt = cmp.Or(m.Origin, m.Content), &forgotten
	m.Rewritten++
	m.Refile(sum)
	return m
}

// manifestName matches the end of the name of a manifest, see ManifestName.
var manifestName = regexp.MustCompile(`^(.+/[0-9]{12,}-[0-9a-f]{16})(?:\.([1-9][0-9]{0,8}))?\.json$`)

// VersionOf parses the name of a manifest. version is how many times its segment was
// rewritten, and segment is the same for all versions. ok is false for other names, such
// as those of files that are not part of the archive.
func VersionOf(name string) (segment string, version int, ok bool) {
	parts := manifestName.FindStringSubmatch(name)
	if parts == nil {
		return "", 0, false
	}
	version, _ = strconv.Atoi(parts[2]) // 0 without a number
	return parts[1], version, true
}

// IsManifest reports whether an object's name is that of a manifest.
func IsManifest(name string) bool {
	_, _, ok := VersionOf(name)
	return ok
}

// Sum returns the manifest's description of the file.
func (m Manifest) Sum() Sum {
	return Sum{Records: m.Records, RawBytes: m.RawBytes, StoredBytes: m.StoredBytes, SHA256: m.SHA256, Content: m.Content}
}

// Encode returns the manifest as JSON.
func (m Manifest) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode a manifest: %w", err)
	}
	return append(b, '\n'), nil
}

// ParseManifest reads a manifest.
func ParseManifest(b []byte) (Manifest, error) {
	if len(b) > maxManifest {
		return Manifest{}, corrupt("a manifest of %d bytes", len(b))
	}
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil { // unlike a Decoder, it refuses trailing data
		return Manifest{}, errors.Join(corrupt("a manifest that is no JSON"), err)
	}
	sha, err := hex.DecodeString(m.SHA256)
	folder, _, ok := cutLast(m.Name, "/")
	switch {
	case m.Format != Format:
		return Manifest{}, fmt.Errorf("segment %d has format %d: %w %d", m.Number, m.Format, errFormat, Format)
	case err != nil || len(sha) != 32 || len(m.Content) != 16:
		return Manifest{}, corrupt("the hashes of segment %d", m.Number)
	case m.Number < 1 || m.Records < 0 || m.RawBytes < 0 || m.StoredBytes < 0 || m.StoredBytes > MaxSegment:
		return Manifest{}, corrupt("the sizes of segment %d", m.Number)
	case m.Rewritten < 0 || m.Rewritten > 0 && (m.ForgottenAt == nil || !isContent(m.Origin)) || m.Rewritten == 0 && m.Origin != "":
		return Manifest{}, corrupt("the version of segment %d", m.Number)
	case !ok || !strings.HasPrefix(folder, url.PathEscape(m.Stream)+"/") || !validName(m.Name):
		return Manifest{}, corrupt("the name of segment %d", m.Number)
	}
	return m, nil
}

// isContent reports whether s is a content in a manifest.
func isContent(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 8
}

// MaxSegment is the maximum size of a segment that is read.
const MaxSegment = 1 << 30

// validName reports whether an object's name stays inside the archive. It must consist of
// parts of plain characters between slashes, and no part may be "." or "..".
func validName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, "\\\x00") {
			return false
		}
	}
	return true
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
