package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/web"
	"github.com/weir-social/weir/workers"
)

// parts is what one process runs: the same pool, log and metrics for each.
type parts struct {
	cfg     config
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *prometheus.Registry
	tracer  trace.Tracer
	owner   string // names this process in leases and jobs
}

// owner names this process in leases and jobs.
func owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%d", host, os.Getpid(), time.Now().UnixMilli())
}

// userAgent tells the services who asks.
const userAgent = "weir (+https://github.com/weir-social/weir)"

// consume reads the stream until ctx ends.
func (p parts) consume(ctx context.Context) error {
	if err := p.firstWatches(ctx); err != nil {
		return err
	}
	now, err := schema.FollowedAccounts(ctx, p.pool)
	if err != nil {
		return err
	}
	followed := &follows{}
	source, err := jetstream.New(jetstream.Config{
		Endpoints:  p.cfg.Jetstream,
		Filter:     followed.take(now, p.cfg.Collections),
		Compress:   p.cfg.Compress,
		Dictionary: p.dictionary,
		Wanted:     p.wanted(),
		Logger:     p.log,
		Registerer: p.metrics,
		UserAgent:  userAgent,
	})
	if err != nil {
		return err
	}
	c, err := p.consumer(consumer.Config{
		Stream: p.cfg.Stream, Wire: "jetstream-v1", Source: source, FilterHash: source.FilterHash, Follows: followed.includes,
		Start: p.cfg.start(), BatchEvents: p.cfg.BatchEvents, BatchEvery: p.cfg.BatchEvery, BufferBytes: p.cfg.BufferBytes,
		LeaseTTL: p.cfg.LeaseTTL, GapThreshold: p.cfg.GapThreshold, Depth: p.depth, MaxDepth: p.cfg.QueueLimit,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	g.Go(func() error { return p.keep(ctx, followed, source) })
	g.Go(func() error {
		defer stop()
		return c.Run(ctx)
	})
	return g.Wait()
}

// consumer fills in what every source shares.
func (p parts) consumer(cfg consumer.Config) (*consumer.Consumer, error) {
	queue, err := workers.Queue(p.pool, p.log)
	if err != nil {
		return nil, err
	}
	cfg.Pool, cfg.Enqueue, cfg.Wanted = p.pool, workers.Enqueue(queue), p.wanted()
	cfg.Owner, cfg.Logger, cfg.Registerer, cfg.Tracer = p.owner, p.log, p.metrics, p.tracer
	return consumer.New(cfg)
}

// depth counts the jobs that wait for what the stream brings.
func (p parts) depth(ctx context.Context, most int) (int, error) {
	return schema.QueueDepth(ctx, p.pool, jobs.QueueProcess, most)
}

// wanted answers which collections are stored.
func (p parts) wanted() func(string) bool {
	return func(collection string) bool { return slices.Contains(p.cfg.Collections, collection) }
}

// dictionary is the zstd dictionary: from the database, or from its URL at the
// first use.
func (p parts) dictionary(ctx context.Context) ([]byte, error) {
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
	if err := schema.KeepDictionary(ctx, p.pool, p.cfg.DictionarySHA256, p.cfg.DictionaryURL, fetched, time.Now()); err != nil {
		p.log.Warn("dictionary_not_kept", "cause", err)
	}
	return fetched, nil
}

// work runs the workers until ctx ends and the running jobs are done: all of
// them, or those alone that project posts.
func (p parts) work(ctx context.Context, processOnly bool) error {
	api, err := p.bluesky()
	if err != nil {
		return err
	}
	var keep *workers.Retention
	if p.cfg.Keep > 0 {
		keep = &workers.Retention{Window: p.cfg.Keep}
	}
	hook, err := p.cfg.webhook()
	if err != nil {
		return err
	}
	client, err := workers.New(workers.Config{
		Limits: p.cfg.limits(), AlertEvery: p.cfg.AlertEvery, Webhook: hook,
		Keep: keep, ProcessOnly: processOnly, Bluesky: api, Backfill: p.cfg.BackfillWorkers, Window: p.cfg.BackfillWindow, SyncEvery: p.cfg.SyncEvery, FromPDS: p.cfg.BackfillFrom == "pds",
		Pool: p.pool, ID: p.owner, Process: p.cfg.Workers, JobTimeout: p.cfg.JobTimeout, RescueAfter: p.cfg.RescueAfter,
		Logger: p.log, Registerer: p.metrics, Tracer: p.tracer,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return fmt.Errorf("start the workers: %w", err)
	}
	<-client.Stopped()
	return nil
}

// serve answers for the page and the API on l until ctx ends.
func (p parts) serve(ctx context.Context, l net.Listener) error {
	handler, err := web.Handler(web.Config{DB: p.pool, Now: time.Now, ImageBase: p.cfg.ImageBase, Title: "Weir", Logger: p.log})
	if err != nil {
		return err
	}
	if err := p.answer(ctx, l, handler, 30*time.Second); err != nil {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// answer serves HTTP on l until ctx ends.
func (p parts) answer(ctx context.Context, l net.Listener, handler http.Handler, within time.Duration) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second, // a client that sends its request drop by drop
		WriteTimeout:      within,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(p.log.Handler(), slog.LevelWarn),
	}
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

func (c config) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", c.Listen, err)
	}
	return l, nil
}
