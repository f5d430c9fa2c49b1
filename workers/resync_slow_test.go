package workers

import (
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/simnet"
)

// TestSlowServerIsNoFailedAttempt: the account waits, and the call is not repeated at once,
// because that would keep others waiting.
func TestSlowServerIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	r := resyncing(t, func(c *Config) { c.Resync.Useful, c.Resync.Within = time.Hour, 3*time.Second })
	did, _ := r.busiest()
	r.follows(did)
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "com.atproto.sync.getRepo", Count: 1}))
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Slow, Endpoint: "com.atproto.sync.getRepo", Count: 1, Wait: time.Minute}))
	r.refuses(did, "")
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem LIKE '%getRepo%' AND due_at > now() + interval '50 minutes'`)
	require.Equal(t, 1, r.fetched())
	r.due()
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem LIKE 'the comparison did not end within 3s%' AND due_at > now() + interval '50 minutes'`)
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND errors IS NOT NULL`), "no attempt has failed")
	r.due()
	r.synchronized()
	require.Equal(t, 3, r.fetched())
}

// TestResyncsThatWaitForOthersKeepNoWorker: they neither occupy the queue of backfills nor
// count as begun.
func TestResyncsThatWaitForOthersKeepNoWorker(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := resyncing(t, func(c *Config) {
		read := c.ReadRepository
		c.ReadRepository = func(car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
			<-release
			return read(car, did, key)
		}
	})
	defer close(release)
	all := r.followed()[:5]
	r.follows(all...)
	for _, did := range all {
		r.refuses(did, "")
	}
	r.becomes(len(all)-resyncMemory, `SELECT count(*) FROM river_job WHERE kind = 'resync_repo' AND state = 'scheduled'`)
	r.becomes(resyncMemory, `SELECT count(*) FROM resyncs WHERE begun_at IS NOT NULL`)
}

// TestHugeRepositoryIsListedInstead: it is not read into memory.
func TestHugeRepositoryIsListedInstead(t *testing.T) {
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
