package recovery

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestVerifyAcceptsWhatIsArchived checks that a frame with a readable and an unreadable event is
// not corrupt, and that a frame without a readable one is.
func TestVerifyAcceptsWhatIsArchived(t *testing.T) {
	t.Parallel()
	store, err := dir.New(t.TempDir())
	require.NoError(t, err)
	wires := map[string]consumer.Wire{"toy": {Name: "toy", Decode: func(frame []byte, arrived time.Time, m *consumer.Message) {
		m.Reset(frame, arrived)
		for _, c := range frame {
			if c == 'x' {
				m.Malformed = append(m.Malformed, &consumer.Malformed{Cause: "x"})
			} else {
				m.Add()
			}
		}
	}}}
	verify := func(number int64, frames ...string) error {
		var file bytes.Buffer
		out, err := archive.NewWriter(&file)
		require.NoError(t, err)
		for _, frame := range frames {
			require.NoError(t, out.Add([]byte(frame)))
		}
		sum, err := out.Close()
		require.NoError(t, err)
		m := archive.NewManifest(number, "s", "toy", sum, time.Now(), time.Now())
		require.NoError(t, store.Put(t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
		return VerifySegment(t.Context(), store, m, wires)
	}
	require.NoError(t, verify(1, "ok", "oxo"))
	require.ErrorIs(t, verify(2, "ok", "x"), archive.ErrCorrupt)
}

// TestDamagedManifestIsAProblem shows that the other segments are still checked. An export and a
// rebuild would lack the manifest's segment, so they fail and name it. A file that is not part of
// the archive is no problem.
func TestDamagedManifestIsAProblem(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	store, err := dir.New(root)
	require.NoError(t, err)
	var names []string
	for number := range int64(3) {
		var file bytes.Buffer
		out, err := archive.NewWriter(&file)
		require.NoError(t, err)
		require.NoError(t, out.Add(fmt.Appendf(nil, `{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","time_us":17259111623%d,"kind":"identity",`+
			`"identity":{"did":"did:plc:eygmaihciaxprqvxpfvl6flk","seq":1,"time":"2024-09-09T10:00:00Z"}}`, 29308+number)))
		sum, err := out.Close()
		require.NoError(t, err)
		m := archive.NewManifest(1+number, "s", jetstream.Wire(nil).Name, sum, time.Now(), time.Now())
		require.NoError(t, store.Put(t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
		_, err = archive.PutManifest(t.Context(), store, m)
		require.NoError(t, err)
		names = append(names, m.ManifestName())
	}
	source, pool := sourceAt(store), schematest.New(t)
	require.NoError(t, os.WriteFile(filepath.Join(root, "s", "notes.json"), []byte("mine"), 0o600))
	check, err := source.Verify(t.Context(), pool)
	require.NoError(t, err)
	require.Empty(t, check.Problems)
	require.Equal(t, int64(3), check.Segments)
	require.NoError(t, source.Export(t.Context(), "", io.Discard))

	require.NoError(t, os.WriteFile(filepath.Join(root, names[1]), []byte("{"), 0o600))
	check, err = source.Verify(t.Context(), pool)
	require.NoError(t, err)
	require.Len(t, check.Problems, 1)
	require.Contains(t, check.Problems[0], names[1])
	require.Equal(t, int64(2), check.Segments)
	alone, err := source.Verify(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, check, alone)
	for _, err := range []error{source.Export(t.Context(), "", io.Discard), Rebuild{Source: source, Pool: pool}.Database(t.Context())} {
		require.ErrorIs(t, err, archive.ErrCorrupt)
		require.ErrorContains(t, err, names[1])
		require.ErrorContains(t, err, "restore it from a copy")
	}
}

// TestEmptyArchiveIsAnError shows that a wrong prefix, an empty bucket or a misspelt stream is not taken for an archive that was read.
func TestEmptyArchiveIsAnError(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	store, err := dir.New(root)
	require.NoError(t, err)
	source, pool := sourceAt(store), schematest.New(t)
	for _, err := range []error{source.Export(t.Context(), "", io.Discard), Rebuild{Source: source, Pool: pool}.Database(t.Context())} {
		require.ErrorContains(t, err, "there is no archive at "+store.String())
	}
	out, err := archive.NewWriter(io.Discard)
	require.NoError(t, err)
	sum, err := out.Close()
	require.NoError(t, err)
	_, err = archive.PutManifest(t.Context(), store, archive.NewManifest(1, "s", jetstream.Wire(nil).Name, sum, time.Now(), time.Now()))
	require.NoError(t, err)
	require.ErrorContains(t, source.Export(t.Context(), "other", io.Discard), "has no segment of stream other: it has s")
}
