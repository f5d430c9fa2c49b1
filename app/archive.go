package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/archive/dir"
	"github.com/weir-social/weir/archive/s3"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/workers"
)

// archive returns the store of the archive; nil: there is none.
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
	return nil, fmt.Errorf("%q is no archive: expected dir:/path or s3://bucket/prefix", address)
}

// archiveScope returns what is archived.
func (c Config) archiveScope() (consumer.Scope, error) {
	switch scope := consumer.Scope(c.ArchiveScope); {
	case scope != consumer.ScopeStored && scope != consumer.ScopeFollowed && scope != consumer.ScopeEverything:
		return consumer.ScopeNone, fmt.Errorf("WEIR_ARCHIVE_SCOPE is %q: expected stored, followed or everything", c.ArchiveScope)
	case c.Archive == "":
		return consumer.ScopeNone, nil
	default:
		return scope, nil
	}
}

// segments returns how the workers write segments; nil: they write none.
func (c Config) segments(keep workers.Retention) (*workers.Archive, error) {
	store, err := c.archive()
	if err != nil || store == nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(store.String() + c.DatabaseURL))
	spool := filepath.Join(os.TempDir(), "weir-archive-"+hex.EncodeToString(sum[:8]))
	return &workers.Archive{Store: store, Spool: spool, Age: c.ArchiveInterval, Remember: keep.Tombstones}, nil
}

// archived widens a filter to what is archived.
func (s *streams) archived(f consumer.Filter) consumer.Filter {
	switch scope, _ := s.cfg.archiveScope(); scope {
	case consumer.ScopeEverything:
		return consumer.Filter{Everyone: true}
	case consumer.ScopeFollowed:
		f.Collections = nil
	}
	return f
}
