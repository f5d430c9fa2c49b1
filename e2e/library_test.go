package e2e

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestLibraryExample runs a program that imports Weir and projects another
// collection. After a kill and deletions, its table equals the stored records.
// The binary without that projection refuses the database.
func TestLibraryExample(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	program := filepath.Join(t.TempDir(), "likes")
	require.NoError(t, build(program, "../examples/likes"))
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 200, History: 3000, HistorySpan: time.Hour, Mix: simnet.MixNetwork})
	require.NoError(t, err)
	startNetwork(t, n)
	database := schematest.NewURL(t)
	env := append(reads(n, database), "WEIR_COLLECTIONS=app.bsky.feed.post,app.bsky.feed.like", "WEIR_BATCH_EVENTS=100")
	pool := open(t, database)

	first := startProgram(t, program, env)
	eventually.True(t, func() bool { n, _ := tryCount(pool, `SELECT count(*) FROM likes`); return n > 200 }, 5*time.Millisecond)
	first.kill()
	second := startProgram(t, program, env)
	readsAll(t, pool, n, "app.bsky.feed.post", "app.bsky.feed.like")
	finishes(t, 20*time.Millisecond, func() (int, error) {
		return tryCount(pool, `SELECT count(*) FROM river_job WHERE kind IN ('store_likes', 'process_posts') AND finalized_at IS NULL`)
	}, "not everything is projected")
	require.Greater(t, count(t, pool, `SELECT count(*) FROM records WHERE collection = 'app.bsky.feed.like'`), 1500)
	eventually.True(t, func() bool { // a deleted account's records are purged shortly before their projection
		n, err := tryCount(pool,
			`SELECT count(*) FROM likes AS l FULL JOIN (SELECT * FROM records WHERE collection = 'app.bsky.feed.like') AS r
		USING (did, collection, rkey)
			WHERE l.subject IS DISTINCT FROM r.record #>> '{subject,uri}'`)
		return err == nil && n == 0
	}, 20*time.Millisecond)
	require.Positive(t, count(t, pool, `SELECT count(*) FROM tombstones WHERE collection = 'app.bsky.feed.like'`), "no like was deleted")
	require.Positive(t, count(t, pool, `SELECT count(*) FROM shares`), "links must be projected too")

	_, refused, code := weir(t, env, "serve")
	require.Equal(t, 1, code)
	require.Contains(t, refused, `the database has the tables of the feature "likes", which this binary lacks`)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	stopServe(t, second)
	execute(t, database, `DROP TABLE likes; DELETE FROM weir_migration WHERE part = 'likes'`) // as the error says
	require.Contains(t, succeed(t, env, "projection", "list"), "store_likes")
	succeed(t, env, "projection", "remove", "likes")
}
