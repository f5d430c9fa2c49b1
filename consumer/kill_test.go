package consumer_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// refusing is a constraint that rejects one post in eight. Batches are split
// until each rejected post is alone, also within a frame.
const refusing = `ALTER TABLE posts ADD CONSTRAINT refusing CHECK (hashtext(rkey) % 8 <> 0)`

// TestKilledAtAnyCommitLosesNothing kills the consumer at each point of a commit, of
// its first one and of one while batches are being split. Nothing is lost, and no
// event has two dead letters. After the constraint is dropped, a retry stores all
// events.
//
// The test fails if the position moves before the records are stored, if the first
// part of a split frame moves it, if an excerpt has all of a frame's events, or if
// the rest of a frame counts as known as soon as one of its events is stored.
func TestKilledAtAnyCommitLosesNothing(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 250})
		_, err := s.pool.Exec(t.Context(), refusing)
		require.NoError(t, err)
		batches := func(cfg *consumer.Config) { cfg.BatchEvents, cfg.BatchInterval = 60, 50*time.Millisecond }
		for _, nth := range []int{1, 6} {
			for _, point := range []string{
				"commit: before it begins", "commit: position and records written", "commit: before its end", "commit: after its end",
			} {
				s.killedAt(nth, point, batches)
			}
		}
		stop := s.run(batches)
		s.reads()
		stop()
		there := s.posts()
		refused := s.refused()
		var accepted []post
		writes := map[post]int{}
		for _, e := range s.net.Happened() {
			if e.post && e.there {
				writes[post{e.did, e.rkey}]++
			}
		}
		for _, p := range there {
			if !refused[p.rkey] {
				accepted = append(accepted, p)
				continue
			}
			deadLetters := count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE did = $1 AND rkey = $2 AND stage = 'commit' AND wire = $3`,
				p.did, p.rkey, w.decodes.Name)
			require.Positive(t, deadLetters, p)
			require.LessOrEqual(t, deadLetters, writes[p], "each event has one dead letter, however often it arrives")
		}
		s.holds(accepted)
		require.Greater(t, len(there), len(accepted))
		require.Zero(t, count(t, s.pool, allGaps))

		rows, err := s.pool.Query(t.Context(), `SELECT raw FROM dead_letters WHERE raw_bytes > 0`)
		require.NoError(t, err)
		inputs, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
		require.NoError(t, err)
		for _, raw := range inputs {
			var m consumer.Message
			w.decodes.Decode(raw, time.Now(), &m)
			require.Len(t, m.Events, 1, "a dead letter holds one event: %s", raw)
		}

		_, err = s.pool.Exec(t.Context(), `ALTER TABLE posts DROP CONSTRAINT refusing`)
		require.NoError(t, err)
		retried(t, s.pool, func(r *consumer.Retry) { r.Wires = map[string]consumer.Wire{w.decodes.Name: w.decodes} })
		s.holds(there)
		require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open'`))
	})
}

// killedAt consumes until it reaches the nth of the named points. What it was doing
// ends there, as it does in a process that dies.
func (s *stream) killedAt(nth int, point string, change func(*consumer.Config)) {
	s.t.Helper()
	c := s.consumer(func(cfg *consumer.Config) {
		change(cfg)
		cfg.DrainWithin = time.Nanosecond
	})
	ctx := crashpoint.Kill(s.t.Context(), nth, point)
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually.True(s.t, func() bool { return ctx.Err() != nil }, 20*time.Millisecond, "the consumer does not reach %q", point)
	<-ended
}

