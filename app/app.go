// Package app wires a process of Weir: it reads the configuration, opens the
// database, and runs the consumers, the workers, the page and the listener for
// operators, each alone or all together. It holds no rules of its own: those are
// in the packages that it connects.
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

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/web"
	"github.com/weir-social/weir/workers"
)

//go:generate env WEIR_WRITE_DOCS=1 go test -count=1 -run TestConfigurationIsDocumented .

// App is one process: the configuration, and the pool, log and metrics that its
// parts share.
type App struct {
	cfg     Config
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *prometheus.Registry
	tracer  trace.Tracer
	owner   string // names this process in leases and jobs
	stored  collection.Registry
	life    *life // nil: nobody asks

	projections *workers.Projections
	more        []func(workers.Bundle) // add the workers of further projections
}

// owner is a name that no other process has.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%d", host, os.Getpid(), time.Now().UnixMilli())
}

// userAgent tells the services who asks.
const userAgent = "weir (+https://github.com/weir-social/weir)"

// sourceCapabilities are those of the source that this binary reads: see source.
var sourceCapabilities = jetstream.Capabilities()

// source is the client of the stream.
func (p App) source(filter consumer.Filter, log *slog.Logger, metrics prometheus.Registerer) (consumer.Source, error) {
	return jetstream.New(jetstream.Config{
		Endpoints:  p.cfg.Jetstream,
		Filter:     filter,
		Compress:   p.cfg.Compress,
		Dictionary: p.dictionary,
		Wanted:     p.stored.Stores,
		Logger:     log,
		Registerer: metrics,
		UserAgent:  userAgent,
	})
}

// consumer fills in what every source shares.
func (p App) consumer(cfg consumer.Config) (*consumer.Consumer, error) {
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return nil, err
	}
	cfg.Pool, cfg.Enqueue, cfg.Projections, cfg.Wanted = p.pool, p.projections.Enqueue(queue, cfg.Stream), p.projections.Rows(), p.stored.Stores
	cfg.Label = p.stored.Label
	leased := cfg.Leased
	cfg.Leased = func(ctx context.Context) error {
		err := p.projections.Check(ctx, p.pool)
		if err == nil && leased != nil {
			err = leased(ctx)
		}
		return err
	}
	cfg.Owner, cfg.Logger, cfg.Tracer, cfg.Keep = p.owner, p.log, p.tracer, p.postRetention()
	return consumer.New(cfg)
}

// depth counts the jobs that wait for what the stream brings, in the queue of a
// projection that has most.
func (p App) depth(ctx context.Context, most int) (int, error) {
	return schema.DeepestQueue(ctx, p.pool, p.projections.Queues(), most)
}

// wires are the formats whose dead letters this binary reads, for one goroutine.
func (p App) wires() map[string]consumer.Wire {
	wires := map[string]consumer.Wire{}
	for _, wire := range []consumer.Wire{jetstream.Wire(p.stored.Stores)} {
		wires[wire.Name] = wire
	}
	return wires
}

// Retention is how long the records of a collection are kept, 0 for ever, and
// whether they are stored at all.
func (p App) Retention(name string) (retention time.Duration, stored bool) {
	e, ok := p.stored.Find(name)
	return e.Retention, ok
}

// postRetention is how long posts are kept; 0: for ever. Those that are stored
// stay where posts are not stored any more.
func (p App) postRetention() time.Duration {
	posts, _ := p.stored.Find(schema.PostCollection)
	return posts.Retention
}

// dictionary is the zstd dictionary: from the database, or from its URL at the
// first use.
func (p App) dictionary(ctx context.Context) ([]byte, error) {
	kept, err := schema.Dictionary(ctx, p.pool, p.cfg.DictionarySHA256)
	if err == nil {
		return kept, nil
	}
	if !errors.Is(err, schema.ErrNoRows) {
		return nil, err
	}
	fetched, err := jetstream.Dictionary(ctx, http.DefaultClient, p.cfg.DictionaryURL, p.cfg.DictionarySHA256)
	if err != nil {
		return nil, err
	}
	if err := schema.StoreDictionary(ctx, p.pool, p.cfg.DictionarySHA256, p.cfg.DictionaryURL, fetched, time.Now()); err != nil {
		p.log.Warn("dictionary_not_kept", "error", err)
	}
	return fetched, nil
}

// Work runs the workers until ctx ends and the running jobs are done: those of
// every queue, or of some.
func (p App) Work(ctx context.Context, queues ...string) error {
	return p.workers(ctx, workers.Config{Queues: queues})
}

