package simnet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// relayClient reads subscribeRepos with indigo, which shares no code with
// simnet's encoder.
type relayClient struct {
	t    *testing.T
	conn *websocket.Conn
}

// subscribeRepos connects to the relay; cursor is a query such as ?cursor=0.
func subscribeRepos(t *testing.T, n *simnet.Net, cursor string) relayClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, n.RelayURL()+cursor, nil)
	require.NoError(t, err)
	conn.SetReadLimit(-1)
	t.Cleanup(func() { conn.CloseNow() }) // the test is over
	return relayClient{t, conn}
}

// raw returns the next frame.
func (c relayClient) raw() []byte {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	kind, data, err := c.conn.Read(ctx)
	require.NoError(c.t, err)
	require.Equal(c.t, websocket.MessageBinary, kind)
	return data
}

// sent is a message. Only one of its fields is set.
type sent struct {
	commit   *comatproto.SyncSubscribeRepos_Commit
	identity *comatproto.SyncSubscribeRepos_Identity
	account  *comatproto.SyncSubscribeRepos_Account
	sync     *comatproto.SyncSubscribeRepos_Sync
	info     *comatproto.SyncSubscribeRepos_Info
}

func (m sent) seq() int64 {
	switch {
	case m.commit != nil:
		return m.commit.Seq
	case m.identity != nil:
		return m.identity.Seq
	case m.account != nil:
		return m.account.Seq
	case m.sync != nil:
		return m.sync.Seq
	}
	return 0
}

func (c relayClient) next() (m sent) {
	c.t.Helper()
	data := c.raw()
	var err error
	if body, ok := bytes.CutPrefix(data, []byte("\xa2\x61t\x67#commit\x62op\x01")); ok {
		m.commit = &comatproto.SyncSubscribeRepos_Commit{}
		err = m.commit.UnmarshalCBOR(bytes.NewReader(body))
	} else if body, ok := bytes.CutPrefix(data, []byte("\xa2\x61t\x69#identity\x62op\x01")); ok {
		m.identity = &comatproto.SyncSubscribeRepos_Identity{}
		err = m.identity.UnmarshalCBOR(bytes.NewReader(body))
	} else if body, ok := bytes.CutPrefix(data, []byte("\xa2\x61t\x68#account\x62op\x01")); ok {
		m.account = &comatproto.SyncSubscribeRepos_Account{}
		err = m.account.UnmarshalCBOR(bytes.NewReader(body))
	} else if body, ok := bytes.CutPrefix(data, []byte("\xa2\x61t\x65#sync\x62op\x01")); ok {
		m.sync = &comatproto.SyncSubscribeRepos_Sync{}
		err = m.sync.UnmarshalCBOR(bytes.NewReader(body))
	} else if body, ok := bytes.CutPrefix(data, []byte("\xa2\x61t\x65#info\x62op\x01")); ok {
		m.info = &comatproto.SyncSubscribeRepos_Info{}
		err = m.info.UnmarshalCBOR(bytes.NewReader(body))
	} else {
		require.Fail(c.t, "unknown frame", "%q", data[:min(len(data), 60)])
	}
	require.NoError(c.t, err)
	return m
}

// until returns the messages up to the last event of the log.
func (c relayClient) until(n *simnet.Net) (all []sent) {
	c.t.Helper()
	last := n.Log().Last().RelaySeq
	for len(all) == 0 || all[len(all)-1].seq() != last {
		all = append(all, c.next())
	}
	return all
}

// keyOf returns the key in an account's DID document.
func keyOf(t *testing.T, n *simnet.Net, did string) atcrypto.PublicKey {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.DirectoryURL()+"/"+did, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	var document struct {
		VerificationMethod []struct{ PublicKeyMultibase string }
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&document))
	key, err := atcrypto.ParsePublicMultibase(document.VerificationMethod[0].PublicKeyMultibase)
	require.NoError(t, err)
	return key
}

// sortedJSON returns JSON with its names in order.
func sortedJSON(t *testing.T, text []byte) string {
	t.Helper()
	var value any
	require.NoError(t, json.Unmarshal(text, &value))
	sorted, err := json.Marshal(value)
	require.NoError(t, err)
	return string(sorted)
}

