package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// eventsOf decodes a relay's frame with indigo, calls count with the identity of each event in it,
// and returns their number.
func eventsOf(t *testing.T, frame []byte, count func(string)) int {
	t.Helper()
	at := func(text string) int64 {
		at, err := time.Parse(time.RFC3339Nano, text)
		require.NoError(t, err)
		return at.UnixMilli()
	}
	if body, ok := bytes.CutPrefix(frame, []byte("\xa2\x61t\x67#commit\x62op\x01")); ok {
		var m comatproto.SyncSubscribeRepos_Commit
		require.NoError(t, m.UnmarshalCBOR(bytes.NewReader(body)))
		for _, op := range m.Ops {
			collection, rkey, _ := bytes.Cut([]byte(op.Path), []byte("/"))
			count(fmt.Sprintf("%s %s %s %s %s", m.Repo, collection, rkey, m.Rev, op.Action))
		}
		return len(m.Ops)
	}
	if body, ok := bytes.CutPrefix(frame, []byte("\xa2\x61t\x69#identity\x62op\x01")); ok {
		var m comatproto.SyncSubscribeRepos_Identity
		require.NoError(t, m.UnmarshalCBOR(bytes.NewReader(body)))
		count(fmt.Sprint(m.Did, " identity ", at(m.Time)))
	} else if body, ok := bytes.CutPrefix(frame, []byte("\xa2\x61t\x68#account\x62op\x01")); ok {
		var m comatproto.SyncSubscribeRepos_Account
		require.NoError(t, m.UnmarshalCBOR(bytes.NewReader(body)))
		count(fmt.Sprint(m.Did, " account ", at(m.Time)))
	}
	return 1
}

// TestRelayIsRebuilt kills a process that archives a relay. The relay's frames hold several events
// each, and some are sent twice. Every event is in the segments once. A database that is rebuilt
// from them, by a rebuild that is killed once, equals the running one.
func TestRelayIsRebuilt(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, root := busyNetwork(t), t.TempDir()
	settings := []string{"WEIR_ARCHIVE=dir:" + root, "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_RESOLVE_LINKS=false", "WEIR_FETCH_CARDS=false"}
	server := schematest.Server(t)
	url := server.URL("weir")
	k := prepare(t, n, server, url, url, append(readsRelay(n), settings...)...)
	pool := open(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.Live(ctx, 100)
	for point, fault := range map[string]simnet.Fault{"commit: before its end": simnet.Renumber, "sync: manifest stored": simnet.Duplicate} {
		k.killedAt(1, point)
		rescued(t, pool, k.process)
		require.NoError(t, n.Do(fault))
	}
	k.process = start(t, k.env, "serve")
	k.progress(5)
	cancel()
	k.synchronized()
	k.drain(pool)
	finishes(t, 50*time.Millisecond, func() (int, error) { return tryCount(pool, `SELECT count(*) FROM archive_open`) },
		"not everything is in the store")
	stopServe(t, k.process)
	archived, several := map[string]int{}, 0
	eachArchived(t, root, func(frame []byte) {
		if eventsOf(t, frame, func(event string) { archived[event]++ }) > 1 {
			several++
		}
	})
	want := onceEach(n)
	for event := range archived { // a frame with a stored event is archived with its other events
		if want[event] == 0 {
			require.NotContains(t, event, " app.bsky.feed.post ")
			delete(archived, event)
		}
	}
	for _, e := range n.Log().Entries() {
		if e.Status == "deleted" { // its key is gone: events that were not verified before are not stored
			maps.DeleteFunc(want, func(event string, _ int) bool { return archived[event] == 0 && strings.HasPrefix(event, e.DID+" ") })
		}
	}
	require.Empty(t, notOnce(want, archived))
	require.Positive(t, several)

	second := schematest.NewURL(t)
	env := slices.Concat(reads(n, second), readsRelay(n), settings)
	rebuilt := open(t, second)
	killed := start(t, env, "archive", "rebuild", "--database", "--rate", "100") // it takes 20 s
	eventually.True(t, func() bool {
		begun, err := tryCount(rebuilt, `SELECT count(*) FROM records`)
		return err == nil && begun > 50
	}, time.Millisecond)
	killed.kill()
	require.Contains(t, succeed(t, env, "archive", "rebuild", "--database"), "records")
	stdout, stderr, code := weir(t, env, "compare", "--with", url)
	require.Zero(t, code, stdout+stderr)
	require.Positive(t, count(t, rebuilt, `SELECT count(*) FROM records`))
}
