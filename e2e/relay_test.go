package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// readsRelay returns the environment of a process that reads only the relay, and keys
// from the directory.
func readsRelay(n *simnet.Net) []string {
	return []string{
		"WEIR_SOURCE=firehose", "WEIR_RELAYS=" + n.RelayURL(), "WEIR_JETSTREAM=ws://127.0.0.1:1", "WEIR_APPVIEW=" + n.AppViewURL(),
		"WEIR_DIRECTORY=" + n.DirectoryURL(),
	}
}

// readingRelay begins with a process that reads only the relay, and its database.
func readingRelay(t *testing.T, n *simnet.Net, env ...string) (k *killing, url string) {
	t.Helper()
	server := schematest.Server(t)
	url = server.URL("weir")
	return begin(t, n, server, url, url, append(readsRelay(n), env...)...), url
}

// TestKilledServeReadsRelay kills a process that reads only a relay in its commits. Meanwhile the relay restarts,
// renumbers its events and repeats some. The tables are those of the oracle.
func TestKilledServeReadsRelay(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, server := busyNetwork(t), schematest.Server(t)
	k := prepare(t, n, server, server.URL("weir"), server.URL("weir"), readsRelay(n)...)
	k.signed = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go n.Live(ctx, 100)
	for point, faults := range map[string][]simnet.Fault{
		"commit: position and records written": {simnet.Renumber}, "commit: before its end": {simnet.Stale, simnet.Duplicate},
		"commit: after its end": {simnet.Restart},
	} {
		k.killedAt(5, point)
		for _, fault := range faults {
			require.NoError(t, n.Do(fault))
		}
	}
	k.process = start(t, k.env, "serve")
	k.progress(5)
	cancel()
	k.synchronized()

	require.Regexp(t, `\bjetstream +.* firehose +`+n.Address(), succeed(t, k.env, "status"))
	found, _ := examined(t, k.env)
	require.Equal(t, doctor.OK, finding(t, found, "firehose "+n.Address()).Level)
	require.False(t, strings.Contains(k.process.stderr.String(), "gap_opened"), k.process.stderr.String())
	k.compare()
}

// TestDemoReadsRelay runs a demo that reads the relay and shows ranked links.
func TestDemoReadsRelay(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	env := []string{"WEIR_HOME=" + t.TempDir(), "WEIR_LISTEN=127.0.0.1:0", "WEIR_OPS_LISTEN=127.0.0.1:0"}
	_, refused, code := weir(t, env, "demo", "--source", "elsewhere")
	require.Equal(t, 1, code)
	require.Contains(t, refused, `--source: "elsewhere" is no source: expected jetstream or firehose`)
	url := start(t, env, "demo", "--source", "firehose").page(t)
	eventually.True(t, func() bool {
		page, err := get(url)
		return err == nil && strings.Contains(page, ".example/")
	}, 50*time.Millisecond)
	require.Regexp(t, ` firehose +127`, succeed(t, env, "status"))
}

