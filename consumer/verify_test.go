package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// newVerifier returns a verifier that reads the documents of a network's directory.
func newVerifier(t *testing.T, n *simnet.Net, chained bool) *firehose.Verifier {
	t.Helper()
	api, err := bluesky.New(bluesky.Config{AppView: n.AppViewURL(), Directory: n.DirectoryURL(), Retries: []time.Duration{}})
	require.NoError(t, err)
	return firehose.NewVerifier(firehose.VerifierConfig{Chained: chained, Wait: time.Minute, Spacing: time.Nanosecond,
		Refresh: time.Nanosecond,
		Key: func(ctx context.Context, did string) (atcrypto.PublicKey, error) {
			key, err := api.SigningKey(ctx, did)
			if errors.Is(err, bluesky.ErrNoKey) {
				err = fmt.Errorf("%w: %w", firehose.ErrNoKey, err)
			}
			return key, err
		}})
}

// verifiedWire returns the wire of a relay whose signatures are verified.
func verifiedWire(t *testing.T, n jetstreamNet, chained bool) wire {
	t.Helper()
	w := relayWire(t, n)
	w.decodes = firehose.Wire(nil, newVerifier(t, n.Net, false))
	w.source = func(t *testing.T, endpoints []string, ping time.Duration, log *slog.Logger) consumer.Source {
		t.Helper()
		source, err := firehose.New(firehose.Config{
			Config: shortWaits(endpoints, ping, log), Verifier: newVerifier(t, n.Net, chained),
			Wanted: func(name string) bool { return name == schema.PostCollection },
		})
		require.NoError(t, err)
		return source
	}
	return w
}

const forged = `SELECT count(*) FROM records WHERE record ->> 'text' = '` + simnet.ForgedText + `'`

// quietNetwork is a network with only the events that the test makes.
func quietNetwork(t *testing.T) jetstreamNet {
	t.Helper()
	return startJetstream(t, simnet.Config{})
}

// TestForgeriesAreNeverStored sends every kind of forgery in the name of accounts with keys of both
// curves, among valid commits. All valid commits are stored, and nothing else.
func TestForgeriesAreNeverStored(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	curves := map[string]bool{}
	edited := map[string]string{}
	for _, a := range n.Accounts()[:8] {
		did := a.DID
		before, err := n.PostNow(did, "to be edited")
		require.NoError(t, err)
		gone, err := n.PostNow(did, "to be deleted")
		require.NoError(t, err)
		require.NoError(t, n.DeleteRecord("at://"+did+"/"+gone.Collection+"/"+gone.Rkey))
		require.NoError(t, n.RotateKey(did))
		after, err := n.EditPost("at://"+did+"/"+before.Collection+"/"+before.Rkey, "edited")
		require.NoError(t, err)
		edited[did] = after.CID
		key, err := client(t, n.Net).SigningKey(t.Context(), did)
		require.NoError(t, err)
		curves[fmt.Sprintf("%T", key)] = true
		for _, f := range simnet.Forgeries() {
			require.NoError(t, n.Forge(f, did))
			_, err := n.PostNow(did, "a true one after it")
			require.NoError(t, err)
		}
	}
	require.Len(t, curves, 2)
	s := newStreamOf(t, verifiedWire(t, n, false), history{})
	stop := s.run(nil)
	s.reads()
	s.holds(s.posts())
	stop()
	for _, f := range simnet.Forgeries() {
		require.Equal(t, 8, n.Fired()[simnet.Fault(f)], f)
	}
	require.Zero(t, count(t, s.pool, forged))
	for did, cid := range edited {
		require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM posts WHERE did = $1 AND cid = $2`, did, cid), "a replay undid the edit")
	}
	// Three forgeries, and the three commits from before the rotation, because the directory has only the later key.
	for cause, refused := range map[string]int{
		"the signature is not of the account's key": 8 * (3 + 3), "the signature is not in the canonical form": 8,
	} {
		require.Equal(t, refused, count(t, s.pool, `
			SELECT count(*) FROM dead_letters WHERE stage = 'verify' AND class = 'permanent' AND cause = $1`, cause))
	}
	require.Equal(t, 16, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE stage = 'decode'`),
		"dead letters of blocks that do not match their CIDs")

	retried(t, s.pool, func(r *consumer.Retry) { r.Wires = map[string]consumer.Wire{"firehose": s.wire.decodes} })
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state <> 'open'`),
		"a retry must verify the commits again and refuse them")
	s.holds(s.posts())
	require.Zero(t, count(t, s.pool, forged))
}

// TestReplayedCommitChangesNothing sends old commits with valid signatures again.
func TestReplayedCommitChangesNothing(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	edits, deletes := n.Accounts()[1].DID, n.Accounts()[2].DID
	for _, did := range []string{edits, deletes} {
		e, err := n.PostNow(did, "first")
		require.NoError(t, err)
		uri := "at://" + did + "/" + e.Collection + "/" + e.Rkey
		if did == edits {
			_, err = n.EditPost(uri, "edited")
		} else {
			err = n.DeleteRecord(uri)
		}
		require.NoError(t, err)
		require.NoError(t, n.Forge(simnet.Replay, did))
	}
	_, err := n.PostNow(edits, "the last")
	require.NoError(t, err)
	s := newStreamOf(t, verifiedWire(t, n, false), history{})
	stop := s.run(func(c *consumer.Config) { c.BatchEvents = 1 })
	s.reads()
	s.holds(s.posts())
	stop()
	require.Equal(t, 2, n.Fired()[simnet.Fault(simnet.Replay)])
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts WHERE record ->> 'text' = 'first'`))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters`), "the signature is that of the account")
}

// TestEventsThatWaitTooLongDesynchronize checks that such events desynchronize their account: the
// records that they wrote may have been deleted since, so the repository is read instead.
func TestEventsThatWaitTooLongDesynchronize(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "plc", Count: 1000}))
	did := n.Hub().DID
	_, err := n.PostNow(did, "waits")
	require.NoError(t, err)
	s := newStreamOf(t, verifiedWire(t, n, false), history{})
	stop := s.run(nil)
	s.reads()
	stop()
	require.Empty(t, s.marked())
	n.ClearCallFaults()
	retried(t, s.pool, func(r *consumer.Retry) {
		r.Since = time.Now().Add(time.Hour)
		r.Wires = map[string]consumer.Wire{"firehose": s.wire.decodes}
	})
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND class = 'permanent' AND count = 2`))
	require.Equal(t, []string{did}, s.marked())
}

