package workers

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema/schematest"
)

// kinds are those of the package jobs, as its source has them.
func kinds(t *testing.T) (found []string) {
	t.Helper()
	files, err := filepath.Glob("../jobs/*.go")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`Kind\(\) string { return "(\w+)" }`).FindAllStringSubmatch(string(source), -1) {
			found = append(found, m[1])
		}
	}
	return found
}

func tagsOf(t *testing.T, pool *pgxpool.Pool, job int64) (tags []string) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT tags FROM river_job WHERE id = $1`, job).Scan(&tags))
	return tags
}

// TestTagsAreTheSameFromGoAndSQL, of every kind, and are such as River takes.
func TestTagsAreTheSameFromGoAndSQL(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	var list, gap int64
	require.NoError(t, pool.QueryRow(t.Context(), `INSERT INTO watches (target, kind) VALUES ('a.example', 'second-degree') RETURNING id`).Scan(&list))
	require.NoError(t, pool.QueryRow(t.Context(), `INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('jetstream-2', now() - interval '1 hour', now(), 'x', now()) RETURNING id`).Scan(&gap))
	now := time.Now().UTC()
	covered := map[string]bool{}
	for _, c := range []struct {
		args river.JobArgs
		want []string
	}{
		{jobs.ProcessPosts{Posts: []string{"did/rkey"}, Arrived: now, Stream: "jetstream"}, []string{"stream-jetstream"}},
		{jobs.ProcessPosts{Stream: `odd, "name" of é`}, []string{"stream-odd-name-of"}},
		{jobs.ProcessPosts{Arrived: now}, []string{"replay"}},
		{jobs.ProcessPosts{}, []string{"feed"}},
		{jobs.SyncFollows{Watch: list}, []string{"second-degree"}},
		{jobs.SyncFollows{}, []string{"every-watch"}},
		{jobs.SyncFollows{Watch: 99}, []string{"no-watch"}},
		{jobs.CloseGap{Gap: gap}, []string{"stream-jetstream-2"}},
		{jobs.CloseGap{Gap: 99}, []string{"no-gap"}},
		{jobs.RequestBackfill{Account: "a.example", Priority: jobs.PriorityManual}, []string{"manual", "one-account"}},
		{jobs.RequestBackfill{All: true, Priority: jobs.PriorityColdStart}, []string{"cold-start", "every-account"}},
		{jobs.RequestBackfill{Watch: list, Began: now, Priority: jobs.PriorityNewFollow}, []string{"new-follow", "second-read"}},
		{jobs.SendAlert{Name: "WeirLag", Severity: "warning"}, []string{"warning", "WeirLag", "fires"}},
		{jobs.SendAlert{Name: "WeirNoConsumer", Severity: "critical", Resolved: true}, []string{"critical", "WeirNoConsumer", "resolved"}},
		{jobs.ReplayDeadLetters{}, []string{"asked-for"}},
		{jobs.RunProjection{Name: "links"}, []string{}},
		{jobs.CheckAlerts{}, []string{"periodic"}},
		{jobs.Expire{}, []string{"periodic"}},
		{jobs.Audit{}, []string{"periodic"}},
		{jobs.BackfillAccount{DID: "did:plc:a"}, []string{"gap"}}, // in SQL a job's priority is 1
	} {
		covered[c.args.Kind()] = true
		inserted, err := queue.Insert(t.Context(), c.args, &river.InsertOpts{Priority: 1})
		require.NoError(t, err)
		require.Equal(t, c.want, tagsOf(t, pool, inserted.Job.ID), "%s from Go", c.args.Kind())
		raw, err := json.Marshal(c.args)
		require.NoError(t, err)
		var id int64
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT enqueue_job($1, $2, $3)`, c.args.Kind(), inserted.Job.Queue, raw).Scan(&id))
		require.Equal(t, c.want, tagsOf(t, pool, id), "%s from SQL", c.args.Kind())
		for _, tag := range c.want {
			require.Regexp(t, `\A[\w][\w\-]+[\w]\z`, tag)
			require.LessOrEqual(t, len(tag), 255)
		}
	}
	for _, kind := range kinds(t) {
		require.True(t, covered[kind], "%s: give it tags in tags_of, and its cases here", kind)
	}
	require.Len(t, covered, len(kinds(t)))
}

// TestTagsOfTriggers and functions in SQL.
func TestTagsOfTriggers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for sql, want := range map[string][]string{
		`INSERT INTO watches (target, kind) VALUES ('b.example', 'starterpack') RETURNING id`:                                                  {"starterpack"},
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'x', now()) RETURNING id`: {"stream-s"},
		`SELECT enqueue_backfill('alice.example', interval '1 hour', 1)`:                                                                       {"gap", "one-account"},
		`SELECT enqueue_backfill_all()`: {"cold-start", "every-account"},
		`SELECT ask_for_replays()`:      {"asked-for"},
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
		var tags []string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT tags FROM river_job ORDER BY id DESC LIMIT 1`).Scan(&tags))
		require.Equal(t, want, tags, sql)
	}
}

// TestTagsFollowTheReason: a backfill that is promoted is one of the better
// reason, stays one job, and keeps the tags that others gave it.
func TestTagsFollowTheReason(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	now := time.Now()
	for _, c := range []struct {
		priority, added int
		want            []string
	}{
		{jobs.PriorityColdStart, 1, []string{"cold-start"}},
		{jobs.PriorityManual, 0, []string{"manual", jobs.TagDeadLetter}},
		{jobs.PriorityNewFollow, 0, []string{"manual", jobs.TagDeadLetter}},
		{jobs.PriorityGap, 0, []string{"gap", jobs.TagDeadLetter}},
	} {
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			added, err := enqueueBackfills(t.Context(), tx, queue, []string{alice}, now, c.priority, now)
			require.Equal(t, c.added, added)
			return err
		}))
		var id int64
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT max(id) FROM river_job WHERE kind = 'backfill_account' HAVING count(*) = 1`).Scan(&id))
		require.Equal(t, c.want, tagsOf(t, pool, id))
		_, err := pool.Exec(t.Context(), `UPDATE river_job SET tags = array_append(tags, $1) WHERE $1 <> ALL (tags)`, jobs.TagDeadLetter)
		require.NoError(t, err)
	}
}