// TestRelayProvesItsCommits reads a whole history as a strict consumer would:
// every commit follows the one before, is signed, and can be inverted.
func TestRelayProvesItsCommits(t *testing.T) {
	t.Parallel()
	long(t)
	n := network(t, simnet.Config{Seed: 5, Accounts: 60, History: 3000})
	type state struct{ rev, data string }
	states, records, several, deleted := map[string]state{}, map[string]string{}, 0, 0
	for _, m := range subscribeRepos(t, n, "?cursor=0").until(n) {
		if m.account != nil && !m.account.Active && *m.account.Status == "deleted" {
			delete(states, m.account.Did)
		}
		c := m.commit
		if c == nil {
			continue
		}
		loaded, err := repo.VerifyCommitMessage(t.Context(), c)
		require.NoError(t, err)
		signed, _, err := repo.LoadCommitFromCAR(t.Context(), bytes.NewReader(c.Blocks))
		require.NoError(t, err)
		if a, _ := n.Account(c.Repo); a.Status != "deleted" {
			require.NoError(t, signed.VerifySignature(keyOf(t, n, c.Repo)))
		}
		if before, ok := states[c.Repo]; ok {
			require.Equal(t, before, state{*c.Since, c.PrevData.String()})
		}
		states[c.Repo] = state{c.Rev, signed.Data.String()}
		if len(c.Ops) > 1 {
			several++
		}
		for _, op := range c.Ops {
			path := c.Repo + "/" + op.Path
			if op.Action == "delete" {
				require.NotNil(t, op.Prev)
				deleted++
				delete(records, path)
				continue
			}
			collection, rkey, err := syntax.ParseRepoPath(op.Path)
			require.NoError(t, err)
			raw, id, err := loaded.GetRecordBytes(t.Context(), collection, rkey)
			require.NoError(t, err)
			value, err := atdata.UnmarshalCBOR(raw)
			require.NoError(t, err)
			text, err := json.Marshal(value)
			require.NoError(t, err)
			records[path] = id.String() + sortedJSON(t, text)
		}
	}
	require.Greater(t, several, 100)
	require.Greater(t, deleted, 30)
	want := map[string]string{}
	for _, e := range n.Log().Entries() {
		path := e.DID + "/" + e.Collection + "/" + e.Rkey
		switch {
		case e.Kind == "commit" && e.Record == nil:
			delete(want, path)
		case e.Kind == "commit":
			want[path] = e.CID + sortedJSON(t, e.Record)
		}
	}
	require.Len(t, records, len(want))
	for path, record := range want {
		require.Equal(t, record, records[path])
	}
}

func TestRelayCursors(t *testing.T) {
	t.Parallel()
	for _, relay := range []simnet.Relay{{}, {Inclusive: true}, {Silent: true}, {Silent: true, Inclusive: true}} {
		t.Run(fmt.Sprintf("%+v", relay), func(t *testing.T) {
			t.Parallel()
			n := network(t, simnet.Config{Seed: 6, History: 50, Serving: simnet.Serving{Relay: relay}})
			all := subscribeRepos(t, n, "?cursor=0").until(n)
			middle, last := all[20], all[len(all)-1].seq()
			first := subscribeRepos(t, n, fmt.Sprint("?cursor=", middle.seq())).next()
			if relay.Inclusive {
				require.Equal(t, middle.seq(), first.seq())
			} else {
				require.Equal(t, all[21].seq(), first.seq())
			}

			future := subscribeRepos(t, n, fmt.Sprint("?cursor=", last+5))
			if relay.Silent {
				n.Play(1)
				require.Greater(t, future.next().seq(), last)
			} else {
				require.Contains(t, string(future.raw()), "FutureCursor")
			}

			require.NoError(t, n.Do(simnet.TooOld))
			n.Play(3)
			old := subscribeRepos(t, n, fmt.Sprint("?cursor=", middle.seq()))
			if !relay.Silent {
				require.Equal(t, "OutdatedCursor", old.next().info.Name)
			}
			require.Greater(t, old.next().seq(), last)
			require.Positive(t, n.Fired()[simnet.TooOld])
		})
	}
}

func TestRelayFaults(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 7, History: 300})
	all := subscribeRepos(t, n, "?cursor=0").until(n)
	require.NoError(t, n.Do(simnet.Renumber))
	again := subscribeRepos(t, n, "?cursor=0")
	require.Equal(t, all[0].seq()-4, again.next().seq())

	hidden := all[0].commit.Repo
	n.HideFromRelay(hidden, true)
	live := subscribeRepos(t, n, "")
	_, err := n.PostNow(hidden, "nobody sees this")
	require.NoError(t, err)
	require.NoError(t, n.SyncRepo(n.Hub().DID))
	message := live.next().sync
	require.Equal(t, n.Hub().DID, message.Did)
	signed, _, err := repo.LoadCommitFromCAR(t.Context(), bytes.NewReader(message.Blocks))
	require.NoError(t, err)
	require.NoError(t, signed.VerifySignature(keyOf(t, n, message.Did)))
	require.Equal(t, message.Rev, signed.Rev)

	require.NoError(t, n.Do(simnet.Garbage))
	require.Contains(t, string(live.raw()), "not JSON")
	require.NoError(t, n.Do(simnet.Stale))
	require.Less(t, live.next().seq(), n.Log().Last().RelaySeq-20)
	require.NoError(t, n.Do(simnet.Cut))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for err == nil {
		_, _, err = live.conn.Read(ctx)
	}
	require.NoError(t, ctx.Err())

	require.NoError(t, n.Do(simnet.Refuse))
	_, response, err := websocket.Dial(ctx, n.RelayURL(), nil)
	require.Error(t, err)
	require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
}

// TestJetstreamHasNoSync checks that Jetstream does not send events that only a
// relay has.
func TestJetstreamHasNoSync(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 8, History: 5})
	require.NoError(t, n.SyncRepo(n.Hub().DID))
	n.Play(1)
	var lines bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&lines, simnet.V2))
	require.Equal(t, 6, bytes.Count(lines.Bytes(), []byte("\n")))
	require.Equal(t, int64(2), n.Log().Last().Seq-n.Log().Entries()[4].Seq)
	require.WithinDuration(t, time.Now(), time.UnixMicro(n.Log().Last().TimeUS), time.Hour)
}
