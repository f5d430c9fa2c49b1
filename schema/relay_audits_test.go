package schema_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// TestEventsOfADayAreFoundByAnIndex among thousands of other days, and none of another kind or
// network.
func TestEventsOfADayAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT c, 'did:nostr:' || n % 50, n::text, lpad(n::text, 16, '0') || '-' || md5(n::text), '', now(), '{}'
		FROM unnest(ARRAY['nostr.1', 'nostr.7', 'a.b.c']) AS c, generate_series(1, 3000) AS n`)
	execute(t, pool, `ANALYZE records_other`)
	args := []any{[]string{"nostr.1", "nostr.30023"}, fmt.Sprintf("%016d", 1000), fmt.Sprintf("%016d", 1020), 100}
	require.Contains(t, fmt.Sprint(column(t, pool, `EXPLAIN `+schema.EventsBetweenSQL, args...)), "records_other_dated")
	found, err := schema.EventsBetween(t.Context(), pool, args[0].([]string), args[1].(string), args[2].(string), 20) //nolint:forcetypeassert // they are
	require.NoError(t, err)
	require.Len(t, found, 20)
	_, err = schema.EventsBetween(t.Context(), pool, args[0].([]string), args[1].(string), args[2].(string), 19) //nolint:forcetypeassert // they are
	require.ErrorIs(t, err, schema.ErrManyRecords)
}
