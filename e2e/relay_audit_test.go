package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestRelaysAreComparedDaily has events reach relays a day late, while the process is down. They
// are found and stored, by sets of ids or by pages, although the process is killed in the middle.
// Deleted and forged events are not stored.
func TestRelaysAreComparedDaily(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 20)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: 5, Authors: 3, Now: time.Now(),
		Relays: []simnet.NostrRelay{{Page: 20, Sync: simnet.SyncAnswers}, {Page: 50}, {Page: 50, Sync: simnet.SyncSilent}},
	})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	url := schematest.NewURL(t)
	pool := open(t, url)
	var day time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT ((now() - interval '1 hour') AT TIME ZONE 'UTC')::date - 1`).Scan(&day))
	written := 0
	write := func(relay, second, kind int, tags ...[]string) *simnet.NostrEvent {
		written++
		return nostr.WriteAs(written%3, []int{relay}, day.Unix()+int64(second), kind, tags, fmt.Sprint("note ", written))
	}
	var first *simnet.NostrEvent
	for i := range 60 {
		first = write(i%3, 1000*i, 1)
	}
	write(0, 86400, 1) // an event of the next day
	env := append(reads(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0", "WEIR_NOSTR="+strings.Join(nostr.URLs(), ","))
	notes := func(want int) {
		t.Helper()
		eventually.True(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM records WHERE collection = 'nostr.1'`) == want
		}, 20*time.Millisecond)
	}
	serve := start(t, env, "serve")
	notes(61)
	becomes(t, serve.opsURL(t), "quiet")
	serve.kill()

	for relay := range 3 {
		for i := range 10 {
			write(relay, 50*i, 1)
		}
	}
	nostr.WriteAs(60%3, []int{0}, day.Unix()+80000, 5, [][]string{{"e", first.ID}}, "")
	nostr.Put(0, nostr.Forge(1, day.Unix()+7, 1, nil, "forged"))
	// Nothing was compared since the day before: also if it is no longer yesterday now, the day is due.
	_, err = pool.Exec(t.Context(), `DELETE FROM relay_audits`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `
		INSERT INTO relay_audits (stream, day, method, events, missing, stored, problem)
		SELECT name, $1::date - 1, 'pages', 0, 0, 0, '' FROM streams WHERE name LIKE 'nostr:%'`, day)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `
		SELECT enqueue_job('audit_relays', 'network', '{}', '{periodic}')
		WHERE NOT EXISTS (SELECT FROM river_job WHERE kind = 'audit_relays' AND finalized_at IS NULL)`)
	require.NoError(t, err)
	serve = start(t, env, "serve")
	eventually.True(t, func() bool { // the job waits for the silent relay
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'audit_relays' AND state = 'running'`) == 1
	}, 5*time.Millisecond)
	serve.kill()
	// the job may run for one hour
	_, err = pool.Exec(t.Context(),
		`UPDATE river_job SET attempted_at = attempted_at - interval '2 hours' WHERE kind = 'audit_relays' AND state = 'running'`)
	require.NoError(t, err)
	serve = start(t, env, "serve")
	notes(61 + 30 - 1)
	audited := ` FROM relay_audits WHERE problem = '' AND day = '` + day.Format(time.DateOnly) + `' `
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*)`+audited) == 3 }, 50*time.Millisecond)
	require.Equal(t, []string{"negentropy", "pages", "pages"}, texts(t, pool, `SELECT method`+audited+`ORDER BY method`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM records WHERE rkey = '`+first.ID+`'`), "the deleted event was stored again")
	stopServe(t, serve)
}
