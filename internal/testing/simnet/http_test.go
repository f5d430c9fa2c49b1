package simnet_test

import (
	"bytes"
	"encoding/json"
	"image/jpeg"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func post(t *testing.T, n *simnet.Net, path string) (int, string) {
	t.Helper()
	response, body := request(t, http.MethodPost, "http://"+n.Address()+path)
	return response.StatusCode, string(body)
}

func TestAdminPlaysEvents(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9, History: 10})
	c := dial(t, n)
	status, _ := post(t, n, "/admin/play?n=25")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, seqsOf(n.Log().Entries()[10:]), c.seqs(25))
	for _, bad := range []string{"", "?n=0", "?n=-1", "?n=x", "?n=1000001"} {
		status, reason := post(t, n, "/admin/play"+bad)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, reason, "from 1 to 1000000")
	}
	require.Len(t, n.Log().Entries(), 35)
}

func TestAdminTriggersAndReportsFaults(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9, History: 10})
	fired := func() (counts map[simnet.Fault]int) {
		response, body := get(t, n, "/admin/fired")
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.NoError(t, json.Unmarshal(body, &counts))
		return counts
	}
	require.Empty(t, fired())
	for range 3 { // over keep-alive connections, which are not cut
		c := dial(t, n)
		status, body := post(t, n, "/admin/fault?kind=cut")
		require.Equal(t, http.StatusOK, status, body)
		_, err := c.ending()
		require.EqualValues(t, -1, websocket.CloseStatus(err))
	}
	require.Equal(t, 3, fired()[simnet.Cut])
	for _, kind := range []string{"", "flood"} {
		status, reason := post(t, n, "/admin/fault?kind="+kind)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, reason, "expected one of")
	}
	for _, f := range []simnet.Fault{simnet.Restart, simnet.Renumber} {
		c := dial(t, n)
		status, _ := post(t, n, "/admin/fault?kind="+string(f))
		require.Equal(t, http.StatusAccepted, status)
		_, err := c.ending()
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
		eventually.True(t, func() bool { return n.Fired()[f] == 1 }, time.Millisecond)
	}
	require.Equal(t, n.Log().Last().Seq-4, *dial(t, n, "cursor", digits(n.Log().Last().TimeUS)).next().Cursor)
}

func TestAdminTriggersEveryFault(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9, History: 10})
	for _, f := range simnet.Faults() {
		if f == simnet.Restart || f == simnet.Renumber {
			continue // these end the connection of the request
		}
		status, reason := post(t, n, "/admin/fault?kind="+string(f))
		require.Equal(t, http.StatusOK, status, reason)
	}
}

func TestAdminReturnsTheLog(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9, Mix: simnet.MixNetwork, History: 400})
	do(t, n, simnet.Garbage)
	response, body := get(t, n, "/admin/truth")
	require.Equal(t, http.StatusOK, response.StatusCode)
	decoder := json.NewDecoder(bytes.NewReader(body))
	for _, want := range n.Log().Entries() {
		var e simnet.Entry
		require.NoError(t, decoder.Decode(&e))
		if want.Record == nil {
			require.Equal(t, "null", string(e.Record))
			e.Record = nil
		} else {
			require.JSONEq(t, string(want.Record), string(e.Record))
			e.Record = want.Record
		}
		require.True(t, want.CreatedAt.Equal(e.CreatedAt))
		e.CreatedAt = want.CreatedAt
		require.Equal(t, *want, e)
	}
	require.False(t, decoder.More())
}

func TestPicturesAreTheSameForTheSameName(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9})
	picture := func(name string) []byte {
		address := strings.NewReplacer("{did}", "did:plc:x", "{cid}", name).Replace(n.ImageBase())
		response, body := request(t, http.MethodGet, address)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.Equal(t, "image/jpeg", response.Header.Get("Content-Type"))
		return body
	}
	one := picture("bafkone")
	require.Equal(t, one, picture("bafkone"))
	require.NotEqual(t, one, picture("bafktwo"))
	drawn, err := jpeg.Decode(bytes.NewReader(one))
	require.NoError(t, err)
	require.Equal(t, 600, drawn.Bounds().Dx())
}

func TestOtherPathsAreNotFound(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9})
	response, _ := get(t, n, "/nothing")
	require.Equal(t, http.StatusNotFound, response.StatusCode)
	response, _ = get(t, n, "/admin/fault?kind=cut")
	require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
}
