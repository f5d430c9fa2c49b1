package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/caarlos0/env/v11"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/schema"
)

// config is every variable Weir reads, in the order of the README.
type config struct {
	// DatabaseURL is the Postgres to use, as a postgres:// URL.
	DatabaseURL string `env:"DATABASE_URL"`
	// Pooler says what stands before Postgres: none, or transaction for a pooler
	// that gives out a connection for a transaction, as PgBouncer can.
	Pooler string `env:"WEIR_POOLER" envDefault:"none"`

	// Jetstream lists the endpoints to read from, in order of preference.
	Jetstream []string `env:"WEIR_JETSTREAM" envDefault:"wss://jetstream2.us-west.bsky.network/subscribe,wss://jetstream2.us-east.bsky.network/subscribe,wss://jetstream1.us-west.bsky.network/subscribe,wss://jetstream1.us-east.bsky.network/subscribe"`
	// Stream names the row in streams: one name, one cursor, one consumer at work.
	Stream string `env:"WEIR_STREAM" envDefault:"jetstream"`
	// Sharding says what happens above ShardAccounts accounts: shards, network (one
	// stream of everyone's events, filtered here), or auto.
	Sharding string `env:"WEIR_SHARDING" envDefault:"auto"`
	// ShardAccounts is how many accounts one stream asks for, at most.
	ShardAccounts int `env:"WEIR_SHARD_ACCOUNTS" envDefault:"10000"`
	// Collections lists the collections to store.
	Collections []string `env:"WEIR_COLLECTIONS" envDefault:"app.bsky.feed.post"`
	// Start says where a stream without a position begins: tip or oldest.
	Start string `env:"WEIR_START" envDefault:"tip"`
	// Compress asks for zstd frames.
	Compress bool `env:"WEIR_COMPRESS" envDefault:"true"`
	// DictionaryURL is where the zstd dictionary comes from; it is kept in the database.
	DictionaryURL string `env:"WEIR_DICTIONARY_URL" envDefault:"https://raw.githubusercontent.com/bluesky-social/jetstream/main/pkg/models/zstd_dictionary"`
	// DictionarySHA256 pins it.
	DictionarySHA256 string `env:"WEIR_DICTIONARY_SHA256" envDefault:"b8d77b46933aceecbdd5275a01241efc985c970c78162b8150cf67a26522f70c"`

	// BatchEvents and BatchEvery close a batch, whichever comes first.
	BatchEvents int           `env:"WEIR_BATCH_EVENTS" envDefault:"500"`
	BatchEvery  time.Duration `env:"WEIR_BATCH_EVERY" envDefault:"100ms"`
	// BufferBytes bounds what is read and not yet stored.
	BufferBytes int64 `env:"WEIR_BUFFER_BYTES" envDefault:"16777216"`
	// LeaseTTL is how long a dead consumer keeps the next one waiting, at most.
	LeaseTTL time.Duration `env:"WEIR_LEASE_TTL" envDefault:"10s"`
	// GapThreshold is the shortest hole in a stream that is recorded as a gap
	// where the stream was known to be quiet. Elsewhere every hole is.
	GapThreshold time.Duration `env:"WEIR_GAP_THRESHOLD" envDefault:"5m"`

	// Workers is how many process_posts jobs run at once.
	Workers int `env:"WEIR_WORKERS" envDefault:"8"`
	// JobTimeout ends a job that takes longer.
	JobTimeout time.Duration `env:"WEIR_JOB_TIMEOUT" envDefault:"1m"`
	// RescueAfter is when the jobs of a killed process are taken up again.
	RescueAfter time.Duration `env:"WEIR_RESCUE_AFTER" envDefault:"5m"`

	// Watch lists whom to follow at the first start: the accounts that a handle or
	// DID follows, or the members of a list or starter pack. Afterwards the table
	// watches says it.
	Watch []string `env:"WEIR_WATCH"`
	// Keep is how long posts stay, and the shares of links that fewer than five share; 0: for ever,
	// also of accounts no longer followed. Deleted accounts go all the same.
	Keep time.Duration `env:"WEIR_KEEP" envDefault:"24h"`
	// SyncEvery is how often follow lists are read again.
	SyncEvery time.Duration `env:"WEIR_SYNC_EVERY" envDefault:"1h"`
	// BackfillWindow is how far back a new account's feed is read.
	BackfillWindow time.Duration `env:"WEIR_BACKFILL_WINDOW" envDefault:"24h"`
	// BackfillFrom is where feeds are read: appview, or pds for the accounts' own servers.
	BackfillFrom string `env:"WEIR_BACKFILL_FROM" envDefault:"appview"`
	// BackfillWorkers is how many feeds are read at once, in this process.
	BackfillWorkers int `env:"WEIR_BACKFILL_WORKERS" envDefault:"4"`
	// AuditEvery is how often posts are compared with their authors' own repositories; 0: never.
	AuditEvery time.Duration `env:"WEIR_AUDIT_EVERY" envDefault:"24h"`
	// AuditAccounts is of how many accounts, by chance.
	AuditAccounts int `env:"WEIR_AUDIT_ACCOUNTS" envDefault:"20"`
	// AppView and Directory are the services that are asked.
	AppView   string `env:"WEIR_APPVIEW" envDefault:"https://public.api.bsky.app"`
	Directory string `env:"WEIR_DIRECTORY" envDefault:"https://plc.directory"`
	// PDS, Identifier and AppPassword log in; without them nothing is needed.
	PDS         string `env:"WEIR_PDS" envDefault:"https://bsky.social"`
	Identifier  string `env:"WEIR_IDENTIFIER"`
	AppPassword string `env:"WEIR_APP_PASSWORD" secret:"true"`
	// Calls and CallSpacing bound the calls to these services, over all processes.
	Calls       int           `env:"WEIR_CALLS" envDefault:"10"`
	CallSpacing time.Duration `env:"WEIR_CALL_SPACING" envDefault:"100ms"`

	// Listen is the address of the page and the API.
	Listen string `env:"WEIR_LISTEN" envDefault:"127.0.0.1:8080"`
	// Hosts are the names that both addresses are asked by, besides localhost and
	// the addresses themselves: those of a reverse proxy, above all.
	Hosts []string `env:"WEIR_HOSTS"`
	// OpsListen is the address of health, readiness, metrics, dead letters and profiles; off: none.
	OpsListen string `env:"WEIR_OPS_LISTEN" envDefault:"127.0.0.1:8081"`
	// OpsToken is asked for by /metrics, /deadletters and /debug/pprof, as
	// Authorization: Bearer or a browser's password; without it there is no pprof.
	OpsToken string `env:"WEIR_OPS_TOKEN" secret:"true"`
	// LagLimit is how far behind the stream is critical: a consumer is not ready any more.
	LagLimit time.Duration `env:"WEIR_LAG_LIMIT" envDefault:"5m"`
	// QueueLimit is how many jobs of a queue may wait before it is said, and of
	// process_posts before the stream is left alone.
	QueueLimit int `env:"WEIR_QUEUE_LIMIT" envDefault:"10000"`
	// DatabaseLimit is how many bytes the database may have before it is said.
	DatabaseLimit int64 `env:"WEIR_DATABASE_LIMIT" envDefault:"3221225472"`
	// AlertWebhook is where alerts are sent, a secret; AlertFormat is slack, discord
	// or json, by the host when empty; AlertEvery is how often what is not well is looked for.
	AlertWebhook string        `env:"WEIR_ALERT_WEBHOOK" secret:"true"`
	AlertFormat  string        `env:"WEIR_ALERT_FORMAT"`
	AlertEvery   time.Duration `env:"WEIR_ALERT_EVERY" envDefault:"30s"`
	// ImageBase is where the pictures of cards come from; empty: no pictures.
	ImageBase string `env:"WEIR_IMAGE_BASE" envDefault:"https://cdn.bsky.app/img/feed_thumbnail/plain/{did}/{cid}@jpeg"`

	// LogLevel is debug, info, warn or error; LogFormat is json or text.
	LogLevel  slog.Level `env:"WEIR_LOG_LEVEL" envDefault:"info"`
	LogFormat string     `env:"WEIR_LOG_FORMAT" envDefault:"json"`
	// Home is where dev and demo keep their Postgres.
	Home string `env:"WEIR_HOME" envDefault:".weir"`
}

