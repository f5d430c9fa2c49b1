package app

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/testing/devpg"
)

// WithServer runs f on a migrated Postgres that it starts before and stops after f.
func WithServer(ctx context.Context, cfg Config, options devpg.Options, f func(*pgxpool.Pool) error) error {
	options.Logger = cfg.Logger()
	server, err := devpg.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := server.Stop(stop); err != nil {
			options.Logger.Error("postgres_stop_failed", "error", err)
		}
	}()
	pool, err := Config{}.OpenPool(ctx, server.URL("weir"), cfg.Connections())
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := Migrate(ctx, pool); err != nil {
		return err
	}
	return f(pool)
}
