package firehose

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/repo"
	lexutil "github.com/bluesky-social/indigo/lex/util"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

func TestEveryTypeOfMessage(t *testing.T) {
	t.Parallel()
	const date = "2026-08-01T12:00:00.123Z"
	at := time.Date(2026, 8, 1, 12, 0, 0, 123e6, time.UTC)
	handle, status := "alice.test", "takendown"
	place := func(m *consumer.Message, seq int64) {
		require.Equal(t, []any{seq, at.UnixMicro(), at, arrival()}, []any{m.Seq, m.TimeUS, m.At, m.Arrived})
	}

	m := decoded(t, frameOf(t, "#identity", &comatproto.SyncSubscribeRepos_Identity{Did: testDID, Handle: &handle, Seq: 8, Time: date}))
	place(m, 8)
	require.Equal(t, consumer.Identity{Kind: "identity", Author: testDID}, m.Identity)
	require.Equal(t, []consumer.Event{{Kind: consumer.KindIdentity, Author: testDID, Handle: handle, At: at}}, m.Events)
	handle = "not a handle"
	m = decoded(t, frameOf(t, "#identity", &comatproto.SyncSubscribeRepos_Identity{Did: testDID, Handle: &handle, Seq: 8, Time: date}))
	require.Equal(t, []consumer.Event{{Kind: consumer.KindIdentity, Author: testDID, Handle: consumer.InvalidHandle, At: at}}, m.Events)
	m = decoded(t, frameOf(t, "#identity", &comatproto.SyncSubscribeRepos_Identity{Did: testDID, Seq: 8, Time: date}))
	require.Equal(t, []consumer.Event{{Kind: consumer.KindIdentity, Author: testDID, At: at}}, m.Events)

	m = decoded(t, frameOf(t, "#account", &comatproto.SyncSubscribeRepos_Account{
		Did: testDID, Active: false, Status: &status, Seq: 1<<53 - 1, Time: date,
	}))
	place(m, 1<<53-1)
	require.Equal(t, consumer.Identity{Kind: "account", Author: testDID}, m.Identity)
	require.Equal(t, []consumer.Event{{Kind: consumer.KindAccount, Author: testDID, Status: status, At: at}}, m.Events)
	m = decoded(t, frameOf(t, "#account", &comatproto.SyncSubscribeRepos_Account{Did: testDID, Active: true, Seq: 9, Time: date}))
	require.Equal(t, []consumer.Event{{Kind: consumer.KindAccount, Author: testDID, Active: true, At: at}}, m.Events)

	r := newRepository(t)
	msg := r.commit(write{"app.bsky.feed.post/a", post(t, "a")})
	only := carOf(t, blocksOf(t, msg)[0])
	m = decoded(t, frameOf(t, "#sync", &comatproto.SyncSubscribeRepos_Sync{Did: testDID, Rev: msg.Rev, Blocks: only, Seq: 10, Time: date}))
	place(m, 10)
	require.Equal(t, consumer.Identity{Kind: "sync", Author: testDID, Revision: msg.Rev}, m.Identity)
	require.Empty(t, m.Events)
	require.Empty(t, m.Malformed)
	empty := r.commit()
	m = decoded(t, commitFrame(t, empty))
	require.Equal(t, empty.Seq, m.Seq)
	require.Empty(t, append(m.Events, m.Events...))
	require.Empty(t, m.Malformed)

	for _, unknown := range []string{"#labels", "#Commit", ""} {
		m = decoded(t, frameOf(t, unknown, &comatproto.SyncSubscribeRepos_Account{Did: testDID, Seq: 11, Time: date}))
		place(m, 11)
		require.Equal(t, []consumer.Event{{}}, m.Events, "the event must count as one of another kind")
		require.Zero(t, m.Identity)
	}
	m = decoded(t, append(encoded(t, map[string]any{"op": 1, "t": "#new"}), encoded(t, map[string]any{"seq": "x", "ops": 1})...))
	require.Equal(t, []consumer.Event{{}}, m.Events)
	require.Zero(t, m.TimeUS, "the frame must have no place")
	m = decoded(t, append(encoded(t, map[string]any{"op": 2}), 0xff))
	require.Equal(t, []consumer.Event{{}}, m.Events)
}

