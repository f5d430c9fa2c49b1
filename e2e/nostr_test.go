package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestTwoNetworksInOneDatabase reads Jetstream and two Nostr relays, kills the process, and reads
// what was written meanwhile. Both networks are stored once, and trace finds a note. The archive of
// both fills another database.
func TestTwoNetworksInOneDatabase(t *testing.T) {
	t.Parallel()
	n := network(t, 50)
	nostr, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: 5, Authors: 1, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}, {Page: 500, Auth: true}},
	})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	written := 0
	write := func(age int) *simnet.NostrEvent { // two notes of the same second differ in their text
		written++
		return nostr.Write(time.Now().Unix()-int64(age), 1, nil, fmt.Sprint("note ", written))
	}
	for age := range 30 {
		write(age)
	}
	url := schematest.NewURL(t)
	pool := open(t, url)
	urls := nostr.URLs()
	settings := []string{"WEIR_START=oldest", "WEIR_COLLECTIONS=app.bsky.feed.post,nostr.1=0", "WEIR_NOSTR=" + urls[0] + "," + urls[1],
		"WEIR_NOSTR_KEY=0000000000000000000000000000000000000000000000000000000000000007", "WEIR_ARCHIVE=dir:" + t.TempDir(),
		"WEIR_ARCHIVE_INTERVAL=1s"}
	env := append(reads(n, url), settings...)
	notes := func(want int) {
		t.Helper()
		eventually.True(t, func() bool {
			return count(t, pool, `SELECT count(*) FROM records WHERE collection = 'nostr.1'`) == want
		}, 10*time.Millisecond)
	}
	serve := start(t, env, "serve")
	notes(30)
	last := write(0)
	notes(31)
	becomes(t, serve.opsURL(t), "quiet")
	require.Positive(t, count(t, pool, `SELECT count(*) FROM posts`))
	serve.kill()
	write(60)
	serve = start(t, env, "serve")
	notes(32)
	becomes(t, serve.opsURL(t), "quiet")
	require.Equal(t, 3, count(t, pool, `SELECT count(*) FROM streams WHERE cursor_kind <> ''`))
	require.Equal(t, 32, count(t, pool, `SELECT count(*) FROM seen`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM gaps WHERE stream LIKE 'nostr:%'`))
	traced := succeed(t, env, "trace", "at://did:nostr:"+last.Author+"/nostr.1/"+last.ID)
	require.Contains(t, traced, "It does not count: it shares no link.")
	require.NotContains(t, succeed(t, env, "config"), "0000000007")

	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM archive_open`)
		return err == nil && left == 0
	}, 20*time.Millisecond, "not everything is in the store")
	stopServe(t, serve)
	require.Contains(t, succeed(t, env, "archive", "verify"), fmt.Sprint(count(t, pool, `SELECT sum(records) FROM segments`), " records"))
	second := schematest.NewURL(t)
	succeed(t, append(reads(n, second), settings...), "archive", "rebuild", "--database")
	require.Equal(t, count(t, pool, `SELECT count(*) FROM posts`), count(t, open(t, second), `SELECT count(*) FROM posts`))
	require.Equal(t, 32, count(t, open(t, second), `SELECT count(*) FROM records WHERE collection = 'nostr.1'`))
}