// foreign are the variables of this prefix that other parts of the project read.
func foreign() []string {
	return []string{"WEIR_TEST_DATABASE_URL", "WEIR_TESTDATA", "WEIR_PG_BINARIES_URL", "WEIR_WRITE_SCHEMA", "WEIR_KILLS",
		"WEIR_CHAOS", "WEIR_SEED", "WEIR_REPORT", "WEIR_SOAK", "WEIR_BENCH_SIZES",
		"WEIR_BENCH_BASE", "WEIR_BENCH_TURNS"}
}

func readConfig() (config, error) {
	c, err := env.ParseAs[config]()
	if err != nil {
		var all env.AggregateError
		if errors.As(err, &all) && len(all.Errors) > 0 {
			err = all.Errors[0]
		}
		var wrong env.ParseError
		if field, ok := reflect.TypeFor[config]().FieldByName(fieldOf(err, &wrong)); ok {
			return config{}, fmt.Errorf("%s cannot be read: expected such as %q: %w", field.Tag.Get("env"), field.Tag.Get("envDefault"), wrong.Err)
		}
		return config{}, fmt.Errorf("read the environment: %w", err)
	}
	// The library takes a variable that is empty for one that is not set.
	if base, set := os.LookupEnv("WEIR_IMAGE_BASE"); set && base == "" {
		c.ImageBase = ""
	}
	switch {
	case c.Start != "tip" && c.Start != "oldest":
		return config{}, fmt.Errorf("WEIR_START is %q: expected tip or oldest", c.Start)
	case c.Pooler != "none" && c.Pooler != poolerTransaction:
		return config{}, fmt.Errorf("WEIR_POOLER is %q: expected none or transaction", c.Pooler)
	case c.Sharding != schema.ShardsAuto && c.Sharding != schema.ShardsAlways && c.Sharding != schema.ShardsNetwork:
		return config{}, fmt.Errorf("WEIR_SHARDING is %q: expected auto, shards or network", c.Sharding)
	case c.ShardAccounts < 1 || sourceCapabilities.Accounts > 0 && c.ShardAccounts > sourceCapabilities.Accounts:
		return config{}, fmt.Errorf("WEIR_SHARD_ACCOUNTS is %d: expected 1 to %d, the most that a server filters by", c.ShardAccounts, sourceCapabilities.Accounts)
	case c.LogFormat != "json" && c.LogFormat != "text":
		return config{}, fmt.Errorf("WEIR_LOG_FORMAT is %q: expected json or text", c.LogFormat)
	case c.BatchEvents < 1 || c.BatchEvery <= 0:
		return config{}, errors.New("WEIR_BATCH_EVENTS and WEIR_BATCH_EVERY must be more than nothing")
	case c.Workers < 1:
		return config{}, errors.New("WEIR_WORKERS must be 1 or more")
	case c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour:
		return config{}, errors.New("WEIR_LEASE_TTL must be 1s to 1h: with less a slow commit would lose the lease, with more a dead consumer would keep it")
	case c.BufferBytes < 1<<20:
		return config{}, errors.New("WEIR_BUFFER_BYTES must be 1048576 or more: a smaller buffer is always full")
	case c.BatchEvents > 100_000 || c.BatchEvery > time.Minute:
		return config{}, errors.New("WEIR_BATCH_EVENTS must be 100000 at most and WEIR_BATCH_EVERY 1m: a batch is one transaction")
	case c.GapThreshold <= 0 || c.JobTimeout <= 0:
		return config{}, errors.New("WEIR_GAP_THRESHOLD and WEIR_JOB_TIMEOUT must be more than nothing")
	case c.Workers > 10_000 || c.BackfillWorkers > 10_000 || c.Calls > 10_000:
		return config{}, errors.New("WEIR_WORKERS, WEIR_BACKFILL_WORKERS and WEIR_CALLS must be 10000 at most")
	case c.RescueAfter <= c.JobTimeout:
		return config{}, errors.New("WEIR_RESCUE_AFTER must be longer than WEIR_JOB_TIMEOUT: a job still running would be started again")
	case c.Keep != 0 && c.Keep < schema.LongestWindow:
		return config{}, fmt.Errorf("WEIR_KEEP is %s: expected %s or more, which is what the ranking shows, or 0 to keep everything", c.Keep, schema.LongestWindow)
	case c.BackfillFrom != "appview" && c.BackfillFrom != "pds":
		return config{}, fmt.Errorf("WEIR_BACKFILL_FROM is %q: expected appview or pds", c.BackfillFrom)
	case c.BackfillWorkers < 1 || c.Calls < 1:
		return config{}, errors.New("WEIR_BACKFILL_WORKERS and WEIR_CALLS must be 1 or more")
	case c.SyncEvery < time.Minute || c.BackfillWindow <= 0 || c.CallSpacing < 0:
		return config{}, errors.New("WEIR_SYNC_EVERY must be 1m or more, WEIR_BACKFILL_WINDOW more than nothing, and WEIR_CALL_SPACING not negative")
	case (c.Identifier == "") != (c.AppPassword == ""):
		return config{}, errors.New("WEIR_IDENTIFIER and WEIR_APP_PASSWORD belong together: set both, or neither")
	case c.QueueLimit < 2 || c.QueueLimit > schema.CountedJobs:
		return config{}, fmt.Errorf("WEIR_QUEUE_LIMIT must be 2 to %d: deeper queues are not counted", schema.CountedJobs)
	case c.LagLimit <= 0 || c.DatabaseLimit <= 0:
		return config{}, errors.New("WEIR_LAG_LIMIT and WEIR_DATABASE_LIMIT must be more than nothing")
	case c.AuditEvery != 0 && c.AuditEvery < time.Hour || c.AuditAccounts < 1 || c.AuditAccounts > 10_000:
		return config{}, errors.New("WEIR_AUDIT_EVERY must be 1h or more, or 0 for never, and WEIR_AUDIT_ACCOUNTS 1 to 10000")
	case c.AlertEvery < time.Second || c.AlertEvery > time.Minute:
		return config{}, errors.New("WEIR_ALERT_EVERY must be 1s to 1m: an alert must be seen to hold")
	case len(c.Collections) == 0:
		return config{}, errors.New("WEIR_COLLECTIONS names no collection: nothing would be stored")
	case slices.ContainsFunc(c.Collections, func(name string) bool { return strings.Contains(name, "*") }):
		return config{}, errors.New("WEIR_COLLECTIONS takes whole names, such as app.bsky.feed.post: of a pattern nothing would be stored")
	}
	if _, err := c.webhook(); err != nil {
		return config{}, err
	}
	if _, err := c.hosts(); err != nil {
		return config{}, err
	}
	return c, nil
}

