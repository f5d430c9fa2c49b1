package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

const (
	lookedAt   = 10_000 // maximum number of collections checked
	namedAtAll = 5      // how many unexpected collections are named
)

// collections looks for records of collections that are no longer stored. Such
// records stay, and nothing reads, repairs or expires them.
func (d Database) collections(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	if d.Needs.Stores == nil || d.Migrated(ctx, pool) != nil {
		return nil, nil // the migrations have a finding of their own
	}
	found, err := schema.OtherCollections(ctx, pool, "", lookedAt)
	if err != nil {
		return nil, err
	}
	posts, err := schema.StoresPosts(ctx, pool)
	if err != nil {
		return nil, err
	}
	if posts {
		found = append([]string{schema.PostCollection}, found...)
	}
	left := slices.DeleteFunc(slices.Clone(found), d.Needs.Stores)
	if len(left) == 0 {
		return []Finding{ok("collections", "%d are stored, and WEIR_COLLECTIONS names them all", len(found))}, nil
	}
	names := strings.Join(left[:min(len(left), namedAtAll)], ", ")
	if more := len(left) - namedAtAll; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return []Finding{warn("collections",
		fmt.Sprintf("name them in WEIR_COLLECTIONS again, or DELETE FROM records WHERE collection = '%s'", left[0]),
		"records of collections that WEIR_COLLECTIONS does not name stay, and nothing expires them: %s", names)}, nil
}
