package app

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/schema"
)

// Examine runs every check that the configuration allows.
func Examine(ctx context.Context, within time.Duration) []doctor.Finding {
	versions := doctor.Passed("version", "weir "+Version()+", "+runtime.Version())
	const do = "correct the variable: docs/configuration.md lists them all"
	if err := CheckVariables(os.Environ()); err != nil {
		return []doctor.Finding{versions, doctor.Failed("configuration", do, err)}
	}
	cfg, err := ReadConfig()
	if err != nil {
		return []doctor.Finding{versions, doctor.Failed("configuration", do, err)}
	}
	pool := cfg.pool(within)
	if db, err := pool(); err == nil { // its check says why it cannot be opened
		if by, err := schema.CollectionChanges(ctx, db); err == nil {
			if now, err := cfg.changed(by); err == nil {
				cfg = now
			}
		}
	}
	if cfg.OfDemo() {
		demo := doctor.Passed("configuration", "this is a weir demo: its simulated network is not checked, and its Postgres is temporary")
		return append([]doctor.Finding{versions, demo}, doctor.Run(ctx, within, cfg.databaseCheck(within, pool, true))...)
	}
	return append([]doctor.Finding{versions, cfg.checkOpsListen()}, doctor.Run(ctx, within, cfg.checks(within, pool)...)...)
}

// checkOpsListen warns about valid settings that are unsafe.
func (c Config) checkOpsListen() doctor.Finding {
	host, _, err := net.SplitHostPort(c.OpsListen)
	ip := net.ParseIP(host)
	private := host == "localhost" || ip != nil && ip.IsLoopback()
	if err == nil && !private && c.OpsToken == "" {
		return doctor.Warned("configuration", "set WEIR_OPS_TOKEN, or WEIR_OPS_LISTEN to 127.0.0.1",
			"anyone who can reach WEIR_OPS_LISTEN can read metrics and dead letters")
	}
	return doctor.Passed("configuration", "every variable is valid; weir config prints them")
}

// checks returns the checks of a valid configuration.
func (c Config) checks(within time.Duration, pool func() (*pgxpool.Pool, error)) []doctor.Check {
	checks := []doctor.Check{c.databaseCheck(within, pool, false)}
	client, reads := &http.Client{}, New(c, nil)
	reads.cfg.Verify = VerifyWhole // nothing is stored
	for _, s := range reads.streams() {
		checks = append(checks, doctor.StreamCheck(doctor.Stream{Name: s.from.Name, Variable: s.from.Variable, Endpoints: s.Endpoints,
			Source: func(endpoint string) (consumer.Source, error) {
				return s.from.Open(socket.Config{Endpoints: []string{endpoint}, DialTimeout: within / 2, UserAgent: userAgent},
					consumer.Filter{Everyone: true})
			}}, within*3/4))
	}
	checks = append(checks,
		doctor.ServiceCheck(doctor.Service{Name: "appview", Variable: "WEIR_APPVIEW", UserAgent: userAgent, Client: client,
			URL: strings.TrimSuffix(c.AppView, "/") + "/xrpc/app.bsky.actor.getProfiles?actors=bsky.app"}),
		doctor.ServiceCheck(doctor.Service{Name: "directory", Variable: "WEIR_DIRECTORY", UserAgent: userAgent, Client: client, Lenient: true,
			URL: strings.TrimSuffix(c.Directory, "/") + "/_health"}))
	if c.Identifier != "" {
		checks = append(checks, doctor.Check{Name: "login", Run: c.login})
	}
	return append(checks, reads.parts.Checks...)
}

// pool returns a function that opens the database on its first call.
func (c Config) pool(within time.Duration) func() (*pgxpool.Pool, error) {
	return sync.OnceValues(func() (*pgxpool.Pool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), within/2)
		defer cancel()
		updates := c
		updates.Pooler = poolerTransaction // works with and without a pooler
		return updates.Database(ctx, 8)
	})
}

// databaseCheck returns the check of the database. throwaway: it is temporary.
func (c Config) databaseCheck(within time.Duration, pool func() (*pgxpool.Pool, error), throwaway bool) doctor.Check {
	stored := c.registry()
	posts, _ := stored.Find(schema.PostCollection)
	return doctor.DatabaseCheck(doctor.Database{
		Open: func(context.Context) (*pgxpool.Pool, error) { return pool() },
		Needs: doctor.Needs{Connections: int(c.Connections()) + 1, Statement: c.JobTimeout, Bytes: c.DatabaseLimit, // 1: the listener for follows
			// 4: the stream, expiry, an audit, a gap
			Throwaway: throwaway, Keep: posts.Retention, Projected: c.opened.Relations, Stores: stored.Stores,
			Transactions: c.Workers + c.BackfillWorkers + 4},
		Projections: schema.NewProjections(c.opened.Projections...), Migrated: Migrated, Stream: c.Stream,
		Pooled: c.pooled(),
		Within: within / 2,
	})
}

// login makes a call as the configured account.
func (c Config) login(ctx context.Context) []doctor.Finding {
	const someone = "did:plc:z72i7hdynmk6r22z27h6tvur" // bsky.app: the account need not exist
	const do = "correct WEIR_IDENTIFIER, WEIR_APP_PASSWORD or WEIR_PDS; an app password is made in Bluesky's settings"
	api, err := bluesky.New(bluesky.Config{AppView: c.AppView, Directory: c.Directory, Retries: []time.Duration{}, UserAgent: userAgent,
		Logger: slog.New(slog.DiscardHandler), Login: &bluesky.Login{PDS: c.PDS, Identifier: c.Identifier, Password: c.AppPassword}})
	if err != nil {
		return []doctor.Finding{doctor.Failed("login", do, err)}
	}
	if _, err := api.Profiles(ctx, []string{someone}); err != nil {
		return []doctor.Finding{doctor.Failed("login", do, err)}
	}
	return []doctor.Finding{doctor.Passed("login", "the app password is accepted")}
}