func TestNoticesAreNamed(t *testing.T) {
	t.Parallel()
	var d decoder
	var m consumer.Message
	join := func(header, body map[string]any) []byte { return append(encoded(t, header), encoded(t, body)...) }
	for _, c := range []struct {
		frame []byte
		want  Notice
	}{
		{join(map[string]any{"op": -1}, map[string]any{"error": "FutureCursor", "message": "too high"}), Notice{FutureCursor, "too high", true}},
		{join(map[string]any{"op": -1}, map[string]any{"error": "ConsumerTooSlow"}), Notice{ConsumerTooSlow, "", true}},
		{join(map[string]any{"op": -1, "t": "#commit"}, map[string]any{"error": "New"}), Notice{"New", "", true}},
		{
			join(map[string]any{"op": 1, "t": "#info"}, map[string]any{"name": "OutdatedCursor", "message": nil}), Notice{OutdatedCursor, "", false},
		},
	} {
		require.Equal(t, &c.want, d.decode(c.frame, arrival(), &m))
		require.Zero(t, m.TimeUS, "a notice moves no position")
		require.Empty(t, m.Events)
		require.Empty(t, m.Malformed)
	}
	require.Equal(t, "FutureCursor: too high", (&Notice{Name: FutureCursor, Message: "too high"}).Error())
}

// TestBlocksOfUnwantedCommitStayUnread shows that of a frame without wanted
// operations only the header and the paths are read.
func TestBlocksOfUnwantedCommitStayUnread(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	msg := r.commit(write{"app.bsky.feed.post/a", post(t, "a")}, write{"app.bsky.feed.like/b", post(t, "b")},
		write{"app.bsky.feed.post/c", post(t, "c")})
	var m consumer.Message
	like := Wire(func(collection string) bool { return collection == "app.bsky.feed.like" }, nil)
	like.Decode(commitFrame(t, msg), arrival(), &m)
	require.Len(t, m.Events, 1)
	require.Equal(t, []any{"b", 1}, []any{m.Events[0].Key, m.Events[0].Part})

	msg.Blocks = []byte("not a CAR")
	frame := commitFrame(t, msg)
	Wire(func(string) bool { return false }, nil).Decode(frame, arrival(), &m)
	require.Empty(t, m.Events)
	require.Empty(t, m.Malformed)
	require.Equal(t, msg.Seq, m.Seq)
	require.Equal(t, consumer.Identity{Kind: "commit", Author: testDID, Revision: msg.Rev}, m.Identity)
	like.Decode(frame, arrival(), &m)
	require.Len(t, m.Malformed, 1)
}

