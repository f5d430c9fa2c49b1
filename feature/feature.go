// Package feature is the door through which a feature enters Weir: one value with all that it brings. Weir's own
// features and those of other programs use it alike. app.Features lists Weir's.
package feature

import (
	"context"
	"io/fs"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/web"
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
	// Open checks the configuration and returns what the feature brings to a process. Its error names the
	// variable to change. It must not use the network, and is called several times.
	Open func(Core) (Parts, error)
	// Commands returns what it adds to the command weir; nil: nothing. They are made before any variable is read.
	Commands func(Program) []*cobra.Command
}

// Program runs the commands of features.
type Program interface {
	// With reads the variables and runs f on the database, which must have this binary's schema.
	With(ctx context.Context, f func(context.Context, Process) error) error
	// Without reads the variables and runs f without a database.
	Without(ctx context.Context, f func(context.Context, Process) error) error
}

// Process is what a command of a feature may know of its process.
type Process interface {
	Pool() *pgxpool.Pool // nil: without a database
	Log() *slog.Logger
	DID(ctx context.Context, name string) (string, error) // the account that a handle or a DID names
}

// Core is what a feature may know of the process before it runs.
type Core struct {
	Collections []string           // the stored collections: names, and prefixes such as "pub.layers.*"
	Projections schema.Projections // of the features that are listed before this one
	Queues      []string           // the names of the queues that others have
}

// Page is what a feature adds to the page, the feeds and the API.
type Page = web.Part

// Parts are what a feature brings to a process.
type Parts struct {
	Projections []schema.Projection
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
	// Health is what it adds to the report of Weir's health, the metrics and the alerts.
	Health []health.Feature
	// Checks are what weir doctor checks of it.
	Checks []doctor.Check
}
