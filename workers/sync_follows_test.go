package workers

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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

// TestChangedWatchIsReadAnew, by plain SQL, and nobody stays whom only what it
// was of before brought.
func TestChangedWatchIsReadAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub, followed := r.net.Hub(), r.followed()
	list, err := r.net.MakeList(hub.DID, followed[:7]...)
	require.NoError(t, err)
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
	r.becomes(len(followed), `SELECT count(*) FROM watched`)
	before, err := schema.FindWatch(t.Context(), r.pool, 1)
	require.NoError(t, err)

	r.execute(`UPDATE watches SET target = $1, kind = 'list'`, list)
	require.LessOrEqual(t, r.count(`SELECT count(*) FROM watched`), 7, "at once")
	r.becomes(7, `SELECT count(*) FROM watched`)
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := schema.SetMembers(t.Context(), tx, before, []schema.Member{{DID: alice}}, time.Now())
		require.ErrorIs(t, err, schema.ErrNoRows, "a listing of what it was of before")
		return nil
	}))

	r.execute(`UPDATE watches SET target = 'nobody.example', kind = 'follows'`)
	r.becomes(1, `SELECT count(*) FROM watches WHERE problem <> ''`)
	require.Zero(t, r.count(`SELECT count(*) FROM watched`))

	require.NoError(t, r.net.Unfollow(hub.DID, r.net.Follows(hub.DID)[5:]...))
	r.execute(`UPDATE watches SET target = $1, kind = 'second-degree', at_least = 3`, hub.DID)
	r.becomes(1, `SELECT count(*) FROM watches WHERE problem = '' AND synced_at IS NOT NULL`)
	many := r.count(`SELECT count(*) FROM watched`)
	r.execute(`UPDATE watches SET at_least = 1`)
	require.Eventually(t, func() bool { return r.count(`SELECT count(*) FROM watched`) > many }, time.Minute, 5*time.Millisecond)

	jobs := r.count(`SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`)
	r.execute(`UPDATE watches SET target = target, at_least = at_least, problem = ''`)
	require.Equal(t, jobs, r.count(`SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`), "nothing has changed")
}
