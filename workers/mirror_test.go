package workers

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestMirrorStandsInForADeadServer reads a history, and then repairs an account, whose own server answers nothing:
// the second mirror has copies. A copy that the account has not signed is not stored.
func TestMirrorStandsInForADeadServer(t *testing.T) {
	t.Parallel()
	const getRepo = "com.atproto.sync.getRepo"
	copies := map[string][]byte{}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		car, there := copies[r.URL.Query().Get("did")]
		if !there || !strings.HasSuffix(r.URL.Path, getRepo) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.ipld.car")
		w.Write(car) // the client may disconnect
	}))
	t.Cleanup(mirror.Close)
	r := filling(t, func(c *Config) {
		c.Backfill = 1 // one copy at a time is in memory; an account that finds it used is read again a minute later
		c.Resync = ResyncLimits{Useful: time.Millisecond, Useless: time.Millisecond}
		own := c.Bluesky.Relays()[0]
		var err error
		c.Bluesky, err = bluesky.New(bluesky.Config{
			AppView: own, Directory: own, Relays: []string{own}, Mirrors: []string{"http://127.0.0.1:1", mirror.URL}, Logger: c.Logger,
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
	copies[did] = kept(did)
	copies[forged] = copies[did]
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
	r.puts(did, persona, "self", "p")
	copies[did] = kept(did)
	die()
	require.Equal(t, 1, r.refuses(did, ""))
	r.synchronized()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM records_other WHERE did = $1 AND rkey = 'self'`, did))
}
