package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestStartRetriesBrokenConnection checks that only transient errors are retried.
func TestStartRetriesBrokenConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := App{log: slog.New(slog.DiscardHandler)}
		tries, wrong := 0, errors.New("wrong")
		step := func(context.Context) error {
			if tries++; tries < 3 {
				return fmt.Errorf("read the followed accounts: %w", io.ErrUnexpectedEOF)
			}
			return nil
		}
		require.NoError(t, p.retryTransient(t.Context(), step))
		require.Equal(t, 3, tries)
		require.ErrorIs(t, p.retryTransient(t.Context(), func(context.Context) error { return wrong }), wrong)
	})
}