// TestKilledServeRefusesForgeries kills a process that reads a relay. The relay forwards forgeries,
// and the directory fails now and then. No forgery is stored and every valid event is: events that
// waited for a key are stored without intervention.
func TestKilledServeRefusesForgeries(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := calmNetwork(t)
	dids := make([]string, 12)
	for i, a := range n.Accounts()[:len(dids)] {
		dids[i] = a.DID
	}
	k, url := readingRelay(t, n)
	want := map[string]string{} // CID by record
	writes := func(text string) {
		for _, did := range dids {
			e, err := n.PostNow(did, text)
			require.NoError(t, err)
			want[e.DID+"/"+e.Rkey] = e.CID
		}
	}
	writes("with the first key")
	k.reaches(n.Log().Last().RelaySeq)
	log := ""
	for i, did := range dids[:6] {
		require.NoError(t, n.RotateKey(did), i)
	}
	for _, f := range simnet.Forgeries() {
		writes("before " + string(f))
		for _, did := range dids[:6] {
			require.NoError(t, n.Forge(f, did))
		}
		if f == simnet.HighS { // the directory is down, and the process starts without any keys
			require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "plc", Count: 5}))
		}
		k.process.kill()
		log += k.process.stderr.String()
		k.process = start(t, k.env, "serve")
	}
	writes("the last")
	k.reaches(n.Log().Last().RelaySeq)
	pool := open(t, url)
	defer pool.Close()
	k.verified(pool)
	for _, f := range simnet.Forgeries() {
		require.GreaterOrEqual(t, n.Fired()[simnet.Fault(f)], 6, f)
	}
	require.Positive(t, n.CallsFired()[simnet.Unavailable])
	require.Equal(t, want, cids(t, pool))
	letters, err := tryCount(pool, `SELECT count(*) FROM dead_letters WHERE stage = 'verify' AND class = 'permanent'`)
	require.NoError(t, err)
	require.Positive(t, letters, "some of the refused commits must be dead letters")
	require.Contains(t, log+k.process.stderr.String(), "commit_refused")
}

// verified waits until no event waits for its account's key, which may arrive too late on a busy
// machine. It retries at once what would wait for minutes.
func (k *killing) verified(pool *pgxpool.Pool) {
	k.t.Helper()
	finishes(k.t, time.Second, func() (int, error) {
		if _, err := pool.Exec(k.t.Context(), `SELECT retry_dead_letters('verify', 'retryable')`); err != nil {
			return 0, err
		}
		return tryCount(pool, `
			SELECT count(*) FROM dead_letters WHERE stage = 'verify' AND class = 'retryable' AND state IN ('open', 'retrying')`)
	}, "events wait for keys: %s", k.process.stderr.String())
}

// synchronized waits until no event waits for its account's key, and until every active account
// with a refused event has been compared with its repository. It retries at once what would wait
// for minutes or for an hour.
func (k *killing) synchronized() {
	k.t.Helper()
	pool := open(k.t, k.server.URL("weir"))
	defer pool.Close()
	k.drain(pool)
	k.verified(pool)
	finishes(k.t, 200*time.Millisecond, func() (int, error) {
		if _, err := pool.Exec(k.t.Context(), dueResyncs); err != nil {
			return 0, err
		}
		return tryCount(pool, `SELECT count(*) FROM resyncs AS r
			WHERE desynchronized_at IS NOT NULL AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = r.did AND a.status <> 'active')`)
	}, "accounts stay desynchronized: %s", k.process.stderr.String())
}

