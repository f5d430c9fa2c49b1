package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	historyPersona = "pub.layers.persona"
	historyNote    = "pub.layers.annotation.note"
)

// past is a network whose accounts wrote records of two collections long ago.
type past struct {
	*testing.T
	net *simnet.Net
}

// write writes a record, and returns its rkey.
func (p past) write(did, collection, rkey, text string) (string, error) {
	e, err := p.net.PutRecord(did, collection, rkey, json.RawMessage(`{"$type":"`+collection+`","text":"`+text+`"}`))
	if err != nil {
		return "", err
	}
	return e.Rkey, nil
}

func (p past) put(did, collection, rkey, text string) string {
	p.Helper()
	rkey, err := p.write(did, collection, rkey, text)
	require.NoError(p, err)
	return rkey
}

func (p past) remove(did, collection, rkey string) error {
	return p.net.DeleteRecord("at://" + did + "/" + collection + "/" + rkey)
}

func longAgo(i int) string {
	return syntax.NewTID(time.Now().Add(-1000*time.Hour+time.Duration(i)*time.Minute).UnixMicro(), 0).String()
}

// folded returns the CIDs of the records that the log leaves, except those of some
// accounts.
func (p past) folded(without ...string) map[string]string {
	left := map[string]string{}
	for _, e := range p.net.Log().Entries() {
		key := e.Collection + "/" + e.DID + "/" + e.Rkey
		switch {
		case e.Kind != "commit" || e.Collection != historyPersona && e.Collection != historyNote || slices.Contains(without, e.DID):
		case e.Operation == "delete":
			delete(left, key)
		default:
			left[key] = e.CID
		}
	}
	return left
}