// workers runs the workers that cfg chooses until ctx ends and the running jobs
// are done.
func (p App) workers(ctx context.Context, cfg workers.Config) error {
	api, err := p.Bluesky(nil)
	if err != nil {
		return err
	}
	keep, err := p.retention()
	if err != nil {
		return err
	}
	cfg.Keep, cfg.Collections = &keep, p.stored
	if cfg.Retry, err = p.retryDeadLetters(keep); err != nil {
		return err
	}
	cfg.Audit = workers.AuditPlan{Every: p.cfg.AuditInterval, Accounts: p.cfg.AuditAccounts}
	cfg.Limits, cfg.AlertInterval = p.cfg.Limits(), p.cfg.AlertInterval
	if cfg.Webhook, err = p.cfg.webhook(); err != nil {
		return err
	}
	cfg.Projections = p.projections
	cfg.More = func(b workers.Bundle) {
		for _, add := range p.more {
			add(b)
		}
	}
	cfg.Pool, cfg.ID, cfg.PollOnly, cfg.Logger, cfg.Registerer, cfg.Tracer = p.pool, p.owner, p.cfg.pooled(), p.log, p.metrics, p.tracer
	cfg.Process, cfg.JobTimeout, cfg.RescueAfter = p.cfg.Workers, p.cfg.JobTimeout, p.cfg.RescueAfter
	cfg.Bluesky, cfg.Backfill, cfg.Window = api, p.cfg.BackfillWorkers, p.cfg.BackfillWindow
	cfg.SyncInterval, cfg.FromPDS, cfg.Stopping = p.cfg.SyncInterval, p.cfg.BackfillFrom == "pds", ctx.Done()
	owns, err := ranking.OwnsTables(ctx, p.pool)
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
	p.life.tell(PartWorkers, connectable(p.pool))
	<-client.Stopped()
	return nil
}

// retention is how long what is stored stays.
func (p App) retention() (workers.Retention, error) {
	return workers.Retention{Window: p.postRetention(), Forever: p.postRetention() == 0}.WithDefaults()
}

// retryDeadLetters puts parked events through the consumer's own way once more, as
// far back as deletions are known.
func (p App) retryDeadLetters(keep workers.Retention) (func(context.Context, []schema.StoredDeadLetter) error, error) {
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, letters []schema.StoredDeadLetter) error {
		now, err := schema.FollowedAccounts(ctx, p.pool)
		if err != nil {
			return err
		}
		followed := &follows{}
		followed.take(schema.Shard{Followed: now}, nil)
		retry := consumer.Retry{
			Config: consumer.Config{Pool: p.pool, Enqueue: p.projections.Enqueue(queue, ""), Projections: p.projections.Rows(),
				Wanted: p.stored.Stores, Follows: followed.includes, Logger: p.log, Tracer: p.tracer},
			Wires: p.wires(),
		}
		// Tombstones expire by this clock too.
		agreed, err := schema.EarliestTime(ctx, p.pool, time.Now())
		if err != nil {
			return err
		}
		retry.Since = agreed.Add(-keep.Tombstones)
		return retry.Run(ctx, letters)
	}, nil
}

// page is the page and the API.
func (p App) page() (http.Handler, error) {
	return web.Handler(web.Config{DB: p.pool, Now: time.Now, ImageBase: p.cfg.ImageBase, Title: "Weir", Logger: p.log})
}

// Serve answers for the page and the API on l until ctx ends.
func (p App) Serve(ctx context.Context, l net.Listener) error {
	handler, err := p.page()
	if err != nil {
		return err
	}
	p.life.tell(PartPage, answering(l))
	if err := p.answer(ctx, l, handler, pageConnections); err != nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// How many connections a listener keeps at once, and how long an answer may
// take: the page's slowest waits two seconds for its turn and five for the
// database; the rest is for slow lines. A profile adds its own time.
const (
	pageConnections = 512
	opsConnections  = 256
	answerWithin    = 20 * time.Second
)

// answer serves HTTP on l until ctx ends.
func (p App) answer(ctx context.Context, l net.Listener, handler http.Handler, connections int) error {
	hosts, err := p.cfg.hosts()
	if err != nil {
		return err
	}
	server := web.NewServer(web.ServerConfig{Handler: handler, Hosts: hosts, Connections: connections, Within: answerWithin, Logger: p.log})
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		server.Shutdown(ctx) //nolint:errcheck // what is left is cut off
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c Config) ListenPage() (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", c.Listen, err)
	}
	return l, nil
}

// Projections are those of this program.
func (p App) Projections() *workers.Projections { return p.projections }

// Config is what the process was configured with.
func (p App) Config() Config { return p.cfg }

// Pool is the process's pool of connections.
func (p App) Pool() *pgxpool.Pool { return p.pool }

// Log is the process's log.
func (p App) Log() *slog.Logger { return p.log }

// Metrics is where the process counts.
func (p App) Metrics() *prometheus.Registry { return p.metrics }
