package app

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/clickhouse"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/internal/archive/s3"
	"github.com/weir-social/weir/internal/archive/work"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// archive returns the store of the archive, or nil if there is none.
func (c Config) archive() (archive.Store, error) {
	if c.Archive == "" {
		return nil, nil
	}
	store, err := openStore(c.Archive)
	if err != nil {
		return nil, fmt.Errorf("WEIR_ARCHIVE: %w", err)
	}
	return store, nil
}

// errNoArchive means that no archive is configured.
var errNoArchive = errors.New("WEIR_ARCHIVE is empty: set it to the archive, such as dir:/path or s3://bucket/prefix")

// OpenArchive returns the configured store.
func (c Config) OpenArchive() (archive.Store, error) {
	store, err := c.archive()
	if err == nil && store == nil {
		err = errNoArchive
	}
	return store, err
}

// openStore returns the store at an address.
func openStore(address string) (archive.Store, error) {
	kind, rest, _ := strings.Cut(address, ":")
	switch kind {
	case "dir":
		return dir.New(rest)
	case "s3":
		bucket, prefix, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
		return s3.New(s3.Config{Endpoint: s3.EndpointFromEnv(), Region: os.Getenv("AWS_REGION"), Bucket: bucket, Prefix: prefix})
	}
	return nil, fmt.Errorf("%q is not an archive: expected dir:/path or s3://bucket/prefix", address)
}

// archiveScope returns the scope of the archive.
func (c Config) archiveScope() (frames.Scope, error) {
	switch scope := frames.Scope(cmp.Or(c.ArchiveScope, string(frames.ScopeStored))); {
	case scope != frames.ScopeStored && scope != frames.ScopeFollowed && scope != frames.ScopeEverything:
		return frames.ScopeNone, fmt.Errorf("WEIR_ARCHIVE_SCOPE is %q: expected stored, followed or everything", c.ArchiveScope)
	case c.Archive == "":
		return frames.ScopeNone, nil
	default:
		return scope, nil
	}
}

// archiveParts returns what the archive and its index bring to a process.
func (c Config) archiveParts() (parts feature.Parts, err error) {
	scope, err := c.archiveScope()
	if err != nil {
		return parts, err
	}
	parts.Hooks = []schema.Hook{catalog.Hook("")} // what was archived before must still be forgotten
	if scope == frames.ScopeNone {
		_, err = c.clickHouse()
		return parts, err
	}
	store, err := c.archive()
	if err != nil {
		return parts, err
	}
	index, err := c.clickHouse()
	if err != nil {
		return parts, err
	}
	parts.Hooks[0] = catalog.Hook(fetchedWire)
	parts.Frames = func(follows func(did string) bool) consumer.FrameHook {
		return &frames.Hook{Scope: scope, Follows: follows}
	}
	parts.Widen = func(f consumer.Filter) consumer.Filter { return archived(scope, f) }
	parts.Checks = append(parts.Checks, doctor.TryCheck("archive", "check WEIR_ARCHIVE, AWS_ENDPOINT_URL, the keys, and the rights to write, read and delete",
		store.String()+": an object was written, read and deleted", func(ctx context.Context) error { return archive.Try(ctx, store) }))
	if index != nil {
		parts.Checks = append(parts.Checks, doctor.TryCheck("clickhouse", "check WEIR_CLICKHOUSE: the address, the user, the password and the database", index.String()+" responded", index.Check))
	}
	return parts, nil
}

// archivesOthers reports whether events are archived that are not stored.
func (c Config) archivesOthers() bool {
	scope, _ := c.archiveScope()
	return scope == frames.ScopeFollowed || scope == frames.ScopeEverything
}

