package retry_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/retry"
)

func TestSleepEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, retry.Sleep(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, retry.Sleep(ctx, time.Hour), context.DeadlineExceeded)
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}

// TestServersRequestWaits shows that servers can request waits in seconds or as
// a date, and that an invalid value requests none.
func TestServersRequestWaits(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for raw, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0": 0, "-5": 0, "0.5": 500 * time.Millisecond, "99999999999999999999": 24 * time.Hour, "Inf": 24 * time.Hour,
		now.Add(time.Minute).Format(http.TimeFormat): time.Minute, now.Add(-time.Minute).Format(http.TimeFormat): 0,
		now.AddDate(1, 0, 0).Format(http.TimeFormat): 24 * time.Hour,
	} {
		wait, ok := retry.After(http.Header{"Retry-After": {raw}}, now)
		require.True(t, ok, raw)
		require.Equal(t, want, wait, raw)
	}
	for _, raw := range []string{"", "soon", "NaN", "5 s"} {
		_, ok := retry.After(http.Header{"Retry-After": {raw}}, now)
		require.False(t, ok, raw)
	}
}