// storedCIDs returns the CIDs of the stored records, except those of some accounts.
func storedCIDs(t *testing.T, pool *pgxpool.Pool, without ...string) map[string]string {
	t.Helper()
	rows, err := pool.Query(t.Context(),
		`SELECT collection || '/' || did || '/' || rkey, cid FROM records_other WHERE did <> ALL ($1::text[])`, without)
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

// writes writes, edits and deletes records of these accounts until ctx ends.
func (p past) writes(ctx context.Context, dids []string, seed uint64) (err error) {
	random := rand.New(rand.NewPCG(seed, 1))
	type one struct{ did, collection, rkey string }
	var mine []one
	for i := 0; ctx.Err() == nil && err == nil; i++ {
		did, name := dids[random.IntN(len(dids))], []string{historyPersona, historyNote}[random.IntN(2)]
		at := random.IntN(max(len(mine), 1))
		switch n := random.IntN(4); {
		case n == 0 && len(mine) > 0:
			err = p.remove(mine[at].did, mine[at].collection, mine[at].rkey)
			mine = slices.Delete(mine, at, at+1)
		case n == 1 && len(mine) > 0:
			_, err = p.write(mine[at].did, mine[at].collection, mine[at].rkey, fmt.Sprintf("edited %d", i))
		case n == 2: // for most accounts a record of long ago
			_, err = p.write(did, name, "of-long-ago", fmt.Sprintf("edited %d", i))
		default:
			made := one{did, name, ""}
			made.rkey, err = p.write(did, name, "", fmt.Sprintf("written %d", i))
			mine = append(mine, made)
		}
		timer := time.NewTimer(10 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return err
}

// fill writes more records than limit for the accounts in many, and a few for those in others. It
// returns the CIDs of the newest records of many.
func (p past) fill(many, others []string, limit int) (newest map[string]string) {
	newest = map[string]string{}
	for _, did := range many {
		for i := range limit + 90 {
			rkey := p.put(did, historyPersona, longAgo(i), "m")
			if i >= 90 {
				newest[historyPersona+"/"+did+"/"+rkey] = p.net.Log().Last().CID
			}
		}
	}
	for i, did := range others {
		for j := range 1 + 110*(i%6/5) { // some accounts have more than one page
			rkey := p.put(did, historyPersona, longAgo(j), "p")
			if j%5 == 4 {
				require.NoError(p, p.remove(did, historyPersona, rkey))
			}
		}
		if i%3 > 0 {
			p.put(did, historyNote, "of-long-ago", "n")
		}
	}
	return newest
}

// awaits waits until a count in the database is at least n.
func (k *killing) awaits(pool *pgxpool.Pool, n int, sql string) {
	k.t.Helper()
	eventually.True(k.t, func() bool {
		found, err := tryCount(pool, sql)
		return err == nil && found >= n
	}, 5*time.Millisecond, "%s stays below %d: %s", sql, n, tail(k.process.stderr.String(), 3000))
}

// TestKilledHistoryFillsCollections adds two new collections to the settings of a process that
// reads a relay. It kills the process while their past is read and accounts go on writing, editing
// and deleting. The tables equal the fold of the log, except for the accounts that reach the limit:
// these have their newest records.
func TestKilledHistoryFillsCollections(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	p := past{t, calmNetwork(t)}
	var dids []string
	for _, a := range p.net.Accounts() {
		dids = append(dids, a.DID)
	}
	many, others := dids[:2], dids[2:]
	newest := p.fill(many, others, 150)
	k, url := readingRelay(t, p.net, "WEIR_START=tip", "WEIR_RETENTION=24h", "WEIR_HISTORY=auto", "WEIR_HISTORY_RECORDS=150",
		"WEIR_API_INTERVAL=5ms", "WEIR_BACKFILL_WORKERS=2")
	pool := open(t, url)
	defer pool.Close()
	k.awaits(pool, 1, `SELECT count(*) FROM streams WHERE caught_up_at IS NOT NULL`) // the stream begins at the tip, with other collections
	_, err := p.net.PostNow(many[0], "the first event of the stream")
	require.NoError(t, err)
	k.awaits(pool, 1, `SELECT count(*) FROM streams WHERE cursor_kind = 'seq'`) // the next process resumes there
	require.Zero(t, count(t, pool, `SELECT count(*) FROM histories WHERE collection <> 'app.bsky.actor.contentVisibilityDeclaration'`),
		"no other collection is kept for ever yet")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.writes(ctx, others, 7) }()
	var logs strings.Builder
	k.env = append(k.env, "WEIR_COLLECTIONS=app.bsky.feed.post,"+historyPersona+"=0,"+historyNote+"=0")
	k.process.kill()
	for _, point := range []string{"reconciliation: page compared", "history: before an account's end"} {
		k.killedAt(20, point)
		logs.WriteString(k.process.stderr.String())
		rescued(t, pool, k.process)
	}
	k.process = start(t, k.env, "serve")
	k.awaits(pool, 3, `SELECT count(*) FROM histories WHERE completed_at IS NOT NULL`)
	cancel()
	require.NoError(t, <-ended)
	p.put(others[0], historyPersona, "last", "the last")
	k.reaches(p.net.Log().Last().RelaySeq)
	want := p.folded(many...)
	eventually.True(t, func() bool { return maps.Equal(want, storedCIDs(t, pool, many...)) }, 50*time.Millisecond)
	require.Equal(t, newest, storedCIDs(t, pool, others...))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Equal(t, 1,
		count(t, pool, `SELECT count(*) FROM histories WHERE collection = '`+historyPersona+`' AND accounts = 50 AND done = 50 AND limited = 2`))
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM history_accounts WHERE limited AND records = 150`))

	require.Regexp(t, `history of `+historyPersona+` +complete, 50 of 50 accounts, \d+ records, 2 accounts at the limit`,
		succeed(t, k.env, "status"))
	require.Contains(t, succeed(t, k.env, "backfill", "status"), historyPersona+": complete, 50 of 50 accounts")
	_, metrics := getOps(t, k.process.opsURL(t)+"/metrics", "")
	require.Contains(t, metrics, `weir_history_accounts{collection="`+historyPersona+`",state="limited"} 2`)
	logs.WriteString(k.process.stderr.String())
	require.Contains(t, logs.String(), `"msg":"history_limited"`)
	require.Contains(t, logs.String(), `"msg":"collection_filled"`)
	asked := len(p.net.Calls("com.atproto.sync.listReposByCollection"))
	k.process.kill()
	k.process = start(t, k.env, "serve")
	k.awaits(pool, 1, `
		SELECT count(*) FROM river_job WHERE kind = 'fill_collections' AND state = 'completed'
		    AND finalized_at > (SELECT max(state_since) FROM streams)`)
	require.Len(t, p.net.Calls("com.atproto.sync.listReposByCollection"), asked, "a restart reads nothing again")
}

// TestRequestedHistory shows that the past of a collection with a retention is read only on
// request, by the command or by SQL, and that this can be cancelled. The source is a Jetstream; the
// relay only lists the accounts.
func TestRequestedHistory(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	p := past{t, calmNetwork(t)}
	for i, a := range p.net.Accounts() {
		p.put(a.DID, historyNote, longAgo(i), "expired")
		p.put(a.DID, historyNote, "self", "kept")
	}
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(follower(p.net, url), "WEIR_HISTORY=auto", "WEIR_RETENTION=24h", "WEIR_COLLECTIONS=app.bsky.feed.post,pub.layers.*=240h",
		"WEIR_JOB_TIMEOUT=20s", "WEIR_RESCUE_AFTER=21s")
	start(t, env, "serve")
	_, refused, code := weir(t, env, "backfill", "add", "--collection", "com.example.else")
	require.Equal(t, 1, code)
	require.Contains(t, refused, "com.example.else is not stored: name it in WEIR_COLLECTIONS first")
	_, refused, code = weir(t, env, "backfill", "add", "--collection", historyNote, "--all")
	require.Equal(t, 1, code)
	require.Contains(t, refused, "give accounts, --all or --collection")
	require.Regexp(t, `history of `+historyNote+` requested \(job \d+\)`, succeed(t, env, "backfill", "add", "--collection", historyNote))
	filled := func(collection string, run int) {
		t.Helper()
		eventually.True(t, func() bool {
			return count(t, pool, fmt.Sprintf(`
				SELECT count(*) FROM histories WHERE collection = '%s' AND run = %d AND completed_at IS NOT NULL AND done = 50 AND limited = 0`,
				collection, run)) == 1
		}, 20*time.Millisecond)
	}
	filled(historyNote, 1)
	require.Equal(t, 50, count(t, pool, `SELECT count(*) FROM records_other WHERE record ->> 'text' = 'kept'`))
	require.Equal(t, 50, count(t, pool, `SELECT count(*) FROM records_other`), "expired records were read")
	executes(t, url, `SELECT enqueue_history('pub.layers.*')`)
	filled("pub.layers.*", 1)
	executes(t, url, `SELECT enqueue_history('`+historyNote+`')`)
	filled(historyNote, 2)
	executes(t, url, `UPDATE histories SET completed_at = NULL WHERE collection = '`+historyNote+`'`,
		`INSERT INTO history_listings (collection, name, run, retry_at) VALUES ('`+historyNote+`', 'pub.layers.other', 2, 'infinity')`)
	require.Contains(t, succeed(t, env, "backfill", "cancel"), "1 history cancelled")
	require.Contains(t, succeed(t, env, "status"), "cancelled, 50 of 50 accounts")
}
