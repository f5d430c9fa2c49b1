package app

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

// changed returns the configuration with the collections of WEIR_COLLECTIONS as the table collections changes
// them, or an error if the result is not valid.
func (c Config) changed(by []schema.CollectionChange) (Config, error) {
	if c.named == nil {
		c.named = c.Collections
	}
	c.changes, c.Collections = by, nil
	for _, entry := range c.named {
		pattern, _, _ := strings.Cut(entry, "=")
		pattern = strings.TrimSpace(pattern)
		if !slices.ContainsFunc(by, concerns(pattern)) {
			c.Collections = append(c.Collections, entry)
		}
	}
	for _, change := range by {
		entry := change.Collection
		if change.Retention != nil {
			entry += "=" + change.Retention.String()
		}
		if change.Stored {
			c.Collections = append(c.Collections, entry)
		}
	}
	err := c.parse()
	return c, err
}

// concerns returns whether a change is one of an entry.
func concerns(pattern string) func(schema.CollectionChange) bool {
	return func(c schema.CollectionChange) bool { return c.Collection == pattern }
}

// StoredCollection is an entry of the stored collections.
type StoredCollection struct {
	collection.Entry
	Changed bool // by the table collections
}

// StoredCollections lists what is stored, in order.
func (p App) StoredCollections() (all []StoredCollection) {
	for _, e := range p.stored.Entries() {
		all = append(all, StoredCollection{e, slices.ContainsFunc(p.cfg.changes, concerns(e.Pattern))})
	}
	return all
}

// ChangeCollection changes what is stored, in every process. Its error says what is wrong with the change.
func (p App) ChangeCollection(ctx context.Context, change schema.CollectionChange) error {
	if err := collection.CheckPattern(change.Collection); err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(p.cfg.changes), concerns(change.Collection))
	if _, err := p.cfg.changed(append(others, change)); err != nil {
		return err
	}
	return schema.ChangeCollection(ctx, p.pool, change)
}

// current returns the process with the collections that the database has now. changed: they are others than
// before.
func (p App) current(ctx context.Context) (now App, changed bool, err error) {
	by, err := schema.CollectionChanges(ctx, p.pool)
	if err != nil || reflect.DeepEqual(by, p.cfg.changes) || len(by)+len(p.cfg.changes) == 0 {
		return p, false, err
	}
	cfg, err := p.cfg.changed(by)
	if err != nil {
		return p, false, err
	}
	now = New(cfg, p.pool)
	now.liveness = p.liveness
	return now, true, nil
}

// errCollections ends what a process runs, so that it runs again with other collections.
var errCollections = errors.New("the stored collections have changed")

// watchCollections returns errCollections when the collections have changed. Collections that are not valid
// change nothing.
func (p App) watchCollections(ctx context.Context) error {
	told := ""
	for retry.Sleep(ctx, projectionsWatch) == nil {
		_, changed, err := p.current(ctx)
		if changed {
			return errCollections
		}
		if err != nil && err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			p.log.Warn("collections_unread", "error", err, "effect", "the collections stay as they are")
		}
	}
	return nil
}
