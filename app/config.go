package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Config has a field for every environment variable of Weir. docs/configuration.md
// is generated from it: a comment that stands alone is a heading, the comment of a
// field is its description.
type Config struct {
	// Database

	// The Postgres to use, 15 to 18, as a postgres:// URL.
	DatabaseURL string `env:"DATABASE_URL"`
	// A hot standby that the pages and the API read, as a postgres:// URL. They read DATABASE_URL
	// while the standby cannot be reached, with the role and the password of this URL. Their
	// numbers are as old as the standby's. Feeds store what they have shown, in DATABASE_URL.
	ReadDatabaseURL string `env:"WEIR_READ_DATABASE_URL"`
	// Set it to transaction if DATABASE_URL leads to a pooler that lends a connection for one
	// transaction at a time, such as PgBouncer in transaction mode.
	Pooler string `env:"WEIR_POOLER" envDefault:"none"`
	// Alert when the database is larger than this, in bytes.
	DatabaseLimit int64 `env:"WEIR_DATABASE_LIMIT" envDefault:"3221225472"`

	// The stream

	// The source of the stream: jetstream, or firehose for relays, which send the whole network
	// with proofs. The stream's position is kept when this changes.
	Source string `env:"WEIR_SOURCE" envDefault:"jetstream"`
	// The relays to read from if WEIR_SOURCE is firehose, in order of preference, separated by
	// commas. A server of accounts can be named too: it is a relay of its accounts.
	Relays []string `env:"WEIR_RELAYS" envDefault:"wss://relay1.us-west.bsky.network,wss://relay1.us-east.bsky.network"`
	// What the relays must prove: whole (each record has its hash and its place in the
	// account's repository), signed (the account has also signed it), or chained (in addition,
	// no commit of a followed account is missing). signed reads the DID document of each
	// account whose records are stored, chained that of each followed account that writes
	// anything.
	Verify string `env:"WEIR_VERIFY" envDefault:"signed"`
	// The Jetstream endpoints to read from, in order of preference, separated by commas. Weir
	// finds out which services a host has.
	Jetstream []string `env:"WEIR_JETSTREAM" envDefault:"wss://jetstream.us-west.bsky.network/subscribe,wss://jetstream.us-east.bsky.network/subscribe,wss://jetstream2.us-west.bsky.network/subscribe,wss://jetstream2.us-east.bsky.network/subscribe,wss://jetstream1.us-west.bsky.network/subscribe,wss://jetstream1.us-east.bsky.network/subscribe"`
	// A key, a secret, for Jetstream servers that demand one for their archives. It is sent to
	// archives only, and only encrypted or to this machine.
	JetstreamKey string `env:"WEIR_JETSTREAM_KEY" secret:"true"`
	// The name of the stream's row: one name, one cursor, one active consumer.
	Stream string `env:"WEIR_STREAM" envDefault:"jetstream"`
	// The collections to store, separated by commas: names, and prefixes that end in a dot and
	// an asterisk. Each can have a retention, as in `app.bsky.feed.post=48h,pub.layers.*=0`; 0:
	// for ever. The default is WEIR_RETENTION. A name wins over the longest prefix. Posts must
	// be kept for a day at least. With posts, the declarations of accounts that do not want to
	// be recommended are stored too, for ever. Add app.bsky.actor.profile to notice at once when
	// an account changes whether it is shown to people who are not logged in. `weir collection`
	// and the table collections change this list while Weir runs.
	Collections []string `env:"WEIR_COLLECTIONS" envDefault:"app.bsky.feed.post,app.bsky.feed.repost"`
	// Where a stream without a position begins: tip, oldest, or a time such as
	// 2026-08-01T12:00:00Z.
	Start string `env:"WEIR_START" envDefault:"tip"`
	// Ask a Jetstream server for zstd frames.
	Compress bool `env:"WEIR_COMPRESS" envDefault:"true"`
	// A batch closes at this many events, at 4 MiB, or after WEIR_BATCH_INTERVAL, whichever
	// comes first.
	BatchEvents int `env:"WEIR_BATCH_EVENTS" envDefault:"4000"`
	// A batch closes after this time.
	BatchInterval time.Duration `env:"WEIR_BATCH_INTERVAL" envDefault:"100ms"`
	// How long a lease lasts: the next consumer waits at most this long after one has died.
	LeaseTTL time.Duration `env:"WEIR_LEASE_TTL" envDefault:"10s"`
	// The shortest gap to record on a stream that was known to be quiet. On other streams
	// every gap is recorded.
	GapThreshold time.Duration `env:"WEIR_GAP_THRESHOLD" envDefault:"5m"`
	// A stream that sends nothing for this long, and whose server replies to a ping, is quiet:
	// nothing is unread. On a new connection it takes three times as long.
	QuietAfter time.Duration `env:"WEIR_QUIET_AFTER" envDefault:"5s"`
	// The lag at which a stream is critical and its consumer no longer ready. The warning
	// comes after one minute, whatever this is.
	LagLimit time.Duration `env:"WEIR_LAG_LIMIT" envDefault:"5m"`

	// Jobs

	// How many jobs of each queue of the projections run at once in this process.
	Workers int `env:"WEIR_WORKERS" envDefault:"8"`
	// A job that takes longer is stopped and retried.
	JobTimeout time.Duration `env:"WEIR_JOB_TIMEOUT" envDefault:"1m"`
	// How long after their start jobs are started again that never returned. Those of a killed
	// process start again twenty seconds after its last heartbeat.
	RescueAfter time.Duration `env:"WEIR_RESCUE_AFTER" envDefault:"5m"`
	// Alert when more jobs than this are waiting in a queue. If it is the queue of a
	// projection, the stream is also paused.
	QueueLimit int `env:"WEIR_QUEUE_LIMIT" envDefault:"10000"`

	// Accounts and their records

	// What to watch at the first start, separated by commas: handles and DIDs (the accounts
	// that they follow), lists, starter packs. Afterwards the table watches decides.
	Watch []string `env:"WEIR_WATCH"`
	// How long records are kept if their collection has no retention of its own in
	// WEIR_COLLECTIONS. 0: for ever, even after an account is unfollowed. Records of deleted
	// accounts are always removed.
	Retention time.Duration `env:"WEIR_RETENTION" envDefault:"24h"`
	// How often follow lists are read again.
	SyncInterval time.Duration `env:"WEIR_SYNC_INTERVAL" envDefault:"1h"`
	// How far back the feed of a new account is read.
	BackfillWindow time.Duration `env:"WEIR_BACKFILL_WINDOW" envDefault:"24h"`
	// Where feeds are read: appview, or pds for the accounts' own servers.
	BackfillFrom string `env:"WEIR_BACKFILL_FROM" envDefault:"appview"`
	// How many feeds this process reads at once.
	BackfillWorkers int `env:"WEIR_BACKFILL_WORKERS" envDefault:"4"`
	// Whether the past of new collections that WEIR_COLLECTIONS keeps for ever (=0) is read:
	// auto, or manual to read it only on request. If the whole network is followed, WEIR_RELAYS
	// name the accounts, whatever the source is.
	History string `env:"WEIR_HISTORY" envDefault:"auto"`
	// How many records of an account's past are read, over all collections: the newest ones.
	HistoryRecords int64 `env:"WEIR_HISTORY_RECORDS" envDefault:"10000"`
	// How many bytes of JSON of an account's past are read.
	HistoryBytes int64 `env:"WEIR_HISTORY_BYTES" envDefault:"33554432"`
	// How often the stored records of 20 random accounts are compared with their own
	// repositories, and repaired. 0: never. Relays of Nostr are compared once a day, unless this is 0.
	AuditInterval time.Duration `env:"WEIR_AUDIT_INTERVAL" envDefault:"24h"`

	// Services that are called

	// The AppView: handles, profiles, follow lists, feeds.
	AppView string `env:"WEIR_APPVIEW" envDefault:"https://public.api.bsky.app"`
	// The directory of DIDs.
	Directory string `env:"WEIR_DIRECTORY" envDefault:"https://plc.directory"`
	// Servers that have copies of repositories, separated by commas, such as
	// https://mirror.example. They are asked, in this order, when an account's own server does
	// not respond. Nobody has to trust them: a copy counts only if its account has signed it and,
	// after a commit that could not be verified, if it is as new as that commit.
	Mirrors []string `env:"WEIR_MIRRORS"`
	// The server to log in to. No login is needed.
	PDS string `env:"WEIR_PDS" envDefault:"https://bsky.social"`
	// The handle or DID to log in with.
	Identifier string `env:"WEIR_IDENTIFIER"`
	// Its app password, a secret.
	AppPassword string `env:"WEIR_APP_PASSWORD" secret:"true"`
	// How many calls to these services run at once, in all processes together.
	APIConcurrency int `env:"WEIR_API_CONCURRENCY" envDefault:"10"`
	// The shortest time between the starts of two calls, in all processes together.
	APIInterval time.Duration `env:"WEIR_API_INTERVAL" envDefault:"100ms"`

	// Listeners

	// The address of the page and the API.
	Listen string `env:"WEIR_LISTEN" envDefault:"127.0.0.1:8080"`
	// The public address of the page, such as https://weir.example. Feeds lead to it, and both
	// listeners accept its host name.
	URL string `env:"WEIR_URL"`
	// The addresses of reverse proxies, separated by commas, such as 10.1.2.3 or 10.0.0.0/8.
	// Weir trusts the X-Forwarded-For of these, because it limits requests and event streams
	// per client.
	TrustedProxies []string `env:"WEIR_TRUSTED_PROXIES" envDefault:"127.0.0.0/8,::1"`
	// The host names that both listeners accept besides localhost and their own IP addresses:
	// separated by commas, without schemes or ports, such as weir.example. Needed behind a
	// reverse proxy.
	Hosts []string `env:"WEIR_HOSTS"`
	// The address of health, readiness, metrics, dead letters, River UI and profiles. off: do
	// not listen.
	OpsListen string `env:"WEIR_OPS_LISTEN" envDefault:"127.0.0.1:8081"`
	// A secret that protects metrics, dead letters, River UI and profiles: send it as
	// Authorization: Bearer, or as the password of a browser's login with any name. Without it
	// there are no profiles, and only weir dev and weir demo have River UI, on loopback.
	OpsToken string `env:"WEIR_OPS_TOKEN" secret:"true"`

	// Alerts and logs

	// The URL to send alerts to, a secret. Set it for every worker.
	AlertWebhook string `env:"WEIR_ALERT_WEBHOOK" secret:"true"`
	// How many new dead letters a collection may have within ten minutes before an alert,
	// separated by commas: com.example.note=0,pub.layers.*=100. The first entry that matches a
	// collection counts; a prefix counts its collections together. All other collections
	// together may have ten.
	DeadLetterLimits []string `env:"WEIR_DEAD_LETTER_LIMITS"`
	// The format of these messages: slack, discord or json. Empty: chosen by the host of the
	// webhook.
	AlertFormat string `env:"WEIR_ALERT_FORMAT"`
	// How often the conditions of alerts are checked.
	AlertInterval time.Duration `env:"WEIR_ALERT_INTERVAL" envDefault:"30s"`
	// debug, info, warn or error. An error that repeats is logged every ten minutes, with the number
	// of those in between.
	LogLevel slog.Level `env:"WEIR_LOG_LEVEL" envDefault:"info"`
	// json or text.
	LogFormat string `env:"WEIR_LOG_FORMAT" envDefault:"json"`
	// Where weir dev and weir demo keep their Postgres.
	Home string `env:"WEIR_HOME" envDefault:".weir"`

	Simulated bool   // the networks are simulated: what they name does not exist
	Pictures  string // where the pictures of simulated networks come from
	terminal  bool   // somebody tries it at a terminal

	// features are those of the program, with their own variables.
	features []feature.Feature
	more     bool // it has others than Weir's

	opened  parts                     // what the features bring, without services; parse opens them
	changes []schema.CollectionChange // of the table collections, which Collections contains
	named   []string                  // Collections without them; nil: there are none
}

