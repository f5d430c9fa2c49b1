package directory_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestRelayThatCannotBeComparedIsReported shows the last day of each relay in the report, and each relay whose last day
// could not be compared in the conditions and the metrics.
func TestRelayThatCannotBeComparedIsReported(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO relay_audits (stream, day, method, events, missing, stored, problem) VALUES
		('nostr:a', '2026-01-02', 'pages', 1, 2, 3, ''), ('nostr:a', '2026-01-01', 'pages', 1, 9, 3, 'older'),
		('nostr:b', '2026-01-02', 'pages', 1, 4, 3, 'slow'), ('nostr:c', '2026-01-02', 'pages', 1, 0, 0, 'away')`)
	r, err := health.Read(t.Context(), pool, time.Now(), health.Limits{}, directory.Health())
	require.NoError(t, err)
	fails := map[string]string{}
	for _, c := range r.Conditions {
		if c.Name == "WeirRelayAuditFails" {
			require.Equal(t, 3*time.Hour, c.FireAfter)
			fails[c.Component] = c.Message
		}
	}
	require.Equal(t, map[string]string{"nostr:b": "the relay's events of 2026-01-02 could not be compared completely: slow",
		"nostr:c": "the relay's events of 2026-01-02 could not be compared completely: away"}, fails)
	raw, err := json.Marshal(r)
	require.NoError(t, err)
	var report struct {
		RelayAudits []directory.Audit `json:"relay_audits"`
		Missing     *int              `json:"relay_audits_missing_events"`
	}
	require.NoError(t, json.Unmarshal(raw, &report))
	require.Len(t, report.RelayAudits, 3)
	require.Equal(t, directory.Audit{
		Stream: "nostr:b", Day: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), Method: "pages", Events: 1, Missing: 4, Stored: 3, Problem: "slow",
	}, report.RelayAudits[1])
	require.Nil(t, report.Missing, "it is a metric alone")

	registry := prometheus.NewRegistry()
	registry.MustRegister(health.NewCollector(pool, health.Limits{}, time.Minute, directory.Health()))
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		found[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	require.Equal(t, []float64{6, 2}, []float64{found["weir_relay_audits_missing_events"], found["weir_relay_audits_incomplete"]})
}
