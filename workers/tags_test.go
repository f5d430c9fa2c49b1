package workers

import (
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// kinds returns the job kinds in the source of package jobs.
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

// TestTagsOfJobs shows that River accepts the tags of every kind, and that the SQL function tag
// makes the same tags.
func TestTagsOfJobs(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	now := time.Now().UTC()
	covered := map[string]bool{}
	for _, c := range []struct {
		args river.JobArgs
		want []string
	}{
		{readPosts{Batch: jobs.Batch{Arrived: now, Stream: "jetstream"}}, []string{"stream-jetstream"}},
		{readPosts{jobs.Batch{Stream: `odd, "name" of é`}}, []string{"stream-odd-name-of"}},
		{readPosts{jobs.Batch{Stream: strings.Repeat("long ", 60)}}, []string{"stream-" + strings.Repeat("long-", 49) + "lon"}},
		{readPosts{jobs.Batch{Arrived: now}}, []string{"ingest"}},
		{readPosts{}, []string{"feed"}},
		{jobs.SyncFollows{}, []string{"every-watch"}},
		{jobs.SyncFollows{Watch: 1}, []string{}}, // tagged by the inserter, with the watch's kind
		{jobs.CloseGap{Gap: 1}, []string{}},      // tagged by the trigger, with the gap's stream
		{jobs.RequestBackfill{Account: "a.example", Priority: jobs.PriorityManual}, []string{"manual", "one-account"}},
		{jobs.RequestBackfill{All: true, Priority: jobs.PriorityColdStart}, []string{"cold-start", "every-account"}},
		{jobs.RequestBackfill{Watch: 1, Began: now, Priority: jobs.PriorityNewFollow}, []string{"new-follow", "second-read"}},
		{jobs.RequestBackfill{Priority: 9}, []string{"one-account"}},
		{jobs.SendAlert{Name: "WeirLag", Severity: "warning"}, []string{"warning", "WeirLag", "fires"}},
		{jobs.SendAlert{Name: "WeirNoConsumer", Severity: "critical", Resolved: true}, []string{"critical", "WeirNoConsumer", "resolved"}},
		{jobs.RunProjection{Name: "links"}, []string{"links"}},
		{jobs.CheckAlerts{}, []string{"periodic"}},
		{jobs.Expire{}, []string{"periodic"}},
		{jobs.DeleteExpired{}, []string{"periodic"}},
		{jobs.Audit{}, []string{"periodic"}},
		{jobs.RetryDeadLetters{}, []string{"periodic"}},
		{jobs.BackfillAccount{DID: "did:plc:a"}, []string{"manual"}},
		{jobs.ResyncRepo{DID: "did:plc:a"}, []string{"resync"}},
		{jobs.BackfillRepo{DID: "did:plc:a"}, []string{"history"}},
		{jobs.BackfillNetwork{Backfill: 1}, []string{"gap"}},
		{jobs.FillCollections{}, []string{"periodic"}},
	} {
		covered[c.args.Kind()] = true
		inserted, err := queue.Insert(t.Context(), c.args, nil)
		require.NoError(t, err)
		require.Equal(t, c.want, tagsOf(t, pool, inserted.Job.ID), "%+v", c.args)
		if p, ok := c.args.(readPosts); ok && p.Stream != "" {
			var tag string
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT tag('stream-' || $1)`, p.Stream).Scan(&tag))
			require.Equal(t, c.want, []string{tag})
		}
	}
	for _, kind := range kinds(t) {
		require.True(t, covered[kind], "%s: give it tags in its InsertOpts, and its cases here", kind)
	}
	require.Len(t, covered, len(kinds(t))+1, "the last one is of this package's tests")
}

// TestPeriodicJobLeavesNoDeadLetter shows that a periodic job without attempts left leaves none:
// the next run does the same work. Other jobs leave one.
func TestPeriodicJobLeavesNoDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, args := range []river.JobArgs{
		jobs.CheckAlerts{}, jobs.FillCollections{}, jobs.RetryDeadLetters{}, jobs.Expire{}, jobs.Audit{}, jobs.SyncFollows{}, readPosts{},
	} {
		inserted, err := queue.Insert(t.Context(), args, nil)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = $1`, inserted.Job.ID)
		require.NoError(t, err)
	}
	left, err := schema.All(t.Context(), pool, "list the dead letters", pgx.RowTo[string], `SELECT kind FROM dead_letters`)
	require.NoError(t, err)
	require.Equal(t, []string{"read_posts"}, left)
}

// numbered is a periodic job with arguments.
type numbered struct {
	Number int `json:"number"`
}

func (numbered) Kind() string { return "numbered" }

func (numbered) InsertOpts() river.InsertOpts { return jobs.Periodic(jobs.QueueNetwork, 1, 1) }

// TestNextRunSettlesTheDeadLetter shows that the success of a periodic job, of the same arguments,
// settles what an earlier run left.
func TestNextRunSettlesTheDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ends := func(args river.JobArgs, state string) (letters string) {
		inserted, err := queue.Insert(t.Context(), args, nil)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `UPDATE river_job SET state = $2::text::river_job_state, finalized_at = now() WHERE id = $1`,
			inserted.Job.ID, state)
		require.NoError(t, err)
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT string_agg(state, ' ' ORDER BY id) FROM dead_letters`).Scan(&letters))
		return letters
	}
	require.Equal(t, "open", ends(numbered{1}, "cancelled"))
	require.Equal(t, "open", ends(numbered{2}, "completed"))
	require.Equal(t, "retried", ends(numbered{1}, "completed"))
}

// TestTagsOfJobsFromSQL covers triggers and functions for operators.
func TestTagsOfJobsFromSQL(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for sql, want := range map[string][]string{
		`INSERT INTO watches (target, kind) VALUES ('b.example', 'starterpack') RETURNING id`: {
			"starterpack",
		},
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'x', now()) RETURNING id`: {
			"stream-s",
		},
		`SELECT enqueue_backfill('alice.example', interval '1 hour', 1)`: {"gap", "one-account"},
		`SELECT enqueue_backfill_all()`:                                  {"cold-start", "every-account"},
		`SELECT enqueue_retries()`:                                       {"manual"},
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
		var tags []string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT tags FROM river_job ORDER BY id DESC LIMIT 1`).Scan(&tags))
		require.Equal(t, want, tags, sql)
	}
}

// TestTagsFollowTheReason shows that a promoted backfill gets the tag of the better reason, stays
// one job, and keeps its other tags.
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
			added, err := EnqueueBackfills(t.Context(), tx, queue, []string{alice}, now, c.priority, now)
			require.Equal(t, c.added, added)
			return err
		}))
		var id int64
		require.NoError(t,
			pool.QueryRow(t.Context(), `SELECT max(id) FROM river_job WHERE kind = 'backfill_account' HAVING count(*) = 1`).Scan(&id))
		require.Equal(t, c.want, tagsOf(t, pool, id))
		_, err := pool.Exec(t.Context(), `UPDATE river_job SET tags = array_append(tags, $1) WHERE $1 <> ALL (tags)`, jobs.TagDeadLetter)
		require.NoError(t, err)
	}
}
