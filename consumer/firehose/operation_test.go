package firehose

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/repo"
	lexutil "github.com/bluesky-social/indigo/lex/util"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// alone checks that each input that is decoded by itself yields one event, or
// the same failure as within its frame.
func alone(t testing.TB, m *consumer.Message) {
	t.Helper()
	wire := Wire(nil, nil)
	var single consumer.Message
	for i := range m.Events {
		want := m.Events[i]
		wire.Decode(wire.Excerpt(m.Raw, want.Part), arrival(), &single)
		require.Empty(t, single.Malformed)
		require.Len(t, single.Events, 1)
		want.Part = single.Events[0].Part
		require.Equal(t, want, single.Events[0])
		require.Equal(t, m.FramePosition, single.FramePosition)
	}
	for _, bad := range m.Malformed {
		wire.Decode(bad.Raw, arrival(), &single)
		require.Empty(t, single.Events)
		require.Len(t, single.Malformed, 1)
		again := *single.Malformed[0]
		require.Equal(t, []string{bad.Cause, bad.Author, bad.Collection, bad.Key, bad.Revision},
			[]string{again.Cause, again.Author, again.Collection, again.Key, again.Revision})
	}
}

// TestOperationThatFailsIsOneDeadLetter spoils the second of five operations in
// several ways. The others become events.
func TestOperationThatFailsIsOneDeadLetter(t *testing.T) {
	t.Parallel()
	type message = comatproto.SyncSubscribeRepos_Commit
	without := func(r *repository, msg *message, c cid.Cid) {
		msg.Blocks = carOf(r.t, slices.DeleteFunc(blocksOf(r.t, msg), func(b blockformat.Block) bool { return b.Cid() == c })...)
	}
	for name, c := range map[string]struct {
		change      func(r *repository, msg *message)
		cause, path string
		nameless    bool // whether the record's key is unreadable too
	}{
		"null":          {func(_ *repository, msg *message) { msg.Ops[1] = nil }, "wrong type", "/ops/1", true},
		"no action":     {func(_ *repository, msg *message) { msg.Ops[1].Action = "" }, "unknown operation", "/ops/1/action", false},
		"no collection": {func(_ *repository, msg *message) { msg.Ops[1].Path = "x/a" }, "not a collection", "/ops/1/path", true},
		"no key":        {func(_ *repository, msg *message) { msg.Ops[1].Path = "app.bsky.feed.post" }, "not a record key", "/ops/1/path", true},
		"no path":       {func(_ *repository, msg *message) { msg.Ops[1].Path = "" }, "not a collection", "/ops/1/path", true},
		"two slashes":   {func(_ *repository, msg *message) { msg.Ops[1].Path += "/c" }, "not a record key", "/ops/1/path", true},
		"no CID":        {func(_ *repository, msg *message) { msg.Ops[1].Cid = nil }, "the record is missing", "/ops/1/cid", false},
		"other CID": {func(_ *repository, msg *message) { msg.Ops[1].Cid = msg.Ops[0].Cid }, "the repository's tree has another record",
			"/ops/1/tree", false},
		"other path": {func(_ *repository, msg *message) { msg.Ops[1].Path = "app.bsky.feed.post/zz" },
			"the record is not in the repository's tree", "/ops/1/tree", false},
		"not deleted": {func(_ *repository, msg *message) { msg.Ops[1].Action, msg.Ops[1].Cid = "delete", nil },
			"the deleted record is in the repository's tree", "/ops/1/tree", false},
		"deleted record": {func(_ *repository, msg *message) { msg.Ops[1].Action = "delete" }, "a deletion has a record", "/ops/1/cid", false},
		"missing block": {func(r *repository, msg *message) { without(r, msg, cid.Cid(*msg.Ops[1].Cid)) }, "a block is missing", "/ops/1/record",
			false},
		"changed record": {func(_ *repository, msg *message) {
			at := bytes.Index(msg.Blocks, []byte("second"))
			msg.Blocks[at] = 'S'
		}, "a block does not match its CID", "/ops/1/record", false},
		"raw block": {func(_ *repository, msg *message) {
			*msg.Ops[1].Cid = lexutil.LexLink(cid.NewCidV1(cid.Raw, cid.Cid(*msg.Ops[1].Cid).Hash()))
		}, "not the CID of a block", "/ops/1/cid", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := filled(t, 50)
			r.commit(write{"app.bsky.feed.post/old", post(t, "old")}, write{"app.bsky.feed.post/new", post(t, "old")})
			msg := r.commit(write{"app.bsky.feed.post/a", post(t, "first")}, write{"app.bsky.feed.post/b", post(t, "second")},
				write{"app.bsky.feed.post/c", post(t, "third")},
				write{"app.bsky.feed.post/old", nil}, write{"app.bsky.feed.post/new", post(t, "new")})
			c.change(r, msg)
			m := decoded(t, commitFrame(t, msg))
			require.Len(t, m.Events, 4)
			require.Len(t, m.Malformed, 1)
			bad := m.Malformed[0]
			require.Equal(t, []string{c.cause, c.path, testDID}, []string{bad.Cause, bad.Path, bad.Author}, "%+v", bad)
			require.Less(t, len(bad.Raw), len(m.Raw))
			if !c.nameless {
				require.Equal(t, msg.Ops[1].Path+" "+msg.Rev, bad.Collection+"/"+bad.Key+" "+bad.Revision)
			}
			require.Equal(t, msg.Seq, m.Seq)
			require.NotZero(t, m.Identity)
			alone(t, m)
		})
	}
}

