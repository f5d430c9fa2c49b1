package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/schema"
)

// connectTimeout bounds one attempt to reach Postgres: with a firewall that drops
// packets it would otherwise take minutes.
const connectTimeout = 10 * time.Second

// Database opens the pool that the configuration names: DATABASE_URL, or the
// server of a `weir dev` or `weir demo` that runs beside this process.
func (c Config) Database(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	url := c.DatabaseURL
	if url == "" {
		running, ok := devpg.Running(c.Home)
		if !ok {
			return nil, errors.New("DATABASE_URL is not set and no `weir dev` or `weir demo` runs here: set it, " +
				"for example DATABASE_URL=postgres://user:password@localhost:5432/weir")
		}
		url = running
	}
	return c.OpenPool(ctx, url, connections)
}

// OpenPool opens a pool and connects once, so that a wrong URL is reported
// immediately in one sentence. Through a transaction pooler it uses no named
// prepared statements: the next transaction may use another session.
func (c Config) OpenPool(ctx context.Context, raw string, connections int32) (*pgxpool.Pool, error) {
	return c.openPool(ctx, "DATABASE_URL", raw, connections, func(*pgxpool.Config) {})
}

func parseDatabase(variable, raw string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: expected postgres://user:password@host:5432/database, "+
			"special characters of the password as %%40 and so on, received %s",
			variable, redact(raw))
	}
	return cfg, nil
}

// openPool is OpenPool with the URL of a variable, and may change how connections are made.
func (c Config) openPool(
	ctx context.Context, variable, raw string, connections int32, change func(*pgxpool.Config),
) (*pgxpool.Pool, error) {
	cfg, err := parseDatabase(variable, raw)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = max(cfg.MaxConns, connections)
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	if c.pooled() {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "weir"
	}
	cfg.AfterConnect = schema.ApplySettings
	change(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		if ctx.Err() != nil { // stopped while it connected
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s does not lead to a database: %s", variable, Sentence(err))
	}
	return pool, nil
}

// Sentence returns an error on one line and without repeated lines. A failed
// connection has one line per address.
func Sentence(err error) string {
	var parts []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(parts, line) {
			parts = append(parts, line)
		}
	}
	return strings.ReplaceAll(strings.Join(parts, "; "), ":; ", ": ")
}

// Migrated returns a pool on a database that has this binary's schema.
func (c Config) Migrated(ctx context.Context) (*pgxpool.Pool, error) {
	pool, err := c.Database(ctx, c.Connections())
	if err != nil {
		return nil, err
	}
	check := schema.Check
	if c.more {
		check = schema.Migrate
	}
	if err := check(ctx, pool, tables(c.features)...); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// redact hides the password of a URL.
func redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" { // "host=… password=…" parses as a path
		return "something that is no URL"
	}
	query := u.Query()
	for name := range query {
		if strings.Contains(name, "password") {
			query.Set(name, "xxxxx")
		}
	}
	u.RawQuery = query.Encode()
	return u.Redacted()
}
