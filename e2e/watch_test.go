package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestWatchAddReportsTheTarget shows that a target that does not exist is
// refused. A target that cannot be looked up is added, and reported as not
// checked.
func TestWatchAddReportsTheTarget(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 40)
	database := schematest.NewURL(t)
	pool, env := open(t, database), follower(n, database)
	hub := n.Hub()
	list, err := n.MakeList(hub.DID, n.Follows(hub.DID)[:7]...)
	require.NoError(t, err)
	watches := func() int { return count(t, pool, `SELECT count(*) FROM watches`) }

	said := succeed(t, env, "watch", "add", hub.Handle)
	require.Contains(t, said, "watching "+hub.Handle+" (follows): "+hub.DID+", "+hub.Handle)
	require.Contains(t, said, fmt.Sprintf(", follows %d accounts\n", len(active(n, n.Follows(hub.DID)))))
	require.Contains(t, succeed(t, env, "watch", "add", hub.Handle), "already watching "+hub.Handle)
	require.Contains(t, succeed(t, env, "watch", "add", "--account", n.Follows(hub.DID)[0]), "(account): "+n.Follows(hub.DID)[0]+", ")
	require.Contains(t, succeed(t, env, "watch", "add", list), "(list): a list of 7 accounts\n")
	require.Equal(t, 3, watches())

	for _, target := range []string{"nobody.example", "did:plc:zzzzzzzzzzzzzzzzzzzzzzzz",
		"at://" + hub.DID + "/app.bsky.graph.list/3kaaaaaaaaa2a", "at://" + hub.DID + "/app.bsky.graph.starterpack/3kaaaaaaaaa2a"} {
		stdout, stderr, code := weir(t, env, "watch", "add", target)
		require.Equal(t, 1, code, stdout)
		require.Contains(t, stderr, "not watching "+target+": it does not exist or is hidden")
		require.NotContains(t, stdout, "watching")
	}
	require.Equal(t, 3, watches())

	// Another number is another threshold of the same watch. What adds a watch without a number, as the configuration does, keeps it.
	for _, atLeast := range []string{"5", "10", "10"} {
		said = succeed(t, env, "watch", "add", "--second-degree", atLeast, hub.Handle)
	}
	require.Contains(t, said, "already watching "+hub.Handle)
	added, err := schema.AddWatch(t.Context(), pool, schema.WatchSecondDegree, hub.Handle, 0)
	require.NoError(t, err)
	require.False(t, added)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM watches WHERE kind = 'second-degree' AND at_least = 10`))
	_, stderr, code := weir(t, env, "watch", "remove", "--kind", "list", hub.Handle)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "there is no such watch of "+hub.Handle)
	said = succeed(t, env, "watch", "remove", "--kind", "second-degree", hub.Handle)
	require.Contains(t, said, "no longer watching "+hub.Handle+" (second-degree)\n")
	require.Equal(t, 3, watches())

	n.Stop()
	said = succeed(t, env, "watch", "add", "nobody.example")
	require.Contains(t, said, "watching nobody.example (follows)\nnot checked: ")
	require.Equal(t, 4, watches())
	succeed(t, env, "watch", "add", "--second-degree", "5", hub.Handle)
	require.Contains(t, succeed(t, env, "watch", "remove", hub.Handle), "no longer watching "+hub.Handle+" (follows, second-degree)\n")
	require.Equal(t, 3, watches())
}