// refused returns the rkeys that the constraint rejects.
func (s *stream) refused() map[string]bool {
	s.t.Helper()
	var rkeys []string
	for _, p := range s.posts() {
		rkeys = append(rkeys, p.rkey)
	}
	rows, err := s.pool.Query(s.t.Context(), `SELECT rkey FROM unnest($1::text[]) AS rkey WHERE hashtext(rkey) % 8 = 0`, rkeys)
	require.NoError(s.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	refused := map[string]bool{}
	for _, rkey := range all {
		refused[rkey] = true
	}
	return refused
}

// newToy returns a stream of the toy wire, for behaviour that only its server has.
func newToy(t *testing.T) (*stream, *toyNet) {
	t.Helper()
	s := newStreamOf(t, wireOf(t, "toy"), history{events: 200})
	return s, s.net.(*toyNet)
}

// TestTakenDownAccountRemovesAnchor checks that if an anchor's account was
// taken down, the anchor before it proves the resume. Without another anchor
// the oldest events are read.
func TestTakenDownAccountRemovesAnchor(t *testing.T) {
	t.Parallel()
	for _, down := range []int{1, 2} {
		s, n := newToy(t)
		for _, did := range []string{"did:plc:first", "did:plc:second"} {
			n.Inject(toyFrame{DID: did, Rev: "3mptbyqhi7s2f"})
		}
		stop := s.run(nil)
		s.stores()
		stop()
		require.Equal(t, 1, count(t, s.pool, `
			SELECT count(*) FROM streams WHERE anchor ->> 'did' = 'did:plc:second' AND anchor_seqs[1] = cursor AND anchor_seqs[2] = cursor - 1`))
		n.Omit("did:plc:second")
		if down == 2 {
			n.Omit("did:plc:first")
		}
		n.Play(50)
		stop = s.run(nil)
		s.stores()
		stop()
		require.Equal(t, down == 2, s.log.has("resume_mismatch"))
		require.Zero(t, count(t, s.pool, allGaps))
	}
}

// TestKeepAliveMovesPosition checks that a keep-alive moves the position and keeps
// the anchor.
func TestKeepAliveMovesPosition(t *testing.T) {
	t.Parallel()
	s, n := newToy(t)
	n.Inject(toyFrame{DID: "did:plc:last", Rev: "3mptbyqhi7s2f"})
	for _, keepAlives := range []int{2, 4} {
		n.Inject(toyFrame{})
		n.Inject(toyFrame{})
		stop := s.run(nil)
		s.stores()
		stop()
		require.Equal(t, 1, count(t, s.pool, `
			SELECT count(*) FROM streams WHERE anchor ->> 'did' = 'did:plc:last' AND (anchor ->> 'seq')::bigint = cursor - $1`, keepAlives))
		require.False(t, s.log.has("resume_mismatch"))
	}
}

// TestMalformedOperationIsOneDeadLetter checks that the other operations of the
// frame are stored, and that a retry decodes the malformed one alone.
func TestMalformedOperationIsOneDeadLetter(t *testing.T) {
	t.Parallel()
	s, n := newToy(t)
	op := func(rkey string) json.RawMessage {
		return json.RawMessage(`{"action":"create","path":"app.bsky.feed.post/` + rkey + `","record":{"text":"x"}}`)
	}
	n.Inject(toyFrame{
		DID: "did:plc:many", Rev: "3mptbyqhi7s2f", Ops: []json.RawMessage{op("a"), []byte(`7`), op("b"), []byte(`{"path":8}`), op("c")},
	})
	n.Inject(toyFrame{Ops: []json.RawMessage{[]byte(`9`)}}) // this frame alone moves the position
	stop := s.run(nil)
	s.reads()
	stop()
	require.Equal(t, 3, count(t, s.pool, `SELECT count(*) FROM posts WHERE did = 'did:plc:many'`))
	require.Equal(t, 3,
		count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE stage = 'decode' AND wire = 'toy' AND length(convert_from(raw, 'UTF8')) < 120`))
	retried(t, s.pool, func(r *consumer.Retry) { r.Wires = map[string]consumer.Wire{"toy": toyWire()} })
	require.Equal(t, 3, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND count = 2`))
}

