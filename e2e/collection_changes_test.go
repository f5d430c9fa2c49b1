package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestCollectionsChangeWhileWeirRuns adds a collection and removes it, by command and in SQL, while Weir runs in
// three processes. Each follows without a restart of its process, the page keeps its address, the past of what is
// kept for ever is read, and no post is lost.
func TestCollectionsChangeWhileWeirRuns(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 14, Accounts: 10, History: 50, HistorySpan: time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	did := n.Accounts()[0].DID
	const note, memo = "com.example.note", "com.example.memo"
	put := func(collection, rkey string) {
		t.Helper()
		_, err := n.PutRecord(did, collection, rkey, json.RawMessage(`{"$type":"`+collection+`"}`))
		require.NoError(t, err)
	}
	put(note, "past")
	put(memo, "past")

	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(follower(n, url), "WEIR_COLLECTIONS=app.bsky.feed.post,"+memo+"=24h", "WEIR_HISTORY=auto")
	executes(t, url, `INSERT INTO watches (target, kind) VALUES ('`+did+`', 'account')`)
	all := []*process{start(t, env, "consume"), start(t, env, "work"), start(t, env, "web")}
	page := all[2].page(t)
	records := func(want ...string) {
		t.Helper()
		eventually.True(t, func() bool {
			return strings.Join(texts(t, pool, `SELECT collection || '/' || rkey FROM records_other ORDER BY 1`), "\n") == strings.Join(want, "\n")
		}, 20*time.Millisecond, "%v", want)
	}
	followed := func(times int) { // every process has made the change
		t.Helper()
		for _, p := range all {
			eventually.True(t, func() bool { return strings.Count(p.stderr.String(), `"collections_changed"`) == times }, 20*time.Millisecond)
		}
	}
	records(memo + "/past")

	_, refused, _ := weir(t, env, "collection", "add", "not a collection")
	require.Contains(t, refused, "is not a collection")
	_, refused, _ = weir(t, env, "collection", "add", "app.bsky.feed.post", "--keep", "1h")
	require.Contains(t, refused, "expected at least 24h")
	require.Contains(t, succeed(t, env, "collection", "add", note, "--keep", "0"), "storing "+note)
	followed(1)
	records(memo+"/past", note+"/past")
	put(note, "live")
	records(memo+"/past", note+"/live", note+"/past")
	list := strings.Fields(succeed(t, env, "collection", "list"))
	require.Contains(t, strings.Join(list, " "), memo+" 24h0m0s WEIR_COLLECTIONS "+note+" for ever weir collection")

	require.Contains(t, succeed(t, env, "collection", "remove", memo), "no longer storing "+memo)
	followed(2)
	executes(t, url, `INSERT INTO collections (collection, retention) VALUES ('nonsense.*', '1 hour')`) // not valid: nothing changes
	for _, p := range all {
		eventually.True(t, func() bool { return strings.Contains(p.stderr.String(), `"collections_unread"`) }, 20*time.Millisecond)
	}
	executes(t, url, `DELETE FROM collections WHERE collection = 'nonsense.*'`)
	put(memo, "unwanted")
	put(note, "wanted")
	records(memo+"/past", note+"/live", note+"/past", note+"/wanted")

	_, err = get(page)
	require.NoError(t, err, "the page keeps its address")
	executes(t, url, `DELETE FROM collections`)
	followed(3)
	put(memo, "again")
	put(note, "unwanted")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM records_other WHERE rkey = 'again'`) == 1 },
		20*time.Millisecond)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM records_other WHERE collection = '`+note+`' AND rkey = 'unwanted'`))
	for _, p := range all {
		stopServe(t, p)
	}
}