// cids returns the CIDs of all records.
func cids(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT did || '/' || rkey, cid FROM records`)
	require.NoError(t, err)
	found := map[string]string{}
	var key, cid string
	_, err = pgx.ForEachRow(rows, []any{&key, &cid}, func() error {
		found[key] = cid
		return nil
	})
	require.NoError(t, err)
	return found
}

// TestRotationReadLateLosesNothing kills a process that then misses posts, edits and deletions of
// accounts that change their keys afterwards, and changes of repositories without a commit. When it
// reads the commits, it has only the new keys. The relay also sends forgeries. The tables equal the
// repositories, and each is fetched once.
func TestRotationReadLateLosesNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := calmNetwork(t)
	k, url := readingRelay(t, n, "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m") // no fetch is repeated because it took long
	want, deleted := map[string]string{}, 0
	post := func(did, text string) (uri string) {
		e, err := n.PostNow(did, text)
		require.NoError(t, err)
		want[e.DID+"/"+e.Rkey] = e.CID
		return "at://" + did + "/" + e.Collection + "/" + e.Rkey
	}
	changes := func(did, edited, gone string) {
		e, err := n.EditPost(edited, "edited")
		require.NoError(t, err)
		want[e.DID+"/"+e.Rkey] = e.CID
		require.NoError(t, n.DeleteRecord(gone))
		delete(want, did+gone[strings.LastIndex(gone, "/"):])
		deleted++
		post(did, "new")
	}
	accounts := n.Accounts()
	uris := map[string][2]string{}
	for _, a := range accounts[:20] {
		uris[a.DID] = [2]string{post(a.DID, "to be edited"), post(a.DID, "to be deleted")}
	}
	k.reaches(n.Log().Last().RelaySeq)
	k.process.kill()
	for i, a := range accounts[:12] {
		if i >= 8 { // no commit contains the changes of these accounts
			require.NoError(t, n.Withhold(a.DID, true))
		}
		changes(a.DID, uris[a.DID][0], uris[a.DID][1])
		if i < 8 {
			require.NoError(t, n.RotateKey(a.DID))
			continue
		}
		require.NoError(t, n.Withhold(a.DID, false))
		require.NoError(t, n.SyncRepo(a.DID))
	}
	for _, a := range accounts[12:16] { // only posts, signed with the old key
		post(a.DID, "the last with this key")
		require.NoError(t, n.RotateKey(a.DID))
		require.NoError(t, n.Forge(simnet.FormerKey, a.DID))
	}
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: "com.atproto.sync.getRepo", Count: 2}))
	pool := open(t, url)
	defer pool.Close()
	for _, point := range []string{
		"reconciliation: page compared", "reconciliation: extra records deleted", "reconciliation: before its end",
	} {
		k.killedAt(2, point)
		rescued(t, pool, k.process)
	}
	k.process = start(t, k.env, "serve")
	post(accounts[0].DID, "with the new key")
	k.reaches(n.Log().Last().RelaySeq)
	eventually.True(t, func() bool { return maps.Equal(want, cids(t, pool)) }, 100*time.Millisecond, "not all is restored: %s",
		tail(k.process.stderr.String(), 2000))
	require.Equal(t, deleted, count(t, pool, `SELECT count(*) FROM tombstones`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM records WHERE record ->> 'text' = '`+simnet.ForgedText+`'`))
	require.Equal(t, 16, count(t, pool, `SELECT count(*) FROM resyncs`), "one resync for every account with a refused commit")
	fetched := map[string]int{}
	for _, c := range n.Calls("com.atproto.sync.getRepo") {
		fetched[c.Actor]++
	}
	for did, times := range fetched {
		require.LessOrEqual(t, times, 5, did) // once, and again after each kill and after a severed connection
	}
	require.Regexp(t, `weir_desynchronized_accounts \d`, measured(t, k.process.opsURL(t), ""))
}

