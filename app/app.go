// Package app assembles a process of Weir: it reads the configuration, opens the database, and
// runs the consumers, the workers, the page and the operators' listener, separately or
// together. The logic is in the packages that it connects.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

//go:generate go test -count=1 -run TestConfigurationIsDocumented . -update

// App is one process: its configuration, and the pool, log and metrics that its roles share.
type App struct {
	cfg     Config
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *prometheus.Registry
	tracer  trace.Tracer
	owner   string // names this process in leases and jobs
	stored  collection.Registry

	signatures *signatures
	liveness   *liveness // nil: not started by systemd

	parts       parts
	projections schema.Projections
	tools       []ServedTool
}

// owner returns a unique name for this process.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%d", host, os.Getpid(), time.Now().UnixMilli())
}

// storage returns where the events of accounts are stored. stream names the stream that brings them; empty: none.
func (p App) storage(stream string, follows func(did string) bool) (consumer.Storage, error) {
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return consumer.Storage{}, err
	}
	return consumer.Storage{
		Pool: p.pool, Enqueue: p.projections.Enqueue(queue, stream), Resync: workers.EnqueueResyncs(queue), Projections: p.projections,
		Hooks: p.parts.Hooks, Wanted: p.stored.Stores, Label: p.stored.Label, Follows: follows, Logger: p.log, Tracer: p.tracer,
	}, nil
}

// consumer returns a consumer, and sets the fields that are the same for every
// source.
func (p App) consumer(cfg consumer.Config) (*consumer.Consumer, error) {
	storage, err := p.storage(cfg.Stream, cfg.Follows)
	if err != nil {
		return nil, err
	}
	if storage.Frames = cfg.Frames; cfg.Frames == nil {
		storage.Frames = p.parts.frames(cfg.Follows)
	}
	cfg.Storage = storage
	leased := cfg.Leased
	cfg.Leased = func(ctx context.Context) error {
		err := p.projections.Check(ctx, p.pool)
		if err == nil && leased != nil {
			err = leased(ctx)
		}
		return err
	}
	cfg.Owner, cfg.Keep = p.owner, p.postRetention()
	return consumer.New(cfg)
}

// depth counts up to most waiting jobs of the projections' deepest queue. If more events than
// jobs wait as dead letters, it counts those instead.
func (p App) depth(ctx context.Context, most int) (int, error) {
	jobs, err := schema.DeepestQueue(ctx, p.pool, p.projections.AllQueues(), most)
	if err != nil {
		return 0, err
	}
	events, err := schema.WaitingDeadLetters(ctx, p.pool, most)
	return max(jobs, events), err
}

// Retention returns how long the records of a collection are kept, 0 for ever, and
// whether they are stored at all.
func (p App) Retention(name string) (retention time.Duration, stored bool) {
	e, ok := p.stored.Find(name)
	return e.Retention, ok
}

// postRetention returns how long posts are kept; 0: for ever. It also applies if posts are no
// longer stored.
func (p App) postRetention() time.Duration {
	posts, _ := p.stored.Find(schema.PostCollection)
	return posts.Retention
}

// Work runs the workers of the given queues, or of all queues, until ctx ends and
// the running jobs are done.
func (p App) Work(ctx context.Context, queues ...string) error {
	return p.workers(ctx, workers.Config{Processing: workers.Processing{Queues: queues}})
}

// workers runs the workers of cfg until ctx ends and the running jobs are done.
func (p App) workers(ctx context.Context, cfg workers.Config) error {
	api, err := p.Bluesky(nil)
	if err != nil {
		return err
	}
	keep, err := p.retention()
	if err != nil {
		return err
	}
	cfg.Shared, cfg.Tracer, cfg.ID, cfg.PollOnly = p.shared(api), p.tracer, p.owner, p.cfg.pooled()
	cfg.Keep, cfg.ReadRepository = &keep, p.readRepository
	if _, err := p.wires(feature.Decoding{Wanted: p.stored.Stores}); err != nil {
		return err
	}
	cfg.Retry = p.retryDeadLetters
	cfg.Audits, cfg.Limits, cfg.AlertInterval = p.cfg.AuditInterval, p.cfg.Limits(), p.cfg.AlertInterval
	cfg.Health, cfg.Features = p.parts.Health, p.parts.workers
	if cfg.Webhook, err = p.cfg.webhook(); err != nil {
		return err
	}
	cfg.History = workers.HistoryLimits{Records: p.cfg.HistoryRecords, Bytes: p.cfg.HistoryBytes}
	cfg.Process, cfg.RescueAfter = p.cfg.Workers, p.cfg.RescueAfter
	if cfg.Network, err = p.network(); err != nil {
		return err
	}
	cfg.Backfill, cfg.Window = p.cfg.BackfillWorkers, p.cfg.BackfillWindow
	cfg.SyncInterval, cfg.FromPDS, cfg.Stopping = p.cfg.SyncInterval, p.cfg.BackfillFrom == "pds", ctx.Done()
	owns, err := schema.OwnsTables(ctx, p.pool)
	if err != nil {
		return err
	}
	if cfg.KeepIndexes = !owns; cfg.KeepIndexes {
		p.log.Info("indexes_left_to_the_owner")
	}
	client, err := workers.New(cfg)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start the workers: %w", err)
	}
	p.liveness.add(RoleWorkers, checkPool(p.pool))
	<-client.Stopped()
	return nil
}