// readVariables fills a struct from the environment.
func readVariables(into any) error {
	err := env.Parse(into)
	if err == nil {
		unsetEmpty(reflect.ValueOf(into).Elem())
		return nil
	}
	if all, ok := errors.AsType[env.AggregateError](err); ok && len(all.Errors) > 0 {
		err = all.Errors[0]
	}
	wrong, _ := errors.AsType[env.ParseError](err)
	if field, ok := reflect.TypeOf(into).Elem().FieldByName(wrong.Name); ok {
		return fmt.Errorf("%s cannot be read: expected for example %q: %w", field.Tag.Get("env"), field.Tag.Get("envDefault"), wrong.Err)
	}
	return fmt.Errorf("read the environment: %w", err)
}

// unsetEmpty sets the variables that may be empty and are. The library takes an empty variable for one that is not set.
func unsetEmpty(values reflect.Value) {
	for i := range values.NumField() {
		tag := values.Type().Field(i).Tag
		if text, set := os.LookupEnv(tag.Get("env")); set && text == "" && tag.Get("empty") == "true" {
			values.Field(i).SetZero()
		}
	}
}

// ReadConfig reads the configuration from the environment and checks it. more are features besides Weir's own.
func ReadConfig(more ...feature.Feature) (Config, error) {
	return readConfig(Config{features: append(Features(), more...), more: len(more) > 0})
}

