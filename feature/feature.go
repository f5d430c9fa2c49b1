// Package feature is the door through which a feature enters Weir: one value with all that it brings. Weir's own
// features and those of other programs use it alike. app.Features lists Weir's.
package feature

import (
	"context"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// A Feature is a part of Weir that can be left out.
type Feature struct {
	// Name is that of its part of the schema: lower-case letters, digits and "_".
	Name string
	// Tables is its part of the schema, as schema.Core describes; nil: it has none.
	Tables fs.FS
	// Config is a pointer to a struct whose fields are environment variables, with tags of caarlos0/env and a
	// comment each, which docs/configuration.md shows. It is filled before Open is called. nil: there are none.
	Config any
	// Queues are the names of its queues, which no other has.
	Queues []string
	// Open checks the configuration and returns what the feature brings to a process. Its error names the
	// variable to change. It must not use the network, and is called several times, but once for a process with Services.
	Open func(Core) (Parts, error)
	// Commands returns what it adds to the command weir; nil: nothing. They are made before any variable is read.
	Commands func(Program) []*cobra.Command
	// Trace is what weir trace tells of it.
	Trace Trace
}

// Program runs the commands of features.
type Program interface {
	// With reads the variables and runs f on the database, which must have this binary's schema.
	With(ctx context.Context, f func(context.Context, Process) error) error
	// Without reads the variables and runs f without a database.
	Without(ctx context.Context, f func(context.Context, Process) error) error
}

// Process is what a command of a feature may use.
type Process interface {
	Core() Core
	Pool() *pgxpool.Pool // nil: without a database
	Log() *slog.Logger
	DID(ctx context.Context, name string) (string, error) // the account that a handle or a DID names
	Projections() schema.Projections                      // of all features
	// Commit commits all that a source has which ends, as a stream of the given name.
	Commit(ctx context.Context, name string, cfg consumer.Config) error
	// Processing runs commit and processes the jobs that result, until none is ready to run.
	Processing(ctx context.Context, commit func(context.Context) error) error
	// Rebuilt waits until no job is ready to run, and has the features complete what their projections made.
	Rebuilt(ctx context.Context) error
}

// Core is what a feature may know of the process before it runs.
type Core struct {
	Services
	Registry    Registry           // the stored collections
	Unstored    bool               // a feature that is listed before this one keeps events that are not stored
	Projections schema.Projections // of the features that are listed before this one
	Queues      []string           // the names of the queues that others have
	Simulated   bool               // the networks are simulated: what they name does not exist
	Pictures    string             // where the pictures of simulated networks come from
	// Snapshots returns the tables of all features that no event describes. Call it after Open.
	Snapshots func() []schema.SnapshotTable
}

// Services are what the functions of Parts may use. They are empty if only the configuration is checked.
type Services struct {
	Pool      *pgxpool.Pool
	Log       *slog.Logger
	Metrics   prometheus.Registerer
	UserAgent string
	Limit     func(context.Context) (done func(), err error) // waits until a service may be called
	// Requested returns what stores events that were requested from servers, of the accounts that are followed now;
	// without Follows, of all.
	Requested func(ctx context.Context) (*consumer.Retry, error)
	// Wires returns the wires of archived frames, by name, for one goroutine. They decode what is wanted; nil: all events.
	Wires func(wanted func(collection string) bool) (map[string]consumer.Wire, error)
	// Tombstones returns how long deletions are known, and servers may send an event again.
	Tombstones func() (time.Duration, error)
}

// A Source is servers that are read in one way.
type Source struct {
	Name     string // in the findings of the doctor
	Wire     string // the name of its wire in dead letters and segments
	Variable string // of the endpoints
	Network  string // of its accounts: how their DIDs begin; empty: the network of repositories
	Streams  []Stream
	Open     func(socket.Config, consumer.Filter) (consumer.Source, error)
	NewWire  func(Decoding) (consumer.Wire, error) // for one goroutine
}

// Decoding is what a wire decodes.
type Decoding struct {
	Wanted func(collection string) bool // reports whether events of a collection are decoded; nil: of all
	// Archived: frames of the archive. The signatures were checked before its records were archived; since then the
	// hashes of the segments vouch for them. Demands to vanish that were archived were applied.
	Archived bool
}

// Stream is a stream to read.
type Stream struct {
	Name      string
	Endpoints []string // in order of preference
}

// Parts are what a feature brings to a process.
type Parts struct {
	Projections []schema.Projection
	// Sources are read besides that of WEIR_SOURCE.
	Sources []Source
	// Network is one that its jobs read; nil: it reads none.
	Network workers.Network
	// Pages are what it adds to the page, the feeds and the API.
	Pages []Page
	// Workers adds workers, queues and periodic jobs to a process that works; nil: it has none.
	Workers func(workers.Bundle) error
	// Hooks are what it does in transactions of the core.
	Hooks []schema.Hook
	// Frames returns what keeps the frames of a stream that follows these accounts, or of none: follows is nil.
	// nil: no frame is kept. One feature of a process may have it.
	Frames func(follows func(did string) bool) consumer.FrameHook
	// Widen widens what the servers of streams are asked for; nil: it needs no more than is stored.
	Widen func(consumer.Filter) consumer.Filter
	// Snapshots are its tables that no event describes.
	Snapshots []schema.SnapshotTable
	Operations
	// Keeps is how long it keeps what its projections made of a record after the record has expired. Deletions and
	// closed gaps are kept a day longer, because events that arrive late may still change it.
	Keeps time.Duration
	// Relations is how many tables and indexes a transaction of it may lock, because they are partitioned.
	Relations int
	// Rebuilt completes what its projections made, after an archive was read into an empty database; nil: it is complete.
	Rebuilt func(context.Context, workers.Bundle) error
}

// Operations are what a feature brings for operators.
type Operations struct {
	// Tools are what it adds to their listener.
	Tools []Tool
	// Health is what it adds to the report of Weir's health, the metrics and the alerts.
	Health []Health
	// Checks are what weir doctor checks of it.
	Checks []Check
	// Compared are its tables that weir compare compares.
	Compared []Table
	// Uncompared are rows of others' tables that weir compare leaves out.
	Uncompared []Rows
}