// TestChainShowsWhatARelayLeavesOut has a relay not send edits, deletions and posts of followed
// accounts, or hide them in a signed commit. The next commit of each account shows it, and the
// repositories restore the changes, while the process is killed.
func TestChainShowsWhatARelayLeavesOut(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := calmNetwork(t)
	want := map[string]string{}
	post := func(did, text string) (uri string) {
		e, err := n.PostNow(did, text)
		require.NoError(t, err)
		want[e.DID+"/"+e.Rkey] = e.CID
		return "at://" + did + "/" + e.Collection + "/" + e.Rkey
	}
	uris := map[string][2]string{}
	accounts := n.Accounts()[:8]
	for _, a := range accounts {
		uris[a.DID] = [2]string{post(a.DID, "to be edited"), post(a.DID, "to be deleted")}
	}
	k, url := readingRelay(t, n, "WEIR_VERIFY=chained")
	pool := open(t, url)
	defer pool.Close()
	for _, a := range accounts {
		_, err := pool.Exec(t.Context(), `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, a.DID)
		require.NoError(t, err)
	}
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`) == len(accounts)
	}, 50*time.Millisecond)
	eventually.True(t, func() bool { return maps.Equal(want, cids(t, pool)) }, 50*time.Millisecond)
	for _, a := range accounts { // the stream follows an account's chain from the first post that it brings
		post(a.DID, "seen by the stream")
	}
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM chains`) == len(accounts) }, 50*time.Millisecond)
	for i, a := range accounts {
		switch i % 4 {
		case 0:
			require.NoError(t, n.Withhold(a.DID, true))
		case 1:
			require.NoError(t, n.Curtail(a.DID, simnet.CurtailOps))
		case 2:
			require.NoError(t, n.Curtail(a.DID, simnet.CurtailPrev))
		}
		e, err := n.EditPost(uris[a.DID][0], "edited")
		require.NoError(t, err)
		want[e.DID+"/"+e.Rkey] = e.CID
		gone := uris[a.DID][1]
		require.NoError(t, n.DeleteRecord(gone))
		delete(want, a.DID+gone[strings.LastIndex(gone, "/"):])
		post(a.DID, "new")
	}
	k.process.kill()
	for _, a := range accounts {
		require.NoError(t, n.Withhold(a.DID, false))
		require.NoError(t, n.Curtail(a.DID, ""))
		_, err := n.PutRecord(a.DID, "app.bsky.feed.like", "", []byte(`{"$type":"app.bsky.feed.like"}`))
		require.NoError(t, err)
	}
	k.process = start(t, k.env, "serve")
	eventually.True(t, func() bool { return maps.Equal(want, cids(t, pool)) }, 100*time.Millisecond, "not all is restored: %s",
		tail(k.process.stderr.String(), 2000))
	require.Equal(t, 6, count(t, pool, `SELECT count(*) FROM resyncs`), "one resync for each account whose events were left out")
	require.Equal(t, len(accounts), count(t, pool, `SELECT count(*) FROM tombstones`))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM gaps`))
}

// calmNetwork is a network with only the events that the test makes.
func calmNetwork(t *testing.T) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 50})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

// reaches waits until the stream has committed an event of the relay.
func (k *killing) reaches(seq int64) {
	k.t.Helper()
	pool := open(k.t, k.server.URL("weir"))
	defer pool.Close()
	finishes(k.t, 20*time.Millisecond, func() (int, error) {
		return tryCount(pool, fmt.Sprintf(`SELECT %d - cursor FROM streams`, seq))
	}, "the stream does not move: %s", k.process.stderr.String())
}

// TestServersAtOnce reads two account servers into one database, each as its own stream, while
// their processes are killed.
func TestServersAtOnce(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	url := schematest.NewURL(t)
	pool := open(t, url)
	want := map[string]string{} // CID by record
	var nets []*simnet.Net
	var streams []func() *process
	for i, name := range []string{"one", "two"} {
		n, err := simnet.New(simnet.Config{Seed: uint64(20 + i), Accounts: 30})
		require.NoError(t, err)
		startNetwork(t, n)
		env := append(append(reads(n, url), readsRelay(n)...), "WEIR_STREAM="+name)
		nets, streams = append(nets, n), append(streams, func() *process { return start(t, env, "consume") })
	}
	post := func(text string) {
		for _, n := range nets {
			for _, a := range n.Accounts()[:10] {
				e, err := n.PostNow(a.DID, text)
				require.NoError(t, err)
				want[e.DID+"/"+e.Rkey] = e.CID
			}
		}
	}
	post("before the kills")
	one, two := streams[0](), streams[1]()
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM streams WHERE cursor > 0`) == 2 }, 20*time.Millisecond)
	one.kill()
	one = streams[0]()
	two.kill()
	two = streams[1]()
	post("after them")
	eventually.True(t, func() bool { return maps.Equal(want, cids(t, pool)) }, 20*time.Millisecond)
	require.Regexp(t, `(?s)\bone .*\btwo `, succeed(t, []string{"DATABASE_URL=" + url}, "status"))
	for _, p := range []*process{one, two} {
		stopServe(t, p)
	}
	require.Zero(t, count(t, pool, `SELECT count(*) FROM gaps`))
}
