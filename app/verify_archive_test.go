package app

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/archive/dir"
	"github.com/weir-social/weir/consumer"
)

// TestVerifyAcceptsWhatIsArchived checks that a frame with an event that cannot be read
// beside one that can is no corruption, and that a frame without a readable one is.
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
		m := archive.NewManifest(number, "s", "toy", sum, time.Now())
		require.NoError(t, store.Put(t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
		return verifySegment(t.Context(), store, m, wires)
	}
	require.NoError(t, verify(1, "ok", "oxo"))
	require.ErrorIs(t, verify(2, "ok", "x"), archive.ErrCorrupt)
}
