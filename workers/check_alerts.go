package workers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/jobs"
)

// CheckAlerts stores the state of every /health condition in the table alerts,
// and enqueues a message when an alert fires and when it is resolved. The
// message is enqueued in the transaction that changes the state, under the
// table's lock, so each change has one job however many workers check. Checking
// again without a change does nothing.
type CheckAlerts struct {
	river.WorkerDefaults[jobs.CheckAlerts]
	Shared
	Alerting
	now func() time.Time
}

// Work checks once.
func (w *CheckAlerts) Work(ctx context.Context, _ *river.Job[jobs.CheckAlerts]) error {
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		alerts, err := health.LockAlerts(ctx, tx)
		if err != nil {
			return err
		}
		now := w.now()
		report, err := health.Read(ctx, tx, now, w.Limits, w.Health...)
		if err != nil {
			return err
		}
		clampTimes(alerts, now)
		alerts = update(alerts, report.Conditions, now)
		var messages []river.InsertManyParams
		for i := range alerts {
			if message, due := pendingMessage(&alerts[i]); due && w.Webhook != nil {
				alerts[i].LastNotified = notifiedState(message)
				messages = append(messages, river.InsertManyParams{Args: message})
				JobLog(ctx, w.Logger).Warn("alert", "name", message.Name, "component", message.Component, "message", message.Message, "resolved",
					message.Resolved)
			}
		}
		RowLog(ctx).Info("alerts_checked", "conditions", named(report.Conditions), "messages", len(messages))
		if err := health.StoreAlerts(ctx, tx, alerts); err != nil || len(messages) == 0 {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertManyTx(ctx, tx, messages); err != nil {
			return fmt.Errorf("enqueue %s: %w", jobs.SendAlert{}.Kind(), err)
		}
		return nil
	})
}

// named returns the names of conditions, each once.
func named(conditions []health.Condition) []string {
	names := make([]string, len(conditions))
	for i, c := range conditions {
		names[i] = c.Name
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// clampTimes moves times in the future back to now. Without it, a clock that was
// ahead would delay an alert from firing or from being resolved.
func clampTimes(alerts []health.Alert, now time.Time) {
	for i := range alerts {
		for _, at := range []*time.Time{&alerts[i].Since, &alerts[i].SeenAt} {
			if at.After(now) {
				*at = now
			}
		}
	}
}

// update returns the alerts given the conditions that hold now.
func update(alerts []health.Alert, conditions []health.Condition, now time.Time) []health.Alert {
	type key struct{ name, component string }
	at := map[key]int{}
	for i, a := range alerts {
		at[key{a.Name, a.Component}] = i
	}
	holds := map[key]bool{}
	for _, c := range conditions {
		k := key{c.Name, c.Component}
		i, there := at[k]
		if !there {
			i = len(alerts)
			alerts = append(alerts, health.Alert{Name: c.Name, Component: c.Component, ResolvedAt: &now})
			at[k] = i
		}
		setActive(&alerts[i], c, now)
		holds[k] = true
	}
	for i := range alerts {
		if !holds[key{alerts[i].Name, alerts[i].Component}] {
			setInactive(&alerts[i], now)
		}
	}
	return alerts
}

// setActive updates an alert whose condition holds. The alert fires when the
// condition has held long enough. A pending alert that was not checked for a
// while starts again.
func setActive(a *health.Alert, c health.Condition, now time.Time) {
	if a.ResolvedAt != nil || a.FiredAt == nil && now.Sub(a.SeenAt) > health.ResolveAfter {
		a.Since, a.FiredAt, a.ResolvedAt = now, nil, nil
	}
	a.SeenAt, a.Severity, a.Message, a.Hint = now, c.Severity, c.Message, c.Do
	if a.FiredAt == nil && now.Sub(a.Since) >= c.FireAfter {
		a.FiredAt = &now
	}
}

// setInactive updates an alert whose condition does not hold. A pending alert is
// resolved at once, a firing one when the condition has been absent long enough.
func setInactive(a *health.Alert, now time.Time) {
	if a.ResolvedAt == nil && (a.FiredAt == nil || now.Sub(a.SeenAt) >= health.ResolveAfter) {
		a.ResolvedAt = &now
	}
}

// pendingMessage returns the message about an alert that has not been sent. The
// resolution is sent only if the firing was.
func pendingMessage(a *health.Alert) (message jobs.SendAlert, due bool) {
	message = jobs.SendAlert{Name: a.Name, Severity: a.Severity, Component: a.Component, Message: a.Message, Hint: a.Hint, Since: a.Since}
	switch {
	case a.FiredAt == nil:
		return message, false
	case a.ResolvedAt == nil:
		message.At = *a.FiredAt
		return message, a.LastNotified != health.NotifiedFired
	}
	message.At, message.Resolved = *a.ResolvedAt, true
	return message, a.LastNotified == health.NotifiedFired
}

func notifiedState(message jobs.SendAlert) string {
	if message.Resolved {
		return health.NotifiedResolved
	}
	return health.NotifiedFired
}
