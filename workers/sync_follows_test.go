package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// a sync that began earlier and ended later takes back what a newer one brought.
func TestOlderListingDoesNotUndoANewerOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	others := r.followed()
	r.net.SetLatency(2 * time.Second)
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
	require.Eventually(t, func() bool { return len(r.net.Calls("app.bsky.graph.getFollows")) >= 2 }, 20*time.Second, 5*time.Millisecond, "its first page is read")
	require.NoError(t, r.net.Unfollow(hub.DID, others[:5]...))
	r.net.SetLatency(0)
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state = 'completed' AND args ->> 'watch' <> '0'`)
	require.Equal(t, len(others)-5, r.count(`SELECT count(*) FROM watched`), "the newer one has ended")
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state IN ('available', 'running', 'scheduled', 'retryable')`)
	require.Equal(t, len(others)-5, r.count(`SELECT count(*) FROM watched`), "unfollowed for good; %d calls", len(r.net.Calls("app.bsky.graph.getFollows")))
}
