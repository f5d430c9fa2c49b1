package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// What the last notification of an alert reported.
const (
	NotifiedFired    = "fired"
	NotifiedResolved = "resolved"
)

// Alert is a condition over time. It is pending until FiredAt, firing until
// ResolvedAt, and then resolved. If it never fires, it ends when the condition
// ends.
type Alert struct {
	Name         string
	Component    string // the stream or queue; empty: all of Weir
	Severity     string
	Message      string // what is wrong
	Hint         string // what to look at first
	Since        time.Time
	SeenAt       time.Time
	FiredAt      *time.Time
	ResolvedAt   *time.Time
	LastNotified string // "", NotifiedFired or NotifiedResolved
}

// LockAlerts reads all alerts, ordered by name, and locks the table against other
// writers until the transaction ends.
func LockAlerts(ctx context.Context, tx pgx.Tx) ([]Alert, error) {
	if _, err := tx.Exec(ctx, `LOCK TABLE alerts IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return nil, fmt.Errorf("lock the alerts: %w", err)
	}
	const sql = `
SELECT name          AS name,
       component     AS component,
       severity      AS severity,
       message       AS message,
       hint          AS hint,
       since         AS since,
       seen_at       AS seen_at,
       fired_at      AS fired_at,
       resolved_at   AS resolved_at,
       last_notified AS last_notified
FROM alerts
ORDER BY name, component`
	return schema.All(ctx, tx, "read the alerts", pgx.RowToStructByName[Alert], sql)
}

// StoreAlerts inserts or replaces alerts.
func StoreAlerts(ctx context.Context, tx pgx.Tx, alerts []Alert) error {
	const sql = `
INSERT INTO alerts (name, component, severity, message, hint, since, seen_at, fired_at, resolved_at, last_notified)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name, component) DO UPDATE
SET severity      = excluded.severity,
    message       = excluded.message,
    hint          = excluded.hint,
    since         = excluded.since,
    seen_at       = excluded.seen_at,
    fired_at      = excluded.fired_at,
    resolved_at   = excluded.resolved_at,
    last_notified = excluded.last_notified`
	q := &pgx.Batch{}
	for _, a := range alerts {
		q.Queue(sql, a.Name, a.Component, a.Severity, schema.Text(a.Message), schema.Text(a.Hint), a.Since, a.SeenAt, a.FiredAt, a.ResolvedAt,
			a.LastNotified)
	}
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("store the alerts: %w", err)
	}
	return nil
}
