package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/eventually"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// expiryStep is a step of an expiry, with what it still has to delete.
type expiryStep struct {
	name, from, where string
	key               string // what identifies a row, or the name of a partition
	partitions        bool   // it drops partitions
}

func (s expiryStep) left() string { return `SELECT count(*) FROM ` + s.from + ` WHERE ` + s.where }

// stop makes the deletion of a random row, or the drop of a random partition, wait for an advisory
// lock. It returns the SQL that undoes this.
func (s expiryStep) stop(t *testing.T, pool *pgxpool.Pool) (undo string) {
	t.Helper()
	from := s.from
	if !s.partitions {
		from += ` AS old` // as a trigger calls the row
	}
	one, err := schema.One(t.Context(), pool, "choose what the kill waits for", pgx.RowTo[string],
		`SELECT `+s.key+` FROM `+from+` WHERE `+s.where+` ORDER BY random() LIMIT 1`)
	require.NoError(t, err)
	wait := fmt.Sprintf(`PERFORM pg_advisory_xact_lock_shared(%d)`, expiryStops)
	sql := `CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ` + wait + `; RETURN OLD; END $$;
		CREATE TRIGGER stop BEFORE DELETE ON ` + s.from + ` FOR EACH ROW WHEN (` + s.key + ` = '` + one + `') EXECUTE FUNCTION stop()`
	if s.partitions {
		sql = `CREATE FUNCTION stop() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() WHERE object_name = '` + one + `') THEN ` + wait + `; END IF; END $$;
			CREATE EVENT TRIGGER stop ON sql_drop EXECUTE FUNCTION stop()`
	}
	_, err = pool.Exec(t.Context(), sql)
	require.NoError(t, err)
	return `DROP FUNCTION stop() CASCADE`
}

// expiryStops is the advisory lock that a step waits for.
const expiryStops = 8101