// TestRetryDecodesWholeFrame checks that a fixed decoder stores each event of a
// frame, and that events still unreadable become dead letters of their own.
func TestRetryDecodesWholeFrame(t *testing.T) {
	t.Parallel()
	s, _ := newToy(t)
	frame := `{"at":1783175888000000,"did":"did:plc:many","rev":"3mptbyqhi7s2f","ops":[` +
		`{"action":"create","path":"app.bsky.feed.post/a","record":{"text":"x"}},7,{"action":"create","path":"app.bsky.feed.post/b",` +
		`"record":{"text":"refused"}},` +
		`{"action":"create","path":"app.bsky.feed.post/c","record":{"text":"x"}}]}`
	deadLetter := schema.DeadLetter{Stage: schema.StageDecode, Wire: "toy", Cause: "not understood", Raw: []byte(frame)}
	require.NoError(t, deadLetter.Store(t.Context(), s.pool, ""))
	_, err := s.pool.Exec(t.Context(), strict)
	require.NoError(t, err)
	retry := func() {
		retried(t, s.pool, func(r *consumer.Retry) { r.Wires = map[string]consumer.Wire{"toy": toyWire()} })
	}
	retry()
	require.Equal(t, []string{"a 3mptbyqhi7s2f x", "c 3mptbyqhi7s2f x"}, stored(t, s.pool))
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND cause = 'not understood'`))
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND stage = 'decode'`))
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'open' AND stage = 'commit' AND rkey = 'b'`))
	_, err = s.pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	retry()
	require.Len(t, stored(t, s.pool), 3)
	require.Equal(t, 3, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
}

// TestDeadLetterOfUnknownWireStaysOpen checks that the dead letter stays open
// with its cause: another version may know the wire.
func TestDeadLetterOfUnknownWireStaysOpen(t *testing.T) {
	t.Parallel()
	s, _ := newToy(t)
	for _, wire := range []string{"tomorrow-v9", "toy"} {
		deadLetter := schema.DeadLetter{Stage: schema.StageDecode, Wire: wire, Cause: "not understood", Raw: []byte(`{}`)}
		require.NoError(t, deadLetter.Store(t.Context(), s.pool, ""))
	}
	require.Equal(t, 2, count(t, s.pool, `SELECT count(*) FROM dead_letters`), "the same bytes on another wire are a different input")
	retried(t, s.pool, func(r *consumer.Retry) { r.Wires = map[string]consumer.Wire{"toy": toyWire()} })
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried' AND wire = 'toy'`))
	require.Equal(t, 1, count(t, s.pool, `
		SELECT count(*) FROM dead_letters WHERE state = 'open'
		    AND last_cause LIKE 'this version of Weir does not know the wire%received tomorrow-v9'`))
}

// TestMalformedFrameMovesPosition checks that a malformed frame that has a
// place moves the position, so that it arrives only once.
func TestMalformedFrameMovesPosition(t *testing.T) {
	t.Parallel()
	s := &stream{t: t, wire: wireOf(t, "jetstream v2"), pool: schematest.New(t)}
	now := time.Now()
	frames := []string{postOf("a", now, now), strings.Replace(postOf("b", now, now), `"rkey":"`, `"rkey":"a/`, 1), postOf("c", now, now)}
	var last atomic.Int64
	url := server(t, func(cursor int64, send func(string)) bool {
		for at := max(cursor, 1); at <= last.Load(); at++ {
			send(strings.Replace(frames[at-1], `"kind"`, `"cursor":`+strconv.FormatInt(at, 10)+`,"kind"`, 1))
		}
		return true
	})
	for _, at := range []int64{2, 3} {
		last.Store(at)
		stop := s.run(nil, url)
		s.until(1, `SELECT count(*) FROM streams WHERE cursor = $1`, at)
		stop()
	}
	require.Equal(t, 1, count(t, s.pool, `SELECT count FROM dead_letters`),
		"a repeated malformed frame must be counted in the same dead letter")
	require.False(t, s.log.has("resume_mismatch"))
}
