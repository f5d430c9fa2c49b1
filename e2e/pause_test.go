package e2e

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/workers"
)

// TestPausedQueueWaits shows that River UI's pause button stops the queue and
// nothing else, with and without a pooler. Posts are committed meanwhile, and
// processed when the queue resumes.
func TestPausedQueueWaits(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for _, pooler := range []string{"none", "transaction"} {
		t.Run("pooler "+pooler, func(t *testing.T) {
			t.Parallel()
			n, database := network(t, 200), schematest.NewURL(t)
			pool := open(t, database)
			env := append(reads(n, database), "WEIR_POOLER="+pooler)
			if pooler == "transaction" {
				env = append(env, "DATABASE_URL="+pooled(t, database))
			}
			start(t, env, "serve")
			done := func() int {
				return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state = 'completed'`)
			}
			waiting := func() int {
				return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state = 'available'`)
			}
			eventually.True(t, func() bool { return done() > 0 }, 20*time.Millisecond)

			ui, err := workers.Queue(pool, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			require.NoError(t, ui.QueuePause(t.Context(), jobs.QueueProcess, nil))
			stop := live(t, n, 200)
			at := count(t, pool, `SELECT count(*) FROM posts`)
			before, since := done(), waiting()
			eventually.True(t, func() bool {
				now, piled := done(), waiting()
				if now != before { // the workers have not noticed yet
					before, since = now, piled
				}
				return piled > since+30 // ten posts a second arrive; the workers poll every second
			}, 20*time.Millisecond, "the queue is not paused")
			require.Greater(t, count(t, pool, `SELECT count(*) FROM posts`), at, "the stream must not be paused")

			require.NoError(t, ui.QueueResume(t.Context(), jobs.QueueProcess, nil))
			stop()
			eventually.True(t, func() bool { return waiting() == 0 && done() > before+30 }, 20*time.Millisecond)
		})
	}
}

// TestWorkOnlyTheNamedQueues shows that jobs of the named queues are processed,
// and that unknown queues are refused.
func TestWorkOnlyTheNamedQueues(t *testing.T) {
	t.Parallel()
	n, database := network(t, 500), schematest.NewURL(t)
	pool := open(t, database)
	finished := func(kind string) int {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = '`+kind+`' AND state = 'completed'`)
	}
	start(t, reads(n, database), "consume")
	work := start(t, reads(n, database), "work", "--queues", "network,maintenance")
	eventually.True(t, func() bool { return finished("sync_follows") > 0 }, 20*time.Millisecond)
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM posts`) > 300 }, 20*time.Millisecond)
	require.Zero(t, finished("process_posts"))
	start(t, reads(n, database), "work", "--queues", "process")
	eventually.True(t, func() bool { return finished("process_posts") > 0 }, 20*time.Millisecond)
	work.kill()

	_, stderr, code := weir(t, reads(n, database), "work", "--queues", "proces")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `unknown queue "proces": expected some of alerts, backfill, cards, maintenance, network, process`)
}