func TestExcerptHoldsOneEvent(t *testing.T) {
	t.Parallel()
	r := filled(t, 500)
	var writes []write
	for i := range 30 {
		writes = append(writes, write{fmt.Sprintf("app.bsky.feed.post/%d", i), post(t, fmt.Sprint(i))})
	}
	r.commit(writes[:10]...)
	for i := range 5 {
		writes[i].record = nil
	}
	m := decoded(t, commitFrame(t, r.commit(writes...)))
	require.Len(t, m.Events, 30)
	alone(t, m)
	wire := Wire(nil, nil)
	require.Less(t, len(wire.Excerpt(m.Raw, 3)), len(m.Raw)/2)
	require.Equal(t, m.Raw, wire.Excerpt(m.Raw, 99))
	require.Equal(t, []byte("x"), wire.Excerpt([]byte("x"), 0))
	alone(t, decoded(t, commitFrame(t, r.commit(write{"app.bsky.feed.post/a", post(t, "a")}))))
}

// TestRecordsOutliveTheirFrame shows that the records of a frame do not change
// while later frames are decoded.
func TestRecordsOutliveTheirFrame(t *testing.T) {
	t.Parallel()
	r, wire := newRepository(t), Wire(nil, nil)
	var m consumer.Message
	var kept []consumer.Event
	var want []string
	for i := range 400 {
		text := fmt.Sprint("text ", i)
		raw := post(t, text)
		if i%100 == 7 {
			raw = layer(t)
		}
		wire.Decode(commitFrame(t, r.commit(write{"app.bsky.feed.post/a", raw})), arrival(), &m)
		require.Len(t, m.Events, 1)
		kept = append(kept, m.Events[0])
		want = append(want, string(m.Events[0].Record)+m.Events[0].CID)
	}
	for i, ev := range kept {
		require.Equal(t, want[i], string(ev.Record)+ev.CID)
		require.Equal(t, len(ev.Record), cap(ev.Record))
	}
}

// TestUnsignedCommitIsWhatWasSigned shows that unsigned returns the bytes that
// the signature covers.
func TestUnsignedCommitIsWhatWasSigned(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	frame := commitFrame(t, r.commit(write{"app.bsky.feed.post/a", post(t, "a")}))
	var d decoder
	require.Nil(t, d.read(frame))
	require.Nil(t, d.readSigned())
	public, err := r.key.PublicKey()
	require.NoError(t, err)
	require.NoError(t, public.HashAndVerify(d.signed.unsigned(), d.signed.sig))
	require.Error(t, public.HashAndVerify(d.signed.raw, d.signed.sig))
	prev := *r.data
	c := repo.Commit{DID: testDID, Version: 3, Prev: &prev, Data: prev, Rev: r.rev}
	require.NoError(t, c.Sign(r.key))
	var raw bytes.Buffer
	require.NoError(t, c.MarshalCBOR(&raw))
	got, bad := readCommit(raw.Bytes())
	require.Nil(t, bad)
	want, err := c.UnsignedBytes()
	require.NoError(t, err)
	require.Equal(t, want, got.unsigned())
	require.Equal(t, []any{testDID, r.rev, c.Sig, prev.String()}, []any{got.did, got.rev, got.sig, got.data.String()})
}