// segments returns how the workers write segments.
func (p App) segments(keep workers.Retention) (cfg work.Config, err error) {
	store, err := p.cfg.archive()
	if err != nil || store == nil {
		return cfg, err
	}
	sum := sha256.Sum256([]byte(store.String() + p.cfg.DatabaseURL))
	spool := filepath.Join(os.TempDir(), "weir-archive-"+hex.EncodeToString(sum[:8]))
	index, err := p.index()
	if err != nil {
		return cfg, err
	}
	return work.Config{Store: store, Spool: spool, Age: p.cfg.ArchiveInterval, Remember: keep.Tombstones, Index: index, Forget: time.Duration(p.cfg.ArchiveForget), Strip: p.strip, Snapshots: p.parts.Snapshots}, nil
}

// clickHouse returns the server of the index, or nil if there is none.
func (c Config) clickHouse() (*clickhouse.Index, error) {
	if c.ClickHouse == "" {
		return nil, nil
	}
	if c.Archive == "" {
		return nil, errors.New("WEIR_CLICKHOUSE copies the archive, and WEIR_ARCHIVE is empty: set it too")
	}
	x, err := clickhouse.New(c.ClickHouse, nil)
	if err != nil {
		return nil, fmt.Errorf("WEIR_CLICKHOUSE: %w", err)
	}
	return x, nil
}

// OpenClickHouse returns the configured server of the index.
func (c Config) OpenClickHouse() (*clickhouse.Index, error) {
	x, err := c.clickHouse()
	if err == nil && x == nil {
		err = errors.New("WEIR_CLICKHOUSE is empty: set it to the server, such as http://host:8123/database")
	}
	return x, err
}

// index returns how the workers copy segments into ClickHouse, or nil if they do not.
func (p App) index() (*work.Index, error) {
	x, err := p.cfg.clickHouse()
	if err != nil || x == nil {
		return nil, err
	}
	return &work.Index{ClickHouse: x, Rows: func(m archive.Manifest, s *archive.Segment) ([]clickhouse.Row, error) {
		return clickhouse.Rows(m, s, func() (consumer.Wire, error) { return p.archived(nil).Wire(m) })
	}}, nil
}

// IndexAgain makes the workers copy all segments into ClickHouse again. They add the rows
// that it lacks or, if fresh is set, all rows to an empty table. It returns the number of
// segments.
func (p App) IndexAgain(ctx context.Context, fresh bool) (int64, error) {
	x, err := p.cfg.OpenClickHouse()
	if err != nil {
		return 0, err
	}
	// The order matters: a running attempt can no longer mark its segment as indexed, and
	// no other attempt begins before the running one's rows are in the table, where they
	// count.
	n, err := catalog.IndexAgain(ctx, p.pool)
	if err == nil && fresh {
		err = x.Empty(ctx)
	}
	return n, err
}

// archived widens a filter to everything that is archived.
func archived(scope frames.Scope, f consumer.Filter) consumer.Filter {
	switch scope {
	case frames.ScopeEverything:
		return consumer.Filter{Everyone: true}
	case frames.ScopeFollowed:
		f.Collections = nil
	}
	return f
}

// archived returns the archive at a store, and how its records are read.
func (p App) archived(store archive.Store) recovery.Source {
	return recovery.Source{
		Store: store, Strip: p.strip,
		Wires: func() (map[string]consumer.Wire, error) { return p.wires(true) },
	}
}

// ExportArchive writes the records of a store as JSON lines, like recovery.Source.Export.
func ExportArchive(ctx context.Context, store archive.Store, stream string, out io.Writer) error {
	return New(Config{}, nil).archived(store).Export(ctx, stream, out)
}

// VerifyStore is VerifyArchive without a database.
func (c Config) VerifyStore(ctx context.Context) (recovery.Check, error) {
	return New(c, nil).VerifyArchive(ctx)
}

// VerifyArchive checks the archive, and compares its manifests with those in the database.
func (p App) VerifyArchive(ctx context.Context) (recovery.Check, error) {
	store, err := p.cfg.OpenArchive()
	if err != nil {
		return recovery.Check{}, err
	}
	var db schema.DB
	if p.pool != nil {
		db = p.pool
	}
	return p.archived(store).Verify(ctx, db)
}
