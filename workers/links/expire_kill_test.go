package links

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// seedExpiry stores rows that are due and rows that are not, of every kind that expires. The old
// posts and shares with partitions are of the three days from $1.
const seedExpiry = `
INSERT INTO records (collection, did, rkey, rev, cid, created_at, indexed_at, record)
SELECT collection, did, rkey, rev, cid, at, at, record FROM (
SELECT 'app.bsky.feed.post', 'did:plc:seed' || n, tid_floor($1::timestamptz + n * interval '20 minutes'), 'r', 'c',
    $1::timestamptz + n * interval '20 minutes', '{}'::jsonb::jsonb
FROM generate_series(1, 200) AS n
UNION ALL
SELECT 'app.bsky.feed.post', 'did:plc:seed', 'late' || n, 'r', 'c', now() - CASE WHEN n % 10 = 0 THEN interval '1 hour'
    ELSE interval '5 days' END, '{}'::jsonb
FROM generate_series(1, 1500) AS n
UNION ALL
SELECT 'app.example.other', 'did:plc:seed', 'other' || n, 'r', 'c', now() - CASE WHEN n % 10 = 0 THEN interval '1 hour'
    ELSE interval '5 days' END, '{}'::jsonb
FROM generate_series(1, 1500) AS n
UNION ALL
SELECT 'app.bsky.feed.post', 'did:plc:gone', 'gone' || n, 'r', 'c', now(), '{}'::jsonb
FROM generate_series(1, 1500) AS n
) AS r (collection, did, rkey, rev, cid, at, record);

INSERT INTO accounts (did, status, status_at) VALUES ('did:plc:gone', 'deleted', now());

INSERT INTO links (identity, url, site, first_seen)
SELECT 'https://' || kind || '.example/' || n, 'https://' || kind || '.example/' || n, 's', now() - interval '20 days'
FROM (VALUES ('due', 1500), ('was-kept', 100), ('kept', 100), ('kept-odd', 100), ('four', 100), ('fell', 100),
    ('shared-again', 100), ('new', 100)) AS k (kind, many),
     generate_series(1, many) AS n;

-- due: without shares for two days; was-kept: until the day before yesterday.
UPDATE links SET kept_sharers = 5, kept_at = now() - interval '92 days' WHERE url LIKE 'https://was-kept.%';
INSERT INTO unshared_links SELECT id, now() - interval '2 days' FROM links WHERE url ~ '^https://(due|was-kept)[.]';

INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at)
SELECT CASE WHEN i = 5 AND k.kind = 'fell' THEN 'did:plc:gone' ELSE 'did:plc:seed' || i END, 'app.bsky.feed.post',
       CASE k.kind WHEN 'kept-odd' THEN 'odd' || l.id || '.' || i
           ELSE tid_floor(a.at + (l.id * 10 + i) * interval '1 microsecond') END, l.id, l.id, 'post', a.at, a.at
FROM (VALUES ('kept', 5), ('kept-odd', 5), ('four', 4), ('fell', 5), ('shared-again', 3), ('new', 2)) AS k (kind, sharers)
JOIN links AS l ON l.url LIKE 'https://' || k.kind || '.%',
     generate_series(1, sharers) AS i
CROSS JOIN LATERAL (SELECT CASE WHEN k.kind = 'new' OR k.kind = 'shared-again' AND i = 1 THEN now() - interval '1 hour'
    ELSE $1::timestamptz + l.id % 3 * interval '1 day' END) AS a (at);

INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
SELECT 'did:plc:gone', 'app.bsky.feed.post', 'gone' || row_number() OVER (), id, id, 'post', now() FROM links
WHERE url LIKE 'https://due.%';

INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
SELECT 'app.bsky.feed.post', 'did:plc:seed', 'deleted' || n, 'r', now() - CASE WHEN n % 10 = 0 THEN interval '6 days'
    ELSE interval '10 days' END
FROM generate_series(1, 1500) AS n`

// survivors are the rows that retention keeps, computed from the rows stored before any expiry:
// posts and records of the last day, except those of deleted accounts; shares of the last week;
// links that are shared, had five sharers when these shares expired, or are in their day of grace;
// tombstones of the last eight days.
const survivors = `
WITH kept AS (
    SELECT s.*, s.stored_at > now() - interval '7 days' AS stays
    FROM shares AS s
    WHERE s.did NOT IN (SELECT did FROM accounts WHERE status = 'deleted')
)
SELECT 'record ' || did || '/' || rkey FROM records
WHERE created_at > now() - interval '1 day' AND did NOT IN (SELECT did FROM accounts WHERE status = 'deleted')
UNION ALL SELECT 'link ' || l.url || CASE WHEN count(DISTINCT s.did) >= 5 THEN ' kept' ELSE '' END
FROM links AS l LEFT JOIN kept AS s ON s.link_id = l.id WHERE l.url !~ '^https://(due|was-kept)[.]' GROUP BY l.id
UNION ALL SELECT 'share ' || s.did || '/' || s.rkey || ' of ' || l.url FROM kept AS s JOIN links AS l ON l.id = s.link_id WHERE s.stays
UNION ALL SELECT 'tombstone ' || did || '/' || rkey FROM tombstones WHERE deleted_at > now() - interval '8 days'
ORDER BY 1`

const leftByExpiry = `
SELECT 'record ' || did || '/' || rkey FROM records
UNION ALL SELECT 'link ' || url || CASE WHEN kept_at IS NULL THEN '' ELSE ' kept' END FROM links
UNION ALL SELECT 'share ' || s.did || '/' || s.rkey || ' of ' || l.url FROM shares AS s JOIN links AS l ON l.id = s.link_id
UNION ALL SELECT 'tombstone ' || did || '/' || rkey FROM tombstones
ORDER BY 1`

// TestKilledInExpiry kills the process before the first batch of an expiry, the next process before
// the second batch of its own expiry, and so on, until an expiry ends. What is left then follows
// from the retention rules.
//
// It fails if an account counts as purged before its records and shares are deleted: they would
// stay after a kill between the two.
func TestKilledInExpiry(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now, old := time.Now(), time.Now().Add(-12*day)
	for at := range time.Duration(3) {
		require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, old.Add(at*day), 24*time.Hour))
		require.NoError(t, ranking.EnsureDays(t.Context(), pool, old.Add(at*day), 7*day))
	}
	for sql := range strings.SplitSeq(seedExpiry, ";\n") {
		var args []any
		if strings.Contains(sql, "$1") {
			args = []any{old}
		}
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	rows := func(sql string) []string {
		lines, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], sql)
		require.NoError(t, err)
		return lines
	}
	want := rows(survivors)
	kills := 0
	for err := context.Canceled; err != nil; kills++ {
		w := expirer(t, pool, Retention{}, workers.Retention{}, collection.Entry{Pattern: schema.PostCollection, Retention: day},
			collection.Entry{Pattern: "app.example.*", Retention: day})
		err = w.Run(crashpoint.Kill(t.Context(), 1+kills, "expiry: before a batch"), now)
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.Greater(t, kills, 9, "a kill before each of the nine kinds of rows")
	require.Equal(t, want, rows(leftByExpiry))
}
