package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// madeProjection is a projection with a table of the core's schema.
func madeProjection() schema.Projections {
	return schema.Projections{
		{Name: "made", Collections: []string{schema.PostCollection}, Kind: "make", Queue: "process", Tables: []string{"waiting"}},
	}
}

// makes stores the row that it makes of a post.
func makes(t *testing.T, pool *pgxpool.Pool, did, rkey string) {
	t.Helper()
	execute(t, pool, `
		INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey) VALUES ('made', $1, $2, $3, 'c', 'd', 'r')
		ON CONFLICT DO NOTHING`,
		schema.PostCollection, did, rkey)
}
