package archive_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
)

// segment returns a segment of these records and its sums.
func segment(t testing.TB, records [][]byte) ([]byte, archive.Sum) {
	t.Helper()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(t, err)
	for _, r := range records {
		require.NoError(t, w.Add(r))
	}
	sum, err := w.Close()
	require.NoError(t, err)
	return file.Bytes(), sum
}

// someRecords returns records of about size bytes in all.
func someRecords(size int) (all [][]byte) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := 0; n < size; n += len(all[len(all)-1]) {
		all = append(all, fmt.Appendf(nil, `{"did":"did:plc:%x","text":%q}`, random.Uint64(), strings.Repeat("word ", random.IntN(200))))
	}
	return append(all, []byte{}, bytes.Repeat([]byte{7}, 3<<20))
}

// TestSegmentIsPlain reads a segment with another decoder and the test's own code.
func TestSegmentIsPlain(t *testing.T) {
	t.Parallel()
	want := someRecords(5 << 20)
	file, sum := segment(t, want)
	d, err := zstd.NewReader(bytes.NewReader(file))
	require.NoError(t, err)
	defer d.Close()
	var got [][]byte
	for {
		var length [4]byte
		_, err := io.ReadFull(d, length[:])
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		record := make([]byte, binary.LittleEndian.Uint32(length[:]))
		_, err = io.ReadFull(d, record)
		require.NoError(t, err)
		got = append(got, record)
	}
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.True(t, bytes.Equal(want[i], got[i]), i)
	}
	s, err := archive.Open(file)
	require.NoError(t, err)
	require.Greater(t, s.Frames(), 4)
	i := 0
	for record, err := range s.Records() {
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[i], record), i)
		i++
	}
	require.Len(t, want, i)
	checked, err := s.Check()
	require.NoError(t, err)
	checked.SHA256 = sum.SHA256
	require.Equal(t, sum, checked)
	again, _ := segment(t, want)
	require.True(t, bytes.Equal(file, again), "equal records must give equal segments")
}

func TestEmptySegment(t *testing.T) {
	t.Parallel()
	file, sum := segment(t, nil)
	require.Zero(t, sum.Records)
	s, err := archive.Open(file)
	require.NoError(t, err)
	require.Zero(t, s.Frames())
}

func TestRecordTooLarge(t *testing.T) {
	t.Parallel()
	w, err := archive.NewWriter(io.Discard)
	require.NoError(t, err)
	require.Error(t, w.Add(make([]byte, archive.MaxRecord+1)))
	require.NoError(t, w.Add(make([]byte, archive.MaxRecord)))
}

// TestFlippedBytes flips each of many bytes. The segment or one of its frames is refused, and the
// records of the other frames are intact.
func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	want := someRecords(2 << 20)
	known := map[string]bool{}
	for _, r := range want {
		known[string(r)] = true
	}
	file, _ := segment(t, want)
	random := rand.New(rand.NewPCG(3, 4))
	refused, rescued := 0, 0
	for n := range 60 {
		at := random.IntN(len(file))
		if n%3 == 0 {
			at = len(file) - 1 - random.IntN(60) // within the seek table
		}
		damaged := bytes.Clone(file)
		damaged[at] ^= 1 << random.IntN(8)
		s, err := archive.Open(damaged)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			refused++
			continue
		}
		_, err = s.Check()
		require.ErrorIs(t, err, archive.ErrCorrupt, "byte %d", at)
		lost, whole := 0, 0
		for record, err := range s.Whole() {
			if err != nil {
				lost++
				continue
			}
			require.True(t, known[string(record)])
			whole++
		}
		require.NotZero(t, lost)
		if whole > 0 {
			rescued++
		}
	}
	require.NotZero(t, refused)
	require.NotZero(t, rescued)
}

func TestManifestRoundTrip(t *testing.T) {
	t.Parallel()
	_, sum := segment(t, someRecords(1000))
	first := time.Date(2026, 3, 4, 23, 59, 0, 0, time.FixedZone("", -3600))
	m := archive.NewManifest(7, "a/b stream", "jetstream-v1", sum, first, first.AddDate(0, 0, 1))
	require.Equal(t, "a%2Fb%20stream/2026-03-05/000000000007-"+sum.SHA256[:8]+".seg.zst", m.Name)
	require.Equal(t, "a%2Fb%20stream/2026-03-05/000000000007-"+sum.Content+".json", m.ManifestName())
	b, err := m.Encode()
	require.NoError(t, err)
	got, err := archive.ParseManifest(b)
	require.NoError(t, err)
	require.Equal(t, m, got)
	for _, wrong := range []func(m *archive.Manifest){
		func(m *archive.Manifest) { m.Format = 2 },
		func(m *archive.Manifest) { m.Name = "a%2Fb%20stream/../x" },
		func(m *archive.Manifest) { m.Name = "other/x" },
		func(m *archive.Manifest) { m.SHA256 = "00" },
		func(m *archive.Manifest) { m.Number = 0 },
		func(m *archive.Manifest) { m.StoredBytes = 1 << 40 },
	} {
		damaged := m
		wrong(&damaged)
		b, err := damaged.Encode()
		require.NoError(t, err)
		_, err = archive.ParseManifest(b)
		require.Error(t, err)
	}
}

func TestIDsDiffer(t *testing.T) {
	t.Parallel()
	require.NotEqual(t, archive.NewID("a", "bc"), archive.NewID("ab", "c"))
	require.Equal(t, archive.NewID("a", "b"), archive.NewID("a", "b"))
	require.Equal(t, "fafb3531180a831010a8867eee0d9dc0", fmt.Sprintf("%x", archive.NewID("did:plc:x", "c", "k", "r", "create")),
		"ids are stored and must not change")
}
