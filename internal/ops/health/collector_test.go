package health

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestLeaseInfoNamesHolder checks that a stream has one series of
// weir_stream_lease_info, however often the lease changes hands, and none while no
// process holds it.
func TestLeaseInfoNamesHolder(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(pool, Limits{}, time.Minute))
	holders := func() map[string]string {
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[string]string{}
		for _, f := range families {
			if f.GetName() != "weir_stream_lease_info" {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				require.Len(t, labels, 2)
				require.NotContains(t, found, labels["stream"])
				require.Equal(t, 1.0, m.GetGauge().GetValue())
				found[labels["stream"]] = labels["holder"]
			}
		}
		return found
	}
	take := func(stream, owner string) schema.Lease {
		lease, ok, err := schema.TakeLease(t.Context(), pool, stream, "test", owner, time.Hour)
		require.NoError(t, err)
		require.True(t, ok)
		return lease
	}
	require.Empty(t, holders())
	first := take("s", "host/1/1")
	take("s-2", "host/2/2")
	require.Equal(t, map[string]string{"s": "host/1/1", "s-2": "host/2/2"}, holders())
	require.NoError(t, first.Release(t.Context(), pool))
	require.Equal(t, map[string]string{"s-2": "host/2/2"}, holders())
	take("s", "host/3/3")
	require.Equal(t, map[string]string{"s": "host/3/3", "s-2": "host/2/2"}, holders())
	_, err := pool.Exec(t.Context(), `UPDATE streams SET lease_expires_at = now() - interval '1 second' WHERE name = 's'`)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"s-2": "host/2/2"}, holders(), "a dead process must not be reported as the holder")
}
