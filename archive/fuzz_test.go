package archive_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive"
)

// FuzzRecords checks that whatever is accepted is framed as AppendRecord does it.
func FuzzRecords(f *testing.F) {
	f.Add(archive.AppendRecord(archive.AppendRecord(nil, []byte("a")), nil))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, raw []byte) {
		var again []byte
		for record, err := range archive.Records(raw) {
			if err != nil {
				require.ErrorIs(t, err, archive.ErrCorrupt)
				return
			}
			again = archive.AppendRecord(again, record)
		}
		require.True(t, bytes.Equal(raw, again))
	})
}

func FuzzOpen(f *testing.F) {
	file, _ := segment(f, [][]byte{[]byte("a"), []byte("b")})
	f.Add(file)
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := archive.Open(data)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		sum, err := s.Check()
		n := int64(0)
		for _, err := range s.Whole() {
			if err == nil {
				n++
			}
		}
		if err == nil {
			require.Equal(t, sum.Records, n)
		}
	})
}

func FuzzUnpackRow(f *testing.F) {
	f.Add(archive.PackRow(archive.AppendRecord(nil, []byte("a"))))
	f.Fuzz(func(t *testing.T, packed []byte) {
		raw, err := archive.UnpackRow(packed)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		for range archive.Records(raw) {
		}
	})
}

// FuzzParseManifest checks that an accepted manifest names objects inside the archive
// and survives another round.
func FuzzParseManifest(f *testing.F) {
	_, sum := segment(f, nil)
	b, err := archive.NewManifest(1, "s", "w", sum, time.Unix(0, 0)).Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := archive.ParseManifest(b)
		if err != nil {
			return
		}
		require.NotContains(t, m.Name, "..\x2f")
		encoded, err := m.Encode()
		require.NoError(t, err)
		_, err = archive.ParseManifest(encoded)
		require.NoError(t, err)
	})
}
