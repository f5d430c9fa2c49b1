package archive_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
)

// FuzzRecords checks that all accepted input is framed as by AppendRecord.
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

// FuzzParseManifest checks that an accepted manifest names objects inside the archive and is the
// same after it is encoded and parsed again.
func FuzzParseManifest(f *testing.F) {
	_, sum := segment(f, nil)
	b, err := archive.NewManifest(1, "s", "w", sum, time.Unix(0, 0), time.Unix(0, 0)).Encode()
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

// FuzzVersionOf checks that every accepted name is the name of a version, and has only one
// spelling.
func FuzzVersionOf(f *testing.F) {
	f.Add("s/2026-01-01/000000000001-0123456789abcdef.json")
	f.Add("s/2026-01-01/000000000001-0123456789abcdef.2.json")
	f.Add("a.01.json")
	f.Fuzz(func(t *testing.T, name string) {
		segment, version, ok := archive.VersionOf(name)
		if !ok {
			return
		}
		require.True(t, archive.IsManifest(name))
		again := segment + ".json"
		if version > 0 {
			again = fmt.Sprintf("%s.%d.json", segment, version)
		}
		require.Equal(t, name, again)
	})
}

// FuzzParseAuthors checks that all accepted input is encoded unchanged.
func FuzzParseAuthors(f *testing.F) {
	f.Add(archive.EncodeAuthors([]int64{1, 1<<40 - 1}))
	f.Add(archive.EncodeAuthors(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		authors, err := archive.ParseAuthors(b)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		require.True(t, bytes.Equal(b, archive.EncodeAuthors(authors)))
	})
}

// FuzzParseForgotten names each list after its content. An accepted list names accounts and times.
func FuzzParseForgotten(f *testing.F) {
	f.Add([]byte("{\"did\":\"did:plc:a\",\"until\":\"2026-01-01T00:00:00Z\",\"reason\":\"deleted\"}\n"))
	f.Add([]byte("{\"did\":\"did:plc:a\"}\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := archive.ParseForgotten("forgotten/"+strings.Repeat("0", 32)+".forgotten.jsonl", b)
		require.ErrorIs(t, err, archive.ErrCorrupt)
		sum := sha256.Sum256(b)
		list, err := archive.ParseForgotten(fmt.Sprintf("forgotten/%x.forgotten.jsonl", sum[:16]), b)
		if err != nil {
			require.ErrorIs(t, err, archive.ErrCorrupt)
			return
		}
		require.GreaterOrEqual(t, bytes.Count(b, []byte("\n"))+1, len(list))
		for _, one := range list {
			require.NotEmpty(t, one.DID)
			require.False(t, one.Until.IsZero())
		}
	})
}
