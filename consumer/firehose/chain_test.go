package firehose

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	lexutil "github.com/bluesky-social/indigo/lex/util"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// proved decodes a frame with only posts wanted, and returns the outcome of its proof.
func proved(t *testing.T, wire consumer.Wire, frame []byte) (consumer.ProofOutcome, *consumer.Message) {
	t.Helper()
	var m consumer.Message
	wire.Decode(frame, arrival(), &m)
	require.Empty(t, m.Malformed)
	require.NotNil(t, m.Proof)
	m.Proof.Start()
	return m.Proof.Outcome(), &m
}

// TestCommitsFormAChain shows that each commit names the tree of the one before, whatever it
// writes.
func TestCommitsFormAChain(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	r := filled(t, 300)
	_, v := newDirectory(r, VerifierConfig{Chained: true})
	wire := Wire(func(collection string) bool { return collection == "app.bsky.feed.post" }, v)
	before := []byte(r.data.Hash())[2:]
	unwanted, empty := 0, 0
	for range 200 {
		msg := r.commit(r.writes(random, random.IntN(4))...)
		got, m := proved(t, wire, commitFrame(t, msg))
		require.Empty(t, got.Cause)
		require.Equal(t, &consumer.ChainedCommit{Author: testDID, Revision: msg.Rev, Data: []byte(r.data.Hash())[2:], Prev: before}, got.Chained)
		before = got.Chained.Data
		if m.Events[0].Kind == consumer.KindChained {
			require.Len(t, m.Events, 1)
			require.Equal(t, consumer.Event{Kind: consumer.KindChained, Author: testDID, Revision: msg.Rev}, m.Events[0])
			unwanted++
		}
		if len(msg.Ops) == 0 {
			empty++
		}
	}
	require.Greater(t, unwanted, 20)
	require.Positive(t, empty)
}

// TestCommitThatHidesOperationsIsStoredAndBroken shows that the operations that such a commit lists
// are stored, because they are signed, and that its chain is broken. The hidden ones are read from
// the repository.
func TestCommitThatHidesOperationsIsStoredAndBroken(t *testing.T) {
	t.Parallel()
	r := filled(t, 300)
	_, v := newDirectory(r, VerifierConfig{Chained: true})
	wire := Wire(nil, v)
	writes := func() []write {
		return []write{{"app.bsky.feed.post/" + r.clock.Next().String(), post(t, "a")},
			{"app.bsky.feed.post/" + r.clock.Next().String(), post(t, "b")}}
	}
	hides := r.commit(writes()...)
	hides.Ops = hides.Ops[:1]
	nameless := r.commit(writes()...)
	nameless.PrevData = nil
	other := r.commit(writes()...)
	other.PrevData = (*lexutil.LexLink)(r.data)
	unordered := r.commit(writes()...)
	unordered.Ops[1] = unordered.Ops[0]
	for want, frame := range map[string][]byte{
		"its operations do not lead to it from the commit before":                              commitFrame(t, hides),
		"it does not name the tree of the commit before":                                       commitFrame(t, nameless),
		"its operations do not lead to it from the commit before ":                             commitFrame(t, other),
		"its operations cannot be applied backwards: two operations change one record at /ops": commitFrame(t, unordered),
	} {
		got, m := proved(t, wire, frame)
		require.Empty(t, got.Cause)
		require.NotEmpty(t, m.Events)
		require.Nil(t, got.Chained.Prev)
		require.Contains(t, want, fmt.Sprintf("%.75s", got.Chained.Broken))
	}
}

// TestChainNeedsTheSignature shows that a chain continues only with a valid signature and the
// signed commit, even if the commit has no wanted operation.
func TestChainNeedsTheSignature(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	_, v := newDirectory(r, VerifierConfig{Chained: true})
	wire := Wire(func(string) bool { return false }, v)
	like := func() write { return write{"app.bsky.feed.like/" + r.clock.Next().String(), post(t, "a")} }
	good := commitFrame(t, r.commit(like()))
	key := r.key
	r.key, _ = newKeys(t)
	forged := commitFrame(t, r.commit(like()))
	r.key = key
	got, _ := proved(t, wire, forged)
	require.Nil(t, got.Chained)
	require.True(t, got.Lost)
	msg := r.commit(like())
	msg.Blocks = msg.Blocks[:len(msg.Blocks)-1]
	got, _ = proved(t, wire, commitFrame(t, msg))
	require.Nil(t, got.Chained)
	require.True(t, got.Lost)
	require.Equal(t, "the CAR ends within a block", got.Cause[:27])
	got, _ = proved(t, wire, good)
	require.NotNil(t, got.Chained)
	require.Equal(t, consumer.ProofOutcome{}, outcomeOf(t, v.Patient(time.Minute), r.next()),
		"a retry has only a part of a commit and must not continue the chain")
}
