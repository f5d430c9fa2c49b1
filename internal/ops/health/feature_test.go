package health

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestFeaturesAreReported shows that features' figures are fields of the report and metrics, and
// that their conditions are reported like Weir's own.
func TestFeaturesAreReported(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	read := Reading{}
	feature := Feature{
		Figures: []Figure{{
			Name: "tiles", Metric: "tiles_laid", Help: "Tiles.",
		}, {Name: "age", Metric: "tiles_age_seconds", Help: "Age.", Optional: true},
			{Name: "hall.walls.cracks", Metric: "cracks", Help: "Cracks."}, {Name: "hall.doors", Metric: "doors", Help: "Doors."}},
		Conditions: []Condition{{Name: "WeirTilesBroken", Severity: Critical, Do: "look", FireAfter: time.Minute}},
		Read:       func(context.Context, schema.DB, time.Time) (Reading, error) { return read, nil },
	}
	fields := func(r Report) map[string]any {
		t.Helper()
		raw, err := json.Marshal(r)
		require.NoError(t, err)
		var all map[string]any
		require.NoError(t, json.Unmarshal(raw, &all))
		return all
	}
	report := func() (r Report) {
		t.Helper()
		r, err := Read(t.Context(), pool, time.Now(), Limits{}, feature)
		require.NoError(t, err)
		return r
	}
	metrics := func() map[string]float64 {
		t.Helper()
		registry := prometheus.NewRegistry()
		registry.MustRegister(NewCollector(pool, Limits{}, time.Minute, feature))
		families, err := registry.Gather()
		require.NoError(t, err)
		found := map[string]float64{}
		for _, f := range families {
			found[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
		}
		return found
	}
	require.Equal(t, slices.Sorted(maps.Keys(fields(report()))), slices.Sorted(maps.Keys(fields(Unreachable(errors.New("refused"), feature)))))
	all := fields(report())
	require.Equal(t, []any{0.0, nil}, []any{all["tiles"], all["age"]})
	require.Contains(t, all, "age")
	require.Contains(t, metrics(), "weir_tiles_laid")
	require.NotContains(t, metrics(), "weir_tiles_age_seconds")

	read = Reading{
		Values:   map[string]float64{"tiles": 3, "age": 1.5, "hall.walls.cracks": 7, "hall.doors": 2},
		Messages: map[string]string{"WeirTilesBroken": "3 <b> broken"},
	}
	r := report()
	all = fields(r)
	require.Equal(t, []any{3.0, 1.5}, []any{all["tiles"], all["age"]})
	require.Equal(t, map[string]any{"walls": map[string]any{"cracks": 7.0}, "doors": 2.0}, all["hall"])
	require.Equal(t, 3.0, metrics()["weir_tiles_laid"])
	require.Equal(t, 1.5, metrics()["weir_tiles_age_seconds"])
	require.Equal(t, Unhealthy, r.Status)
	require.Contains(t, r.Conditions, Condition{
		Name: "WeirTilesBroken", Severity: Critical, Message: "3 <b> broken", Do: "look", FireAfter: time.Minute,
	})

	feature.Read = func(context.Context, schema.DB, time.Time) (Reading, error) { return Reading{}, context.Canceled }
	_, err := Read(t.Context(), pool, time.Now(), Limits{}, feature)
	require.ErrorIs(t, err, context.Canceled)
}
