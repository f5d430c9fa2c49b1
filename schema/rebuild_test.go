package schema_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestStaleRowsAreRemoved shows that a rebuild deletes the rows that a
// projection should not have, and no others.
func TestStaleRowsAreRemoved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expires, view bool
		want          []string
	}{
		{false, false, []string{"expired", "restored", "stored"}},
		{true, false, []string{"restored", "stored"}},
		{false, true, []string{"expired", "fetched", "restored", "stored"}},
	} {
		pool := schematest.New(t)
		_, err := pool.Exec(t.Context(), `
CREATE TABLE things (collection text, did text, rkey text, fetched boolean);
CREATE VIEW made_things AS SELECT * FROM things WHERE NOT fetched;
INSERT INTO things SELECT CASE n WHEN 'unread' THEN 'com.example.b' ELSE 'com.example.a' END, 'did:plc:a', n, n = 'fetched'
FROM unnest(ARRAY['stored', 'restored', 'unread', 'deleted', 'expired', 'fetched']) AS n;
INSERT INTO things SELECT 'com.example.a', 'did:plc:b', 'many' || n, false FROM generate_series(1, 25) AS n;
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) SELECT collection, did, rkey, '2', 'c', now(), '{}'
FROM things WHERE rkey IN ('stored', 'restored', 'unread');
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) SELECT collection, did, rkey, '1', now() FROM things
WHERE rkey IN ('restored', 'deleted', 'fetched') OR rkey LIKE 'many%'`)
		require.NoError(t, err)
		p := schema.Projection{Name: "things", Collections: []string{"com.example.a"}, Tables: []string{"things"}, Expires: c.expires}
		if c.view {
			p.Compared = []string{"made_things"}
		}
		rounds := 0
		for n := 10; n == 10; rounds++ {
			n, err = p.RemoveStale(t.Context(), pool, 10)
			require.NoError(t, err)
		}
		require.Equal(t, 3, rounds)
		left, err := schema.All(t.Context(), pool, "read what is left", pgx.RowTo[string], `SELECT rkey FROM things ORDER BY rkey`)
		require.NoError(t, err)
		require.Equal(t, c.want, left, fmt.Sprint(c.expires, c.view))
	}
}