// readConfig fills a configuration that has its features.
func readConfig(c Config) (Config, error) {
	if err := readVariables(&c); err != nil {
		return Config{}, err
	}
	for _, f := range c.features {
		if f.Config == nil {
			continue
		}
		if err := readVariables(f.Config); err != nil {
			return Config{}, err
		}
	}
	if err := c.checkSource(); err != nil {
		return Config{}, err
	}
	if _, err := c.start(); err != nil {
		return Config{}, err
	}
	switch {
	case c.Pooler != "none" && c.Pooler != poolerTransaction:
		return Config{}, fmt.Errorf("WEIR_POOLER is %q: expected none or transaction", c.Pooler)
	case c.LogFormat != "json" && c.LogFormat != "text":
		return Config{}, fmt.Errorf("WEIR_LOG_FORMAT is %q: expected json or text", c.LogFormat)
	case c.BatchEvents < 1 || c.BatchInterval <= 0:
		return Config{}, errors.New("WEIR_BATCH_EVENTS and WEIR_BATCH_INTERVAL must be greater than 0")
	case c.Workers < 1:
		return Config{}, errors.New("WEIR_WORKERS must be 1 or more")
	case c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour:
		return Config{},
			errors.New("WEIR_LEASE_TTL must be 1s to 1h: with less, a slow commit would lose the lease; with more, a dead consumer would keep it")
	case c.BatchEvents > 100_000 || c.BatchInterval > time.Minute:
		return Config{}, errors.New("WEIR_BATCH_EVENTS must be 100000 at most and WEIR_BATCH_INTERVAL 1m: a batch is one transaction")
	case c.GapThreshold <= 0 || c.JobTimeout <= 0:
		return Config{}, errors.New("WEIR_GAP_THRESHOLD and WEIR_JOB_TIMEOUT must be greater than 0")
	case c.QuietAfter < time.Second || c.QuietAfter > time.Minute:
		return Config{}, errors.New("WEIR_QUIET_AFTER must be 1s to 1m: a server may need a second to look for the first event")
	case c.Workers > 10_000 || c.BackfillWorkers > 10_000 || c.APIConcurrency > 10_000:
		return Config{}, errors.New("WEIR_WORKERS, WEIR_BACKFILL_WORKERS and WEIR_API_CONCURRENCY must be 10000 at most")
	case c.RescueAfter <= c.JobTimeout:
		return Config{}, errors.New("WEIR_RESCUE_AFTER must be longer than WEIR_JOB_TIMEOUT: a job still running would be started again")
	case c.Retention < 0:
		return Config{}, fmt.Errorf("WEIR_RETENTION is %s: expected a time such as 24h, or 0 to keep everything", c.Retention)
	case c.BackfillFrom != "appview" && c.BackfillFrom != "pds":
		return Config{}, fmt.Errorf("WEIR_BACKFILL_FROM is %q: expected appview or pds", c.BackfillFrom)
	case c.BackfillWorkers < 1 || c.APIConcurrency < 1:
		return Config{}, errors.New("WEIR_BACKFILL_WORKERS and WEIR_API_CONCURRENCY must be 1 or more")
	case c.History != historyAuto && c.History != "manual":
		return Config{}, fmt.Errorf("WEIR_HISTORY is %q: expected auto or manual", c.History)
	case c.HistoryRecords < 1 || c.HistoryRecords > 1_000_000 || c.HistoryBytes < 1:
		return Config{}, errors.New("WEIR_HISTORY_RECORDS must be 1 to 1000000, and WEIR_HISTORY_BYTES 1 or more")
	case c.SyncInterval < time.Minute || c.BackfillWindow <= 0 || c.APIInterval < 0:
		return Config{},
			errors.New("WEIR_SYNC_INTERVAL must be 1m or more, WEIR_BACKFILL_WINDOW greater than 0, and WEIR_API_INTERVAL not negative")
	case (c.Identifier == "") != (c.AppPassword == ""):
		return Config{}, errors.New("WEIR_IDENTIFIER and WEIR_APP_PASSWORD belong together: set both, or neither")
	case c.QueueLimit < 2 || c.QueueLimit > schema.CountedJobs:
		return Config{}, fmt.Errorf("WEIR_QUEUE_LIMIT must be 2 to %d: deeper queues are not counted", schema.CountedJobs)
	case c.LagLimit <= 0 || c.DatabaseLimit <= 0:
		return Config{}, errors.New("WEIR_LAG_LIMIT and WEIR_DATABASE_LIMIT must be greater than 0")
	case c.AuditInterval != 0 && c.AuditInterval < time.Hour:
		return Config{}, errors.New("WEIR_AUDIT_INTERVAL must be 1h or more, or 0 for never")
	case c.AlertInterval < time.Second || c.AlertInterval > time.Minute:
		return Config{},
			errors.New("WEIR_ALERT_INTERVAL must be 1s to 1m: an alert fires only after its condition has been checked several times")
	}
	err := c.parse()
	return c, err
}

