package app

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A page waits five seconds for the database, and may have to try the standby first. Connections to
// the primary end after a while, so that a standby that has returned is read again.
const (
	standbyTimeout  = time.Second
	standbyLifetime = 30 * time.Second
)

// standby opens a pool of connections that are read only: to the hot standby of the configuration, or
// to the primary while the standby cannot be reached.
func (c Config) standby(ctx context.Context, primary *pgxpool.Pool, log *slog.Logger) (*pgxpool.Pool, error) {
	pool, err := c.openPool(ctx, "WEIR_READ_DATABASE_URL", c.ReadDatabaseURL, c.Connections(), func(cfg *pgxpool.Config) {
		cfg.MaxConnLifetime = standbyLifetime
		read, main := cfg.ConnConfig, primary.Config().ConnConfig
		read.ConnectTimeout = standbyTimeout
		read.RuntimeParams["default_transaction_read_only"] = "on"
		host, port := read.Host, read.Port
		read.Fallbacks = append(read.Fallbacks, &pgconn.FallbackConfig{Host: main.Host, Port: main.Port, TLSConfig: main.TLSConfig})
		read.Fallbacks = append(read.Fallbacks, main.Fallbacks...)
		settings := cfg.AfterConnect
		cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			var standby bool
			if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby); err != nil {
				return fmt.Errorf("ask whether the server is a standby: %w", err)
			}
			if !standby {
				log.Warn("standby_not_read", "host", host, "port", port, "reads",
					"the primary: the standby of WEIR_READ_DATABASE_URL cannot be reached, or is none")
			}
			return settings(ctx, conn)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("open the database that pages read: %w", err)
	}
	return pool, nil
}
