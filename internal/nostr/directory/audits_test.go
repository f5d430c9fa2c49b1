package directory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestEventsOfADayAreFoundByAnIndex finds them among thousands of other days, and none of another
// kind or network.
func TestEventsOfADayAreFoundByAnIndex(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		SELECT c, 'did:nostr:' || n % 50, n::text, lpad(n::text, 16, '0') || '-' || md5(n::text), '', now(), '{}'
		FROM unnest(ARRAY['nostr.1', 'nostr.7', 'a.b.c']) AS c, generate_series(1, 3000) AS n`)
	execute(t, pool, `ANALYZE records_other`)
	args := []any{[]string{"nostr.1", "nostr.30023"}, fmt.Sprintf("%016d", 1000), fmt.Sprintf("%016d", 1020), 100}
	require.Contains(t, fmt.Sprint(column(t, pool, `EXPLAIN `+directory.EventsBetweenSQL, args...)), "records_other_dated")
	// they have these types
	found, err := directory.EventsBetween(t.Context(), pool, args[0].([]string), args[1].(string), args[2].(string), 20)
	require.NoError(t, err)
	require.Len(t, found, 20)
	_, err = directory.EventsBetween(t.Context(), pool, args[0].([]string), args[1].(string), args[2].(string), 19) // they have these types
	require.ErrorIs(t, err, directory.ErrManyRecords)
}

// TestDaysComparedBySetsAreComparedAgain shows that such days are compared again on each of the
// next days: authors' clocks are wrong by days, and if nothing is new this costs one message. Days
// that were read page by page are not compared again.
func TestDaysComparedBySetsAreComparedAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO relay_audits (stream, day, method, events, missing, stored, problem, ended_at)
		SELECT 'nostr:' || method, ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date - n, method, 1, 0, 0,
		    CASE WHEN method = 'negentropy' AND n = 3 THEN 'it cannot be paged' ELSE '' END, now() - n * interval '26 hours'
		FROM unnest(ARRAY['negentropy', 'pages']) AS method, generate_series(0, 6) AS n`)
	execute(t, pool, `UPDATE relay_audits SET ended_at = now() WHERE day = ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date - 1`)
	streams := []string{"nostr:negentropy", "nostr:pages"}
	stream, day, err := directory.DueAudit(t.Context(), pool, streams)
	require.NoError(t, err)
	require.Equal(t, "nostr:negentropy", stream)
	require.Equal(t, []string{day.Format(time.DateOnly)}, column(t, pool, `
SELECT (((now() - interval '1 hour') AT TIME ZONE 'UTC')::date - 2)::text`))
	require.NoError(t, directory.StoreAudit(t.Context(), pool, directory.Audit{
		Stream: stream, Day: day, Method: "negentropy", Missing: 3,
	}, true))
	_, _, err = directory.DueAudit(t.Context(), pool, streams)
	require.ErrorIs(t, err, schema.ErrNoRows,
		"no day is due: one was compared today, the day before cannot be compared yet, and earlier ones are skipped")
	execute(t, pool, `UPDATE relay_audits SET problem = ''`)
	_, again, err := directory.DueAudit(t.Context(), pool, streams)
	require.NoError(t, err)
	require.Equal(t, day.AddDate(0, 0, -1), again)
}