// parse opens the features, and returns an error if a variable that is read where it is used cannot be read.
func (c *Config) parse() (err error) {
	_, stored := c.stored()
	c.opened, err = c.open(feature.Services{})
	_, limits := c.deadLetterLimits()
	_, webhook := c.webhook()
	_, hosts := c.hosts()
	_, proxies := c.proxies()
	return cmp.Or(stored, err, limits, webhook, hosts, proxies)
}

// stored returns the registry of the stored collections.
func (c Config) stored() (collection.Registry, error) {
	stored, err := collection.Parse(c.Collections, c.Retention)
	if err != nil {
		return collection.Registry{}, fmt.Errorf("WEIR_COLLECTIONS: %w", err)
	}
	if posts, ok := stored.Find(schema.PostCollection); ok && posts.Retention != 0 && posts.Retention < workers.MinRetention {
		return collection.Registry{},
			fmt.Errorf("WEIR_COLLECTIONS, WEIR_RETENTION: %s is kept for %s: expected at least %s, or 0 to keep everything",
				schema.PostCollection, posts.Retention, workers.MinRetention)
	} else if ok {
		stored = collection.Of(append(stored.Entries(), collection.Entry{Pattern: schema.DeclarationCollection, Explicit: true})...)
	}
	return stored, nil
}