// TestCommitThatContradictsItselfIsRefused shows that the whole commit becomes
// one dead letter, and that the stream continues after it.
func TestCommitThatContradictsItselfIsRefused(t *testing.T) {
	t.Parallel()
	type message = comatproto.SyncSubscribeRepos_Commit
	for name, c := range map[string]struct {
		change      func(r *repository, msg *message)
		cause, path string
	}{
		"other account":  {func(_ *repository, msg *message) { msg.Repo = "did:plc:other" }, "the commit is of another account", "/commit/did"},
		"no account":     {func(_ *repository, msg *message) { msg.Repo = "alice.test" }, "not a DID", "/repo"},
		"other revision": {func(_ *repository, msg *message) { msg.Rev = "3mptbypluud2a" }, "the commit is another revision", "/commit/rev"},
		"no revision":    {func(_ *repository, msg *message) { msg.Rev = "1" }, "not a revision", "/rev"},
		"other commit":   {func(_ *repository, msg *message) { msg.Commit = *msg.Ops[0].Cid }, "the CAR is of another commit", "/blocks"},
		"no time":        {func(_ *repository, msg *message) { msg.Time = "" }, "the time is missing or out of range", "/time"},
		"late time": {func(_ *repository, msg *message) { msg.Time = "99999-01-01T00:00:00Z" }, "the time is missing or out of range",
			"/time"},
		"no number":    {func(_ *repository, msg *message) { msg.Seq = 0 }, "not a sequence number", "/seq"},
		"large number": {func(_ *repository, msg *message) { msg.Seq = 1 << 53 }, "not a sequence number", "/seq"},
		"too big": {func(_ *repository, msg *message) { msg.TooBig, msg.Ops, msg.Blocks = true, nil, nil },
			"the commit is marked as too big for its operations to be included", "/tooBig"},
		"no blocks": {func(_ *repository, msg *message) { msg.Blocks = nil }, "the CAR ends within a block", "/blocks"},
		"cut blocks": {func(_ *repository, msg *message) { msg.Blocks = msg.Blocks[:len(msg.Blocks)-1] }, "the CAR ends within a block",
			"/blocks"},
		"no commit": {func(r *repository, msg *message) {
			all := blocksOf(r.t, msg)
			msg.Blocks = carFrom(r.t, all[0].Cid(), all[1:]...)
		}, "a block is missing", "/commit"},
		"changed commit": {func(_ *repository, msg *message) {
			msg.Blocks[bytes.Index(msg.Blocks, []byte("\x63did"))+10]++
		}, "a block does not match its CID", "/commit"},
		"version 2": {func(r *repository, msg *message) {
			r.sign(msg, &sent{blocks: blocksOf(r.t, msg)[1:]}, &repo.Commit{DID: testDID, Version: 2, Data: *r.data, Rev: msg.Rev})
		}, "unknown version of a repository", "/commit/version"},
		"no signature": {func(r *repository, msg *message) {
			var raw bytes.Buffer
			require.NoError(r.t, (&repo.Commit{DID: testDID, Version: 3, Data: *r.data, Rev: msg.Rev}).MarshalCBOR(&raw))
			unsigned := blockOf(r.t, raw.Bytes())
			msg.Commit = lexutil.LexLink(unsigned.Cid())
			msg.Blocks = carOf(r.t, append([]blockformat.Block{unsigned}, blocksOf(r.t, msg)[1:]...)...)
		}, "the commit is not signed", "/commit/sig"},
		"CAR of version 2": {func(_ *repository, msg *message) {
			at := bytes.Index(msg.Blocks, []byte("\x67version\x01"))
			msg.Blocks[at+8] = 2
		}, "not a CAR of version 1", "/blocks/version"},
		"too many operations": {func(_ *repository, msg *message) {
			msg.Ops = slices.Repeat(msg.Ops, 201)
		}, "the commit has too many operations", "/ops"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			msg := r.commit(write{"app.bsky.feed.post/a", post(t, "a")})
			c.change(r, msg)
			frame := commitFrame(t, msg)
			m := decoded(t, frame)
			require.Empty(t, m.Events)
			require.Len(t, m.Malformed, 1)
			bad := m.Malformed[0]
			require.Equal(t, []string{c.cause, c.path}, []string{bad.Cause, bad.Path}, "%+v", bad)
			require.Equal(t, frame, bad.Raw)
			require.Zero(t, m.Identity)
			if c.path == "/time" || c.path == "/seq" {
				require.Zero(t, m.TimeUS)
				return
			}
			require.Equal(t, msg.Seq, m.Seq, "the position must move past the refused commit")
			if c.path == "/repo" {
				return
			}
			require.Equal(t, msg.Repo, bad.Author)
			if len(msg.Ops) == 1 {
				require.Equal(t, []string{"app.bsky.feed.post", "a"}, []string{bad.Collection, bad.Key},
					"the dead letter must name the commit's only record")
			}
		})
	}
}

