package workers

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/jobs"
)

// TestSlowServerIsNoFailedAttempt shows that the account waits, and that the call is not retried at
// once, because that would keep others waiting.
func TestSlowServerIsNoFailedAttempt(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := resyncing(t, func(c *Config) { c.Resync.Useful, c.Resync.First = time.Hour, 3*time.Second })
	did, _ := r.busiest()
	r.follows(did)
	const late = `problem LIKE 'the comparison did not end within %'`
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Slow, Endpoint: "com.atproto.sync.getRepo", Count: 1, Wait: time.Minute}))
	r.refuses(did, "")
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE `+late+` AND due_at > now() + interval '50 minutes'`)
	r.net.ClearCallFaults()
	// the next attempts may take longer
	r.execute(`UPDATE river_job SET created_at = created_at - interval '1 hour' WHERE kind = 'resync_repo'`)
	before := r.fetched()
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "com.atproto.sync.getRepo", Count: 1}))
	r.due()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem LIKE '%getRepo%' AND NOT `+late+` AND due_at > now() + interval '50 minutes'`)
	require.Equal(t, before+1, r.fetched())
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND errors IS NOT NULL`), "no attempt may fail")
	r.due()
	r.synchronized()
	require.Equal(t, before+2, r.fetched())
}

// TestKilledResyncBeginsAgainSoon shows that the job of a killed worker waits for its timeout only.
func TestKilledResyncBeginsAgainSoon(t *testing.T) {
	t.Parallel()
	w := newResyncRepo(Config{Shared: Shared{Logger: slog.New(slog.DiscardHandler)}})
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Minute, 0: time.Minute, 3 * time.Minute: 3 * time.Minute, time.Hour: 9 * time.Minute,
	} {
		created := time.Now()
		attempted := created.Add(age)
		job := &river.Job[jobs.ResyncRepo]{JobRow: &rivertype.JobRow{CreatedAt: created, AttemptedAt: &attempted}}
		require.InDelta(t, want*10/9, w.Timeout(job), float64(time.Second), age)
	}
}

// blocked is a rig whose resyncs of some accounts do not end before the test does.
func blocked(t *testing.T, which func(did string) bool) *rig {
	t.Helper()
	release := make(chan struct{})
	r := resyncing(t, func(c *Config) {
		read := c.ReadRepository
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			if which(did) {
				<-release
			}
			return read(car, did, key)
		}
	})
	t.Cleanup(func() { close(release) })
	return r
}

// TestResyncsKeepNoBackfillWaiting shows that few repositories are in memory at once, and that
// resyncs that wait for memory do not count as begun.
func TestResyncsKeepNoBackfillWaiting(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := blocked(t, func(string) bool { return true })
	all := r.followed()[:5]
	r.follows(all...)
	for _, did := range all {
		r.refuses(did, "")
	}
	r.becomes(resyncsAtOnce, `SELECT count(*) FROM resyncs WHERE begun_at IS NOT NULL`)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, r.followed()[5])
	r.becomes(1, `SELECT count(*) FROM accounts WHERE did = $1 AND feed_read_at IS NOT NULL`, r.followed()[5])
	require.Equal(t, len(all)-resyncsAtOnce, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'available'`))
}

// TestSlowRepositoriesLetOthersThrough shows that accounts that could not be compared in time do
// not occupy all workers the next time.
func TestSlowRepositoriesLetOthersThrough(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	var slow []string
	r := blocked(t, func(did string) bool { return slices.Contains(slow, did) })
	all := r.followed()[:5]
	slow = all[:3]
	r.follows(all...)
	r.pauses(jobs.QueueResync)
	for _, did := range slow {
		r.refuses(did, "")
	}
	r.execute(`UPDATE resyncs SET problem = 'the comparison did not end'`)
	require.NoError(t, r.client.QueueResume(t.Context(), jobs.QueueResync, nil))
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE begun_at IS NOT NULL`)
	r.becomes(2, `SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state IN ('scheduled', 'available') AND scheduled_at > now()`)
	for _, did := range all[3:] {
		r.refuses(did, "")
	}
	r.becomes(2, `SELECT count(*) FROM resyncs WHERE desynchronized_at IS NULL`)
}

// TestHugeRepositoryIsListedInstead shows that a huge repository is listed instead of being read
// into memory.
func TestHugeRepositoryIsListedInstead(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	r := resyncing(t, nil)
	did, _ := r.busiest()
	r.follows(did)
	old := r.posts(did)
	require.NoError(t, r.net.DeleteRecord(uri(did, old[0].Rkey)))
	_, err := r.net.PostNow(did, "missed")
	require.NoError(t, err)
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Huge, Endpoint: "com.atproto.sync.getRepo", Count: 1}))
	r.refuses(did, "")
	r.synchronized()
	require.Equal(t, 1, r.fetched())
	require.Equal(t, 1, r.count(`SELECT count(*) FROM posts WHERE record ->> 'text' = 'missed'`))
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, did, old[0].Rkey))
}