// fieldOf is the name of the field that could not be parsed.
func fieldOf(err error, wrong *env.ParseError) string {
	errors.As(err, wrong)
	return wrong.Name
}

// poolerTransaction is the WEIR_POOLER that keeps nothing between transactions.
const poolerTransaction = "transaction"

// pooled says that no two transactions share a session.
func (c config) pooled() bool { return c.Pooler == poolerTransaction }

// start is where a stream without a position begins.
func (c config) start() consumer.Cursor {
	if c.Start == "oldest" {
		return consumer.Cursor{Kind: consumer.CursorSeq, Value: 0}
	}
	return consumer.Cursor{}
}

func (c config) logger() *slog.Logger { return c.loggerTo(os.Stderr, inJournal()) }

func (c config) loggerTo(out io.Writer, journaled bool) *slog.Logger {
	lines := &prioritized{out: out}
	if journaled {
		out = lines
	}
	options := &slog.HandlerOptions{Level: c.LogLevel}
	var handler slog.Handler = slog.NewJSONHandler(out, options)
	if c.LogFormat == "text" {
		handler = slog.NewTextHandler(out, options)
	}
	if journaled {
		handler = journal{handler, lines}
	}
	return slog.New(handler)
}

// variables are the names of what a configuration is read from.
func variables() []string {
	var all []string
	for field := range reflect.TypeFor[config]().Fields() {
		all = append(all, field.Tag.Get("env"))
	}
	return all
}

// checkVariables refuses a variable that looks like Weir's and is none: a
// misspelt setting would otherwise silently keep its default.
func checkVariables(environ []string) error {
	known := append(foreign(), variables()...)
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "WEIR_") || slices.Contains(known, name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
		})
		return fmt.Errorf("%s is no variable of weir: did you mean %s? (the README lists them all)", name, nearest)
	}
	return nil
}
