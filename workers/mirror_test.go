package workers

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const getRepo = "com.atproto.sync.getRepo"

// mirror is a server that has the copies of repositories which it is given.
func mirror(t *testing.T) (url string, set func(did string, car []byte)) {
	var copies sync.Map
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		car, there := copies.Load(r.URL.Query().Get("did"))
		if !there || !strings.HasSuffix(r.URL.Path, getRepo) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.ipld.car")
		w.Write(car.([]byte)) // the client may disconnect
	}))
	t.Cleanup(s.Close)
	return s.URL, func(did string, car []byte) { copies.Store(did, car) }
}

// TestMirrorStandsInForADeadServer reads a history, and then repairs an account, whose own server answers nothing:
// the last mirror has copies, and the one before it has outdated ones, or those of another account. A copy that the
// account has not signed is not stored. What was missed is known in spite of failed attempts, and only a copy that has
// it ends a resync.
func TestMirrorStandsInForADeadServer(t *testing.T) {
	t.Parallel()
	bad, setBad := mirror(t)
	good, setGood := mirror(t)
	r := filling(t, func(c *Config) {
		c.Resync = ResyncLimits{Useful: time.Millisecond, Useless: time.Millisecond}
		own := c.Bluesky.Relays()[0]
		var err error
		c.Bluesky, err = bluesky.New(bluesky.Config{
			AppView: own, Directory: own, Relays: []string{own}, Mirrors: []string{"http://127.0.0.1:1", bad, good}, Logger: c.Logger,
			Retries: []time.Duration{},
		})
		require.NoError(t, err)
	})
	kept := func(did string) []byte {
		t.Helper()
		response, err := http.Get(r.net.PDSURL() + "/xrpc/" + getRepo + "?did=" + url.QueryEscape(did))
		require.NoError(t, err)
		defer response.Body.Close()
		car, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		return car
	}
	did, forged := r.net.Accounts()[0].DID, r.net.Accounts()[1].DID
	for i := range 3 {
		r.puts(did, persona, old(i), "p")
		r.puts(forged, persona, old(i), "p")
	}
	other := kept(r.net.Accounts()[2].DID)
	setBad(did, other)
	setGood(did, kept(did))
	setBad(forged, other)
	setGood(forged, other)
	die := func() {
		t.Helper()
		for _, call := range []string{
			getRepo, "com.atproto.sync.getLatestCommit", "com.atproto.repo.describeRepo", "com.atproto.repo.listRecords",
		} {
			require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: call, Count: 1000}))
		}
	}
	die()
	h := r.fills(persona)
	require.Equal(t, []int64{2, 1, 1}, []int64{h.Accounts, h.Done, h.Unread})
	require.Equal(t, 3, r.count(`SELECT count(*) FROM records_other WHERE collection = $1 AND did = $2`, persona, did))
	require.Zero(t, r.count(`SELECT count(*) FROM records_other WHERE did = $1`, forged))

	r.net.ClearCallFaults()
	r.follows(did)
	r.puts(did, persona, "first", "p")
	setBad(did, kept(did))
	setGood(did, kept(did))
	missed := revNow()
	r.puts(did, persona, "self", "p")
	latest := kept(did)
	die()
	require.Equal(t, 1, r.refuses(did, missed))
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem <> '' OR desynchronized_at IS NULL`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM resyncs WHERE problem <> ''`), "no mirror has it yet")
	require.Zero(t, r.count(`SELECT count(*) FROM records_other WHERE did = $1 AND rkey = 'self'`, did))
	setGood(did, latest)
	r.synchronized()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM records_other WHERE did = $1 AND rkey = 'self'`, did))

	require.Equal(t, 1, r.refuses(did, "")) // nobody knows what was missed, so only the account's own server does
	r.becomes(1, `SELECT count(*) FROM resyncs WHERE problem <> ''`)
	r.net.ClearCallFaults()
	r.synchronized()
}

// TestRevisionIsReadOnce shows that a history with mirrors asks a server that responds for the revision once.
func TestRevisionIsReadOnce(t *testing.T) {
	t.Parallel()
	r := filling(t, func(c *Config) {
		own := c.Bluesky.Relays()[0]
		var err error
		c.Bluesky, err = bluesky.New(bluesky.Config{
			AppView: own, Directory: own, Relays: []string{own}, Mirrors: []string{"http://127.0.0.1:1"}, Logger: c.Logger,
			Retries: []time.Duration{},
		})
		require.NoError(t, err)
	})
	r.puts(r.net.Accounts()[0].DID, persona, old(0), "p")
	require.EqualValues(t, 1, r.fills(persona).Done)
	require.Len(t, r.net.Calls("com.atproto.sync.getLatestCommit"), 1)
}
