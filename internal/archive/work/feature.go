package work

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/internal/archive/s3"
	"github.com/weir-social/weir/internal/ops/compare"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Variables configure the feature.
type Variables struct {
	// Where the received events are archived in sealed files: dir:/path, or s3://bucket/prefix
	// with the usual variables AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and
	// AWS_ENDPOINT_URL. Set it for consumers and workers. Empty: there is no archive.
	Archive string `env:"WEIR_ARCHIVE"`
	// Which events are archived: stored (those that are stored), followed (everything of the
	// followed accounts), or everything (the whole network). With the last two, Nostr relays
	// are asked for every kind; docs/nostr.md has the limits.
	Scope string `env:"WEIR_ARCHIVE_SCOPE" envDefault:"stored"`
	// How long an event waits in the database before it is sealed into a file. A file is sealed
	// earlier if it has 64 MiB of events.
	Interval time.Duration `env:"WEIR_ARCHIVE_INTERVAL" envDefault:"10m"`
	// How often each file is compared with the deletions, and rewritten without deleted records
	// and accounts. never: files keep what its authors deleted, and so do copies and exports of
	// records; the database remembers each deletion for "weir archive forget --now".
	Forget orNever `env:"WEIR_ARCHIVE_FORGET" envDefault:"720h"`
}

// orNever is an interval. The text never is a century.
type orNever time.Duration

// UnmarshalText parses a duration, or never.
func (d *orNever) UnmarshalText(text []byte) error {
	if string(text) == "never" {
		*d = orNever(100 * 365 * 24 * time.Hour)
		return nil
	}
	parsed, err := time.ParseDuration(string(text))
	*d = orNever(parsed)
	return err
}

// Feature archives what the streams receive.
func Feature() feature.Feature {
	v := &Variables{}
	return feature.Feature{Name: "archive", Tables: catalog.Tables, Config: v, Queues: []string{queueArchive}, Open: v.open,
		Commands: v.commands,
		Trace:    trace.Feature{Account: traceAccount}}
}

// traceAccount says why the archive must forget an account.
func traceAccount(ctx context.Context, db schema.DB, a *trace.AccountTrace) error {
	reason, err := catalog.Forgotten(ctx, db, a.DID)
	if reason != "" {
		a.Said = append(a.Said, trace.Said{Field: "forgotten", Label: "archive", Format: "must forget it: %s", Text: reason})
	}
	return err
}

func (v *Variables) open(core feature.Core) (feature.Parts, error) {
	store, err := v.check()
	if err != nil {
		return feature.Parts{}, err
	}
	forget := time.Duration(v.Forget)
	parts := feature.Parts{Operations: feature.Operations{Health: []health.Feature{Health(forget)},
		Uncompared: []compare.Rows{{Table: "tombstones", Where: `EXISTS (SELECT FROM forgotten AS f WHERE f.did = k.did)`,
			Why: "those of accounts that the archive has forgotten, with their deletions"}}},
		Hooks: []schema.Hook{catalog.Hook("")}} // what was archived before must still be forgotten
	parts.Workers = func(b workers.Bundle) error {
		if store == nil {
			return Add(b, Config{})
		}
		remember, err := core.Tombstones()
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(store.String() + b.Pool.Config().ConnString()))
		return Add(b, Config{
			Store: store, Spool: filepath.Join(os.TempDir(), "weir-archive-"+hex.EncodeToString(sum[:8])), Bytes: 64 << 20, Age: v.Interval,
			Remember: remember, Forget: forget, Strip: source(core, store).Strip, Snapshots: core.Snapshots(),
		})
	}
	if store == nil {
		return parts, nil
	}
	scope := frames.Scope(v.Scope)
	parts.Hooks[0] = catalog.Hook(jetstream.WireName)
	parts.Frames = func(follows func(did string) bool) consumer.FrameHook {
		return &frames.Hook{Scope: scope, Follows: follows}
	}
	parts.Widen = func(f consumer.Filter) consumer.Filter {
		switch scope {
		case frames.ScopeEverything:
			return consumer.Filter{Everyone: true}
		case frames.ScopeFollowed:
			f.Collections = nil
		}
		return f
	}
	parts.Checks = []doctor.Check{doctor.TryCheck("archive",
		"check WEIR_ARCHIVE, AWS_ENDPOINT_URL, the keys, and the rights to write, read and delete",
		store.String()+": an object was written, read and deleted", func(ctx context.Context) error { return archive.Try(ctx, store) })}
	return parts, nil
}

// check returns the store, or nil if there is none. Its error names the variable that cannot be used.
func (v *Variables) check() (archive.Store, error) {
	switch scope := frames.Scope(v.Scope); {
	case scope != frames.ScopeStored && scope != frames.ScopeFollowed && scope != frames.ScopeEverything:
		return nil, fmt.Errorf("WEIR_ARCHIVE_SCOPE is %q: expected stored, followed or everything", v.Scope)
	case time.Duration(v.Forget) < time.Second:
		return nil, errors.New(
			"WEIR_ARCHIVE_FORGET must be 1s or longer, or never: it is how often each file is rewritten without deleted records")
	case v.Interval < time.Second || v.Interval > 20*time.Minute:
		return nil, errors.New("WEIR_ARCHIVE_INTERVAL must be 1s to 20m: an alert fires after half an hour")
	}
	return v.store()
}

// store returns the store, or nil if there is none.
func (v *Variables) store() (store archive.Store, err error) {
	kind, rest, _ := strings.Cut(v.Archive, ":")
	switch {
	case v.Archive == "":
		return nil, nil
	case kind == "dir":
		store, err = dir.New(rest)
	case kind == "s3":
		bucket, prefix, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
		store, err = s3.New(s3.Config{Endpoint: s3.EndpointFromEnv(), Region: os.Getenv("AWS_REGION"), Bucket: bucket, Prefix: prefix})
	default:
		err = fmt.Errorf("%q is not an archive: expected dir:/path or s3://bucket/prefix", v.Archive)
	}
	if err != nil {
		return nil, fmt.Errorf("WEIR_ARCHIVE: %w", err)
	}
	return store, nil
}

// ConfiguredStore returns the store of WEIR_ARCHIVE, or nil if there is none.
func ConfiguredStore() (archive.Store, error) {
	v, err := env.ParseAs[Variables]()
	if err != nil {
		return nil, fmt.Errorf("read the variables of the archive: %w", err)
	}
	return v.store()
}

// source returns how the records of a store are read.
func source(core feature.Core, store archive.Store) recovery.Source {
	return recovery.Source{Store: store, Wires: core.Wires, Stores: core.Registry.Stores}
}