// expirySteps are the steps of an expiry in order.
var expirySteps = []expiryStep{
	{name: "posts", from: `pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid`, key: `c.relname`, partitions: true,
		where: `i.inhparent = 'posts'::regclass AND c.relname < to_char(now() AT TIME ZONE 'UTC' - interval '3 days', '"posts_"YYYYMMDD')`},
	{name: "late posts", from: `posts_default`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seed%' AND created_at < now() - interval '2 days'`},
	{name: "other records", from: `records_other`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seed%' AND created_at < now() - interval '2 days'`},
	{name: "an account's records", from: `posts_default`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seedgone%'`},
	{name: "an account's shares", from: `shares_default`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seedgone%'`},
	{name: "days of shares", from: `shares`, key: `tableoid::regclass::text`, partitions: true, where: `did LIKE 'did:plc:seed%' AND rkey < tid_floor(now() - interval '9 days')`},
	{name: "other shares", from: `shares_default`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seed%' AND stored_at < now() - interval '8 days'`},
	{name: "links", from: `links`, key: `old.url`, where: `url LIKE 'https://due%'`},
	{name: "tombstones", from: `tombstones`, key: `old.did || old.rkey`, where: `did LIKE 'did:plc:seed%' AND deleted_at < now() - interval '9 days'`},
}

// seedExpiry stores rows that are due and rows that are not, of every kind that
// expires. Their keys contain the round, $1.
const seedExpiry = `
INSERT INTO records (collection, did, rkey, rev, cid, created_at, indexed_at, record)
SELECT collection, did, rkey, rev, cid, at, at, record FROM (
SELECT 'app.bsky.feed.post', 'did:plc:seed.' || $1 || '.' || n, tid_floor($2::timestamptz + n * interval '20 minutes'), 'r', 'c', $2::timestamptz + n * interval '20 minutes', '{}'::jsonb::jsonb
FROM generate_series(1, 200) AS n
UNION ALL
SELECT 'app.bsky.feed.post', 'did:plc:seed.' || $1, 'late' || n, 'r', 'c', now() - CASE WHEN n % 10 = 0 THEN interval '1 hour' ELSE interval '5 days' END, '{}'::jsonb
FROM generate_series(1, 4000) AS n
UNION ALL
SELECT 'app.example.other', 'did:plc:seed.' || $1, 'other' || n, 'r', 'c', now() - CASE WHEN n % 10 = 0 THEN interval '1 hour' ELSE interval '5 days' END, '{}'::jsonb
FROM generate_series(1, 4000) AS n
UNION ALL
SELECT 'app.bsky.feed.post', 'did:plc:seedgone.' || $1, 'gone' || n, 'r', 'c', now(), '{}'::jsonb
FROM generate_series(1, 1500) AS n
) AS r (collection, did, rkey, rev, cid, at, record);

INSERT INTO accounts (did, status, status_at) VALUES ('did:plc:seedgone.' || $1, 'deleted', now());

INSERT INTO links (identity, url, site, first_seen)
SELECT 'https://' || kind || '.example/' || $1 || '.' || n, 'https://' || kind || '.example/' || $1 || '.' || n, 's', now() - interval '20 days'
FROM (VALUES ('due', 3000), ('was-kept', 100), ('kept', 100), ('kept-odd', 100), ('four', 100), ('fell', 100), ('shared-again', 100), ('new', 100)) AS k (kind, many),
     generate_series(1, many) AS n;

-- due: without shares for two days; was-kept: until the day before yesterday.
UPDATE links SET kept_sharers = 5, kept_at = now() - interval '92 days' WHERE url LIKE 'https://was-kept.example/' || $1 || '.%';
INSERT INTO unshared_links SELECT id, now() - interval '2 days' FROM links WHERE url ~ ('^https://(due|was-kept)[.]example/' || $1 || '[.]');

INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at)
SELECT 'did:plc:seed' || CASE WHEN i = 5 AND k.kind = 'fell' THEN 'gone.' || $1 ELSE i::text END, 'app.bsky.feed.post',
       CASE k.kind WHEN 'kept-odd' THEN 'odd' || l.id || '.' || i ELSE tid_floor(a.at + (l.id * 10 + i) * interval '1 microsecond') END, l.id, l.id, 'post', a.at, a.at
FROM (VALUES ('kept', 5), ('kept-odd', 5), ('four', 4), ('fell', 5), ('shared-again', 3), ('new', 2)) AS k (kind, sharers)
JOIN links AS l ON l.url LIKE 'https://' || k.kind || '.example/' || $1 || '.%',
     generate_series(1, sharers) AS i
CROSS JOIN LATERAL (SELECT CASE WHEN k.kind = 'new' OR k.kind = 'shared-again' AND i = 1 THEN now() - interval '1 hour' ELSE $2::timestamptz + l.id % 3 * interval '1 day' END) AS a (at);

INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
SELECT 'did:plc:seedgone.' || $1, 'app.bsky.feed.post', 'gone' || row_number() OVER (), id, id, 'post', now() FROM links WHERE url LIKE 'https://due.example/' || $1 || '.%';

INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
SELECT 'app.bsky.feed.post', 'did:plc:seed.' || $1, 'deleted' || n, 'r', now() - CASE WHEN n % 10 = 0 THEN interval '6 days' ELSE interval '10 days' END
FROM generate_series(1, 3000) AS n`

// survivors are the rows of round $1 that retention keeps, computed from the rows stored before any
// expiry: posts and records of the last day, except those of deleted accounts; shares of the last
// week; links that are shared, had five sharers when these shares expired, or are in their day of
// grace; tombstones of the last eight days.
const survivors = `
WITH kept AS (
    SELECT s.*, s.stored_at > now() - interval '7 days' AS stays
    FROM shares AS s
    WHERE s.did NOT IN (SELECT did FROM accounts WHERE status = 'deleted')
)
SELECT line FROM (
    SELECT 'record ' || did || '/' || rkey AS line FROM records
    WHERE created_at > now() - interval '1 day' AND did NOT IN (SELECT did FROM accounts WHERE status = 'deleted')
    UNION ALL SELECT 'link ' || l.url || CASE WHEN count(DISTINCT s.did) >= 5 THEN ' kept' ELSE '' END
    FROM links AS l LEFT JOIN kept AS s ON s.link_id = l.id WHERE l.url !~ '^https://(due|was-kept)[.]' GROUP BY l.id
    UNION ALL SELECT 'share ' || s.did || '/' || s.rkey || ' of ' || l.url FROM kept AS s JOIN links AS l ON l.id = s.link_id WHERE s.stays
    UNION ALL SELECT 'tombstone ' || did || '/' || rkey FROM tombstones WHERE deleted_at > now() - interval '8 days'
) AS l
WHERE line LIKE '%' || $1 || '.%' OR line LIKE '%seed.' || $1 || '/%'`

// seeded is every row of any round.
const seeded = `
SELECT 'record ' || did || '/' || rkey FROM records WHERE did LIKE 'did:plc:seed%'
UNION ALL SELECT 'link ' || url || CASE WHEN kept_at IS NULL THEN '' ELSE ' kept' END FROM links WHERE url ~ '^https://[a-z-]+[.]example/round'
UNION ALL SELECT 'share ' || s.did || '/' || s.rkey || ' of ' || l.url FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE s.did LIKE 'did:plc:seed%'
UNION ALL SELECT 'tombstone ' || did || '/' || rkey FROM tombstones WHERE did LIKE 'did:plc:seed%'`

// TestKillInExpiry kills the real binary in steps of an expiry. It then compares the seeded rows
// with the retention rules, and the rows from the stream with the fold of its log. It kills in two
// of the steps, chosen at random; with WEIR_CHAOS, in each step; with WEIR_KILLS, that many times.
//
// It fails if an account counts as purged before its records and shares are deleted: they would
// stay after a kill between the two.
func TestKillInExpiry(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	wanted := len(expirySteps)
	if chaosLength(t) == 0 {
		wanted = 2
	}
	steps := rand.Perm(len(expirySteps))
	if n, err := strconv.Atoi(os.Getenv("WEIR_KILLS")); err == nil {
		wanted = n
	}
	k := newKilling(t)
	k.process.kill()
	k.env = append(k.env, "WEIR_RETENTION=24h", "WEIR_COLLECTIONS=app.bsky.feed.post,app.bsky.feed.repost,app.example.*")
	pool := open(t, k.server.URL("weir"))
	stop := live(t, k.net, 100)
	var want []string
	for ; k.kills < wanted; k.kills++ {
		want = append(want, k.seed(pool, k.kills)...)
		k.killIn(pool, expirySteps[steps[k.kills%len(steps)]])
	}
	k.process = start(t, k.env, "serve")
	stop()
	k.drain(pool)
	k.finish(pool)
	slices.Sort(want)
	require.Equal(t, want, lines(t, pool, seeded))
	for _, step := range expirySteps {
		require.Zero(t, count(t, pool, step.left()), step.name)
	}
	for _, sql := range []string{`DELETE FROM shares WHERE did LIKE 'did:plc:seed%'`, `DELETE FROM links WHERE url ~ '^https://[a-z-]+[.]example/round'`,
		`DELETE FROM records WHERE did LIKE 'did:plc:seed%'`, `DELETE FROM tombstones WHERE did LIKE 'did:plc:seed%'`, `DELETE FROM accounts WHERE did LIKE 'did:plc:seed%'`} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	k.deadLettersExpected, k.purges = 0, true
	k.compare()
}

// seed stores a round, and returns the rows that must remain.
func (k *killing) seed(pool *pgxpool.Pool, n int) []string {
	k.t.Helper()
	round, old := fmt.Sprintf("round%d", n), time.Now().AddDate(0, 0, -12-3*n)
	for at := range 3 { // the seeded posts span three days
		partitioned(k.t, pool, old.AddDate(0, 0, at))
	}
	require.NoError(k.t, pgx.BeginFunc(k.t.Context(), pool, func(tx pgx.Tx) error {
		for sql := range strings.SplitSeq(seedExpiry, ";\n") {
			args := []any{round, old}
			if !strings.Contains(sql, "$2") {
				args = args[:1]
			}
			if _, err := tx.Exec(k.t.Context(), sql, args...); err != nil {
				return err
			}
		}
		return nil
	}))
	return lines(k.t, pool, survivors, round)
}

// killIn starts the process, and kills it while a step deletes. The server then rolls back, or
// finishes the statement, because all of it had arrived.
func (k *killing) killIn(pool *pgxpool.Pool, step expiryStep) {
	k.t.Helper()
	due := count(k.t, pool, step.left())
	undo := step.stop(k.t, pool)
	holder, err := pool.Acquire(k.t.Context())
	require.NoError(k.t, err)
	defer holder.Release()
	_, err = holder.Exec(k.t.Context(), `SELECT pg_advisory_lock($1)`, expiryStops)
	require.NoError(k.t, err)
	stopped := fmt.Sprintf(`FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = %d AND objsubid = 1 AND NOT granted`, expiryStops)
	k.process = start(k.t, k.env, "serve")
	k.expire(pool)
	eventually.True(k.t, func() bool {
		n, err := tryCount(pool, `SELECT count(*) `+stopped)
		return err == nil && n > 0
	}, 10*time.Millisecond, "expiry does not come to %s: %s", step.name, tail(k.process.stderr.String(), 2000))
	k.process.kill()
	rolledBack := rand.IntN(2) == 0
	if rolledBack {
		require.Positive(k.t, count(k.t, pool, `SELECT count(pg_terminate_backend(pid)) `+stopped))
	}
	_, err = holder.Exec(k.t.Context(), `SELECT pg_advisory_unlock($1)`, expiryStops)
	require.NoError(k.t, err)
	_, err = pool.Exec(k.t.Context(), undo)
	require.NoError(k.t, err)
	left := count(k.t, pool, step.left())
	if rolledBack {
		require.Positive(k.t, left, "the step %s was rolled back and left nothing", step.name)
	}
	k.t.Logf("killed in %s: %d of %d left, rolled back: %t", step.name, left, due, rolledBack)
}

// expire enqueues an expiry in SQL, in addition to those that killed processes left unfinished, and
// returns the job.
func (k *killing) expire(pool *pgxpool.Pool) (job int) {
	k.t.Helper()
	return count(k.t, pool, `INSERT INTO river_job (args, kind, max_attempts, queue) VALUES ('{}', 'expire', 5, 'maintenance') RETURNING id`)
}

// finish waits until an expiry has completed undisturbed.
func (k *killing) finish(pool *pgxpool.Pool) {
	k.t.Helper()
	job := k.expire(pool)
	eventually.True(k.t, func() bool {
		n, err := tryCount(pool, fmt.Sprintf(`SELECT count(*) FROM river_job WHERE id = %d AND state = 'completed'`, job))
		return err == nil && n == 1
	}, 20*time.Millisecond, "expiry does not end: %s", tail(k.process.stderr.String(), 2000))
}

func lines(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(all)
	return all
}

// forget removes the accounts that were ever deleted from both sides: which of their rows remain
// depends on whether an expiry ran before they returned.
func (k *killing) forget(tr *oracle, pool *pgxpool.Pool) {
	k.t.Helper()
	deleted := map[string]bool{}
	for _, e := range k.net.Log().Entries() {
		if e.Kind == "account" && e.Status == "deleted" {
			deleted[e.DID] = true
		}
	}
	maps.DeleteFunc(tr.records, func(key recordKey, _ recordRow) bool { return deleted[key.did] })
	maps.DeleteFunc(tr.tombstones, func(key recordKey, _ tombstoneRow) bool { return deleted[key.did] })
	maps.DeleteFunc(tr.shares, func(key shareKey, s shareRow) bool { return deleted[key.did] || deleted[s.through] })
	maps.DeleteFunc(tr.accounts, func(key accountKey, _ accountRow) bool { return deleted[string(key)] })
	for _, table := range []string{"records", "tombstones", "shares", "accounts"} {
		_, err := pool.Exec(k.t.Context(), `DELETE FROM `+table+` WHERE did = ANY ($1)`, slices.Collect(maps.Keys(deleted)))
		require.NoError(k.t, err)
	}
	_, err := pool.Exec(k.t.Context(), `DELETE FROM shares WHERE subject_did = ANY ($1)`, slices.Collect(maps.Keys(deleted)))
	require.NoError(k.t, err)
}

// partitioned creates the partitions of posts and shares around a time, as soon as it can lock the
// tables.
func partitioned(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	var err error
	eventually.True(t, func() bool {
		if err = schema.EnsurePostPartitions(t.Context(), pool, at, 24*time.Hour); err == nil {
			err = ranking.EnsureDays(t.Context(), pool, at, 7*24*time.Hour)
		}
		return !errors.Is(err, schema.ErrBusy)
	}, 10*time.Millisecond)
	require.NoError(t, err)
}
