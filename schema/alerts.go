package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What the last message about an alert said.
const (
	ToldFired    = "fired"
	ToldResolved = "resolved"
)

// Alert is a condition over time. It is pending until FiredAt, firing until
// ResolvedAt, and over from then on; one that never fired is over at once.
type Alert struct {
	Name       string
	About      string // the stream or queue; empty: the whole
	Severity   string
	Says       string // what holds
	Look       string // what to look at first
	Since      time.Time
	SeenAt     time.Time
	FiredAt    *time.Time
	ResolvedAt *time.Time
	Told       string // "", ToldFired or ToldResolved
}

// LockAlerts reads them all, by name, and keeps everybody else from changing
// them until the transaction ends.
func LockAlerts(ctx context.Context, tx pgx.Tx) ([]Alert, error) {
	if _, err := tx.Exec(ctx, `LOCK TABLE alerts IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return nil, fmt.Errorf("lock the alerts: %w", err)
	}
	const sql = `
SELECT name        AS name,
       about       AS about,
       severity    AS severity,
       says        AS says,
       look        AS look,
       since       AS since,
       seen_at     AS seen_at,
       fired_at    AS fired_at,
       resolved_at AS resolved_at,
       told        AS told
FROM alerts
ORDER BY name, about`
	return all(ctx, tx, "read the alerts", pgx.RowToStructByName[Alert], sql)
}

// KeepAlerts stores them as they are now.
func KeepAlerts(ctx context.Context, tx pgx.Tx, alerts []Alert) error {
	const sql = `
INSERT INTO alerts (name, about, severity, says, look, since, seen_at, fired_at, resolved_at, told)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name, about) DO UPDATE
SET severity    = excluded.severity,
    says        = excluded.says,
    look        = excluded.look,
    since       = excluded.since,
    seen_at     = excluded.seen_at,
    fired_at    = excluded.fired_at,
    resolved_at = excluded.resolved_at,
    told        = excluded.told`
	q := &pgx.Batch{}
	for _, a := range alerts {
		q.Queue(sql, a.Name, a.About, a.Severity, Text(a.Says), Text(a.Look), a.Since, a.SeenAt, a.FiredAt, a.ResolvedAt, a.Told)
	}
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("store the alerts: %w", err)
	}
	return nil
}
