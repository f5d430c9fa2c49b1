package directory

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/schema"
)

// Health returns what the comparisons with relays add to the report of Weir's health: for each relay, that of the last
// day that was compared.
func Health() health.Feature {
	const (
		audits     = "relay_audits"
		missing    = "relay_audits_missing_events"
		incomplete = "relay_audits_incomplete"
		condition  = "WeirRelayAuditFails"
	)
	return health.Feature{
		Fields: []string{audits},
		Figures: []health.Figure{
			{
				Name: missing, Metric: missing, MetricOnly: true,
				Help: "Events that relays of Nostr had of the last compared day, and that had never been stored.",
			},
			{
				Name: incomplete, Metric: incomplete, MetricOnly: true,
				Help: "Relays of Nostr whose last day could not be compared completely. Expect zero.",
			},
		},
		Conditions: []health.Condition{{Name: condition, Severity: health.Warning, Do: "SELECT * FROM relay_audits WHERE problem <> ''",
			FireAfter: 3 * time.Hour}}, // it is tried again each hour
		Read: func(ctx context.Context, db schema.DB, _ time.Time) (health.Reading, error) {
			last, err := LastAudits(ctx, db)
			read := health.Reading{Fields: map[string]any{audits: last}, Values: map[string]float64{}, Messages: map[string]string{}}
			for _, a := range last {
				read.Values[missing] += float64(a.Missing)
				if a.Problem != "" {
					read.Values[incomplete]++
					read.Messages[condition+" "+a.Stream] = fmt.Sprintf("the relay's events of %s could not be compared completely: %s",
						a.Day.Format(time.DateOnly), a.Problem)
				}
			}
			return read, err
		},
	}
}
