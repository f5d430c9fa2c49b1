package lexicons

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/lexicon/verdict"
)

// catalogs keeps the catalog of the stored schemas. All workers of a process share it.
type catalogs struct {
	mu      sync.Mutex
	version string
	current *lexicon.Catalog
}

// lock returns the stored catalog and its version. Nobody can change the catalog until
// the transaction ends, so a later change of the catalog finds the records that are
// judged now.
func (c *catalogs) lock(ctx context.Context, tx pgx.Tx) (*lexicon.Catalog, string, error) {
	version, err := verdict.LockCatalog(ctx, tx)
	if err != nil {
		return nil, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.version == version {
		return c.current, version, nil
	}
	documents, err := verdict.Documents(ctx, tx)
	if err != nil {
		return nil, "", err
	}
	strict, err := verdict.Strict(ctx, tx)
	if err != nil {
		return nil, "", err
	}
	loaded, err := load(documents)
	if err != nil {
		return nil, "", err
	}
	if len(strict) > 0 {
		loaded = loaded.Strictly(func(name string) bool {
			return slices.ContainsFunc(strict, func(pattern string) bool { return collection.Match(pattern, name) })
		})
	}
	c.current, c.version = loaded, version
	return loaded, version, nil
}

func load(documents []verdict.Document) (*lexicon.Catalog, error) {
	files := make([][]byte, len(documents))
	for i := range documents {
		files[i] = documents[i].JSON
	}
	catalog, err := lexicon.New(files...)
	if err != nil {
		return nil, fmt.Errorf("load the lexicons: %w", err)
	}
	return catalog, nil
}