// registry returns the registry of a valid configuration; of an invalid one, an
// empty registry.
func (c Config) registry() collection.Registry {
	stored, _ := c.stored()
	return stored
}

// poolerTransaction is the WEIR_POOLER that keeps no session between transactions.
const poolerTransaction = "transaction"

// pooled reports whether transactions do not share a session.
func (c Config) pooled() bool { return c.Pooler == poolerTransaction }

// start returns where a stream without a position starts. A number would be valid on
// one host only.
func (c Config) start() (consumer.Cursor, error) {
	switch c.Start {
	case "tip":
		return consumer.Cursor{}, nil
	case "oldest":
		return consumer.Cursor{Kind: consumer.CursorSeq, Value: 0}, nil
	}
	at, err := time.Parse(time.RFC3339, c.Start)
	if err != nil || at.Unix() <= 0 {
		return consumer.Cursor{}, fmt.Errorf("WEIR_START is %q: expected tip, oldest, or a time such as 2026-08-01T12:00:00Z", c.Start)
	}
	return consumer.Cursor{Kind: consumer.CursorTime, Value: at.UnixMicro()}, nil
}

// Logger returns the logger of the process, which writes to standard error.
func (c Config) Logger() *slog.Logger { return c.loggerTo(os.Stderr, InJournal()) }

func (c Config) loggerTo(out io.Writer, journaled bool) *slog.Logger {
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
	return slog.New(component{newRepeats(handler)})
}
