package workers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/schema"
)

// CheckAlerts follows every condition of /health in the table alerts, and
// enqueues a message when one begins to fire and when it is resolved. The message
// is enqueued in the transaction of the change, under the lock of the table:
// however many workers check, and wherever one dies, there is one job a change.
// Checking twice changes nothing the second time.
type CheckAlerts struct {
	river.WorkerDefaults[jobs.CheckAlerts]
	pool   *pgxpool.Pool
	log    *slog.Logger
	limits health.Limits
	tell   bool // this process has a webhook
	now    func() time.Time
}

// Work checks once.
func (w *CheckAlerts) Work(ctx context.Context, _ *river.Job[jobs.CheckAlerts]) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		alerts, err := schema.LockAlerts(ctx, tx)
		if err != nil {
			return err
		}
		now := w.now()
		report, err := health.Read(ctx, tx, now, w.limits)
		if err != nil {
			return err
		}
		past(alerts, now)
		alerts = follow(alerts, report.Conditions, now)
		var messages []river.InsertManyParams
		for i := range alerts {
			if message, due := news(&alerts[i]); due && w.tell {
				alerts[i].LastNotified = told(message)
				messages = append(messages, river.InsertManyParams{Args: message})
				jobLog(ctx, w.log).Warn("alert", "name", message.Name, "subject", message.Subject, "message", message.Message, "resolved", message.Resolved)
			}
		}
		rowLog(ctx).Info("alerts_checked", "conditions", named(report.Conditions), "told", len(messages))
		if err := schema.StoreAlerts(ctx, tx, alerts); err != nil || len(messages) == 0 {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertManyTx(ctx, tx, messages); err != nil {
			return fmt.Errorf("enqueue %s: %w", jobs.SendAlert{}.Kind(), err)
		}
		return nil
	})
}

// named are the names of conditions, each once.
func named(conditions []health.Condition) []string {
	names := make([]string, len(conditions))
	for i, c := range conditions {
		names[i] = c.Name
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// past dates nothing later than now: a clock that was ahead must not keep an
// alert from firing, or from ending, until its time comes.
func past(alerts []schema.Alert, now time.Time) {
	for i := range alerts {
		for _, at := range []*time.Time{&alerts[i].Since, &alerts[i].SeenAt} {
			if at.After(now) {
				*at = now
			}
		}
	}
}

// follow is what the alerts become now that these conditions hold, and no others.
func follow(alerts []schema.Alert, conditions []health.Condition, now time.Time) []schema.Alert {
	type key struct{ name, about string }
	at := map[key]int{}
	for i, a := range alerts {
		at[key{a.Name, a.Subject}] = i
	}
	holds := map[key]bool{}
	for _, c := range conditions {
		k := key{c.Name, c.Subject}
		i, known := at[k]
		if !known {
			i = len(alerts)
			alerts = append(alerts, schema.Alert{Name: c.Name, Subject: c.Subject, ResolvedAt: &now})
			at[k] = i
		}
		seen(&alerts[i], c, now)
		holds[k] = true
	}
	for i := range alerts {
		if !holds[key{alerts[i].Name, alerts[i].Subject}] {
			missed(&alerts[i], now)
		}
	}
	return alerts
}

// seen is what becomes of an alert whose condition holds: it fires when it has
// held for long enough. One that nobody looked after for a while begins anew.
func seen(a *schema.Alert, c health.Condition, now time.Time) {
	if a.ResolvedAt != nil || a.FiredAt == nil && now.Sub(a.SeenAt) > health.GoneFor {
		a.Since, a.FiredAt, a.ResolvedAt = now, nil, nil
	}
	a.SeenAt, a.Severity, a.Message, a.Hint = now, c.Severity, c.Message, c.Do
	if a.FiredAt == nil && now.Sub(a.Since) >= health.Held()[a.Name] {
		a.FiredAt = &now
	}
}

// missed is what becomes of an alert whose condition does not hold: a pending one
// is over, a firing one when it has been gone for long enough.
func missed(a *schema.Alert, now time.Time) {
	if a.ResolvedAt == nil && (a.FiredAt == nil || now.Sub(a.SeenAt) >= health.GoneFor) {
		a.ResolvedAt = &now
	}
}

// news is the message that nobody has sent yet about an alert. Somebody who was
// not told that it fired is not told that it is over.
func news(a *schema.Alert) (message jobs.SendAlert, due bool) {
	message = jobs.SendAlert{Name: a.Name, Severity: a.Severity, Subject: a.Subject, Message: a.Message, Hint: a.Hint, Since: a.Since}
	switch {
	case a.FiredAt == nil:
		return message, false
	case a.ResolvedAt == nil:
		message.At = *a.FiredAt
		return message, a.LastNotified != schema.NotifiedFired
	}
	message.At, message.Resolved = *a.ResolvedAt, true
	return message, a.LastNotified == schema.NotifiedFired
}

func told(message jobs.SendAlert) string {
	if message.Resolved {
		return schema.NotifiedResolved
	}
	return schema.NotifiedFired
}