func client(t *testing.T, n *simnet.Net) *bluesky.Client {
	t.Helper()
	api, err := bluesky.New(bluesky.Config{AppView: n.AppViewURL(), Directory: n.DirectoryURL()})
	require.NoError(t, err)
	return api
}

// TestWholeStoresForgeries shows what verifying signatures adds: without it, only the blocks are
// checked.
func TestWholeStoresForgeries(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	did := n.Hub().DID
	_, err := n.PostNow(did, "true")
	require.NoError(t, err)
	for _, f := range []simnet.Forgery{simnet.OtherKey, simnet.WrongBlock, simnet.AlteredRecord} {
		require.NoError(t, n.Forge(f, did))
	}
	_, err = n.PostNow(did, "the last")
	require.NoError(t, err)
	s := newStreamOf(t, relayWire(t, n), history{})
	stop := s.run(nil)
	s.reads()
	stop()
	require.Equal(t, 1, count(t, s.pool, forged))
	require.Equal(t, 2, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE stage = 'decode'`))
}

// TestUnverifiedCommitsWaitForTheDirectory takes the directory down. The stream continues, nothing
// unverified is stored, and the retry stores everything.
func TestUnverifiedCommitsWaitForTheDirectory(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	var known, unknown []string
	for i, a := range n.Accounts()[:6] {
		if i < 2 {
			known = append(known, a.DID)
		} else {
			unknown = append(unknown, a.DID)
		}
	}
	writes := func(dids []string) {
		for _, did := range dids {
			e, err := n.PostNow(did, "first")
			require.NoError(t, err)
			_, err = n.EditPost("at://"+did+"/"+e.Collection+"/"+e.Rkey, "edited")
			require.NoError(t, err)
		}
	}
	writes(known)
	s := newStreamOf(t, verifiedWire(t, n, false), history{})
	stop := s.run(nil)
	s.reads()
	s.holds(s.posts())
	stored := s.posts()
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "plc", Count: 1000}))
	for range 3 {
		writes(unknown)
	}
	require.NoError(t, n.Forge(simnet.OtherKey, unknown[0]))
	e, err := n.PostNow(known[0], "by an account whose key is cached")
	require.NoError(t, err)
	s.reads()
	stop()
	s.holds(append(stored, post{known[0], e.Rkey}))
	const waiting = `SELECT count(*) FROM dead_letters WHERE stage = 'verify' AND class = 'retryable' AND state = 'open'`
	require.Equal(t, 4*3*2+1, count(t, s.pool, waiting))
	most, err := schema.WaitingDeadLetters(t.Context(), s.pool, 1000)
	require.NoError(t, err)
	require.Equal(t, 4*3*2+1, most)

	again := func(r *consumer.Retry) {
		r.Wires = map[string]consumer.Wire{"firehose": firehose.Wire(nil, newVerifier(t, n.Net, false))}
	}
	began := time.Now()
	retried(t, s.pool, again)
	require.Equal(t, 4*3*2+1, count(t, s.pool, waiting+` AND count = 2 AND last_seen >= $1`, began), "the directory is still down")
	n.ClearCallFaults()
	require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error { // in which now() stands still
		for _, c := range []struct{ seconds, due int }{{119, 0}, {121, 4*3*2 + 1}} {
			_, err := tx.Exec(t.Context(), `UPDATE dead_letters SET last_seen = now() - make_interval(secs => $1)`, c.seconds)
			require.NoError(t, err)
			due, err := schema.RequestDueRetries(t.Context(), tx)
			require.NoError(t, err)
			require.EqualValues(t, c.due, due, "events wait two minutes after two failures, not %d seconds", c.seconds)
		}
		return nil
	}))
	retried(t, s.pool, again)
	s.holds(s.posts())
	require.Zero(t, count(t, s.pool, forged))
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND class = 'permanent'`),
		"the forgery must not be retried automatically")
	require.Equal(t, 24, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried'`))
	require.Equal(t, []string{unknown[0]}, s.marked(), "a retry that refuses a commit desynchronizes too")
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts WHERE record ->> 'text' = 'first'`),
		"the newest revision wins, in whatever order they arrive")
}