// shared returns what the workers have in common.
func (p App) shared(api *bluesky.Client) workers.Shared {
	return workers.Shared{Pool: p.pool, Logger: p.log, Registerer: p.metrics, Bluesky: api, Networks: p.parts.networks,
		Collections: p.stored, Projections: p.projections, Hooks: p.parts.Hooks, JobTimeout: p.cfg.JobTimeout}
}

// retention returns how long stored data is kept.
func (p App) retention() (workers.Retention, error) {
	return workers.Retention{Window: p.postRetention(), Forever: p.postRetention() == 0, Projected: p.parts.Keeps}.WithDefaults()
}

// retryDeadLetters processes dead-lettered events again, as far back as deletions are known.
func (p App) retryDeadLetters(ctx context.Context, deadLetters []schema.StoredDeadLetter) error {
	retry, err := p.requested(ctx)
	if err != nil {
		return err
	}
	return retry.Run(ctx, deadLetters)
}

// requested returns a Retry that stores events of the accounts that are followed now.
func (p App) requested(ctx context.Context) (*consumer.Retry, error) {
	keep, err := p.retention()
	if err != nil {
		return nil, err
	}
	wires, err := p.wires(feature.Decoding{Wanted: p.stored.Stores})
	if err != nil {
		return nil, err
	}
	// The expiry of tombstones uses this clock too.
	agreed, err := schema.EarliestTime(ctx, p.pool, time.Now())
	if err != nil {
		return nil, err
	}
	now, err := schema.FollowedAccounts(ctx, p.pool)
	if err != nil {
		return nil, err
	}
	followed := &follows{}
	followed.take(now)
	storage, err := p.storage("", followed.includes)
	storage.Frames = p.parts.frames(nil)
	return &consumer.Retry{Storage: storage, Wires: wires, Since: agreed.Add(-keep.Tombstones)}, err
}

// page returns the handler of the page and the API, which read one database and write another one.
// stopping ends its streams.
func (p App) page(read *pgxpool.Pool, stopping <-chan struct{}) (http.Handler, error) {
	proxies, err := p.cfg.proxies()
	if err != nil {
		return nil, err
	}
	return web.Handler(web.Config{
		DB: read, Primary: p.pool, Now: time.Now, Keep: web.KeepPages, Proxies: proxies, URL: p.cfg.URL,
		Parts: p.parts.Pages, Stopping: stopping,
		Logger: p.log,
	})
}

// Serve serves the page and the API on l until ctx ends.
func (p App) Serve(ctx context.Context, l net.Listener) error {
	read := p.pool
	if p.cfg.ReadDatabaseURL != "" {
		standby, err := p.cfg.standby(ctx, p.pool, p.log)
		if err != nil {
			return err
		}
		defer standby.Close()
		read = standby
	}
	handler, err := p.page(read, ctx.Done())
	if err != nil {
		return err
	}
	p.liveness.add(RolePage, checkPage(l))
	if err := p.serveHTTP(ctx, l, web.ServerConfig{Handler: handler, Connections: pageConnections}); err != nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// The connections that a listener accepts at once, and the time limit of a
// response. The page's slowest response waits two seconds for its turn and five for
// the database; the rest is for slow connections. A profile adds its own duration.
const (
	pageConnections = 1536 // a thousand of them may be streams
	opsConnections  = 256
	responseTimeout = 20 * time.Second
)

// serveHTTP serves HTTP on l until ctx ends.
func (p App) serveHTTP(ctx context.Context, l net.Listener, cfg web.ServerConfig) error {
	hosts, err := p.cfg.hosts()
	if err != nil {
		return err
	}
	cfg.Hosts, cfg.Within, cfg.Logger = hosts, responseTimeout, p.log
	server := web.NewServer(cfg)
	// The server closes its copy of the listener: another server may follow it.
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	l, err = net.FileListener(file)
	file.Close() // l has its own
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx) // remaining connections are closed
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	<-ended // Serve returns before the last responses are sent
	return nil
}

// ListenPage returns the listener of the page, on WEIR_LISTEN.
func (c Config) ListenPage() (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", c.Listen, err)
	}
	return l, nil
}

// Projections returns the projections of this program.
func (p App) Projections() schema.Projections { return p.projections }

// Config returns the configuration of the process.
func (p App) Config() Config { return p.cfg }

// Core returns what features know of the process.
func (p App) Core() feature.Core { return p.parts.core }

// Pool returns the process's connection pool.
func (p App) Pool() *pgxpool.Pool { return p.pool }

// Log returns the process's logger.
func (p App) Log() *slog.Logger { return p.log }

// Metrics returns the process's metrics registry.
func (p App) Metrics() *prometheus.Registry { return p.metrics }