// TestChangedBlockIsNoticed flips one bit of every block of a commit. The
// commit is then refused, unless the block is not needed.
func TestChangedBlockIsNoticed(t *testing.T) {
	t.Parallel()
	r := filled(t, 100)
	msg := r.commit(write{"app.bsky.feed.post/a", post(t, "a")}, write{"app.bsky.feed.post/b", post(t, "b")})
	whole := decoded(t, commitFrame(t, msg))
	refused := 0
	for i, b := range blocksOf(t, msg) {
		all := blocksOf(t, msg)
		data := slices.Clone(b.RawData())
		data[len(data)/2] ^= 1
		changed, err := blockformat.NewBlockWithCid(data, b.Cid())
		require.NoError(t, err)
		all[i] = changed
		other := *msg
		other.Blocks = carOf(t, all...)
		m := decoded(t, commitFrame(t, &other))
		if len(m.Malformed) > 0 {
			require.Equal(t, "a block does not match its CID", m.Malformed[0].Cause)
			refused++
		}
		for _, ev := range m.Events {
			require.Equal(t, whole.Events[ev.Part], ev)
		}
	}
	require.Greater(t, refused, 3)
}

func TestFieldsOfWrongType(t *testing.T) {
	t.Parallel()
	body := map[string]any{"did": testDID, "seq": 7, "time": "2026-08-01T12:00:00Z", "active": false, "status": "deleted"}
	good := func() []byte {
		return append(encoded(t, map[string]any{"op": 1, "t": "#account"}), encoded(t, body)...)
	}
	require.Empty(t, decoded(t, good()).Malformed)
	for field, right := range map[string]string{"did": "a string", "seq": "an integer", "time": "a string", "active": "true or false",
		"status": "a string"} {
		was := body[field]
		for _, by := range []any{[]any{1}, map[string]any{"a": 1}, []byte("x"), cid.Cid(blockOf(t, nil).Cid())} {
			body[field] = by
			m := decoded(t, good())
			require.Len(t, m.Malformed, 1, field)
			require.Equal(t, []string{"wrong type", "/" + field, right},
				[]string{m.Malformed[0].Cause, m.Malformed[0].Path, m.Malformed[0].Expected})
		}
		body[field] = was
	}
	refused := func(cause string, frame []byte) {
		t.Helper()
		m := decoded(t, frame)
		require.Len(t, m.Malformed, 1)
		require.Contains(t, m.Malformed[0].Error(), cause)
		require.Empty(t, m.Events)
	}
	refused("data after its message", append(good(), 0))
	refused("ends within", nil)
	refused("wrong type at /header", []byte("hello"))
	refused("kind of the frame is missing", encoded(t, map[string]any{"t": "#account"}))
	refused("indefinite", []byte("\xbf\x62op\x01\xff"))
	for _, huge := range []string{"\xbb\x80\x00\x00\x00\x00\x00\x00\x00", "\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
		"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "\xbb\x00\x00\x00\x00\x00\x00\x00\xff"} {
		unknown := append(encoded(t, map[string]any{"op": 1, "t": "#account"}), encoded(t, body)...)
		unknown[bytes.Index(unknown, []byte("\xa5\x63did"))]++
		refused("ends within a value at /x", append(unknown, "\x61x"+huge...))
	}
	twice := []byte("\xa3\x62op\x01\x61t\x68#account\x62op\x01")
	refused("a name occurs twice in one object at /header/op", append(twice, encoded(t, body)...))
	delete(body, "active")
	refused("the account's state is missing", good())
	body["active"], body["status"] = false, "a\x00"
	refused("not a status", good())
	body["status"] = strings.Repeat("s", 65)
	refused("not a status", good())
}

func TestEveryTruncationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	frame := commitFrame(t, r.commit(write{"app.bsky.feed.post/a", post(t, "a")}))
	placed := 0
	for i := range frame {
		m := decoded(t, frame[:i:i])
		require.Len(t, m.Malformed, 1)
		require.Empty(t, m.Events)
		if m.Seq != 0 {
			require.Equal(t, r.seq, m.Seq)
			placed++
		}
	}
	require.Greater(t, placed, len(frame)/2, "the place must be readable from the beginning of a frame")
	long := slices.Concat(frame, make([]byte, maxFrame))
	m := decoded(t, long)
	require.Equal(t, "the frame is too long", m.Malformed[0].Cause)
	require.Equal(t, r.seq, m.Seq)
}
