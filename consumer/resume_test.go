package consumer

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// stored returns the position that a commit leaves after a frame.
func stored(at FramePosition) schema.Position {
	p := schema.Position{Host: "here", FilterHash: "f", Anchor: at.anchor()}
	advance(&p, &at)
	return p
}

func at(seq int64, t time.Time, key string) FramePosition {
	return FramePosition{Seq: seq, TimeUS: t.UnixMicro(), Identity: Identity{Kind: "commit", Operation: "create", Author: "did:plc:a",
		Collection: "app.bsky.feed.post", Key: key, Revision: "3mptbyqhi7s2f"}}
}

// byTime are the capabilities of a source with time cursors.
var byTime = Capabilities{TimeCursor: true}

func TestCursorIsValidForOneHostAndFilter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	p := stored(at(7, now, "a"))
	require.True(t, exactFor(p, "here", "f"))
	require.False(t, exactFor(p, "there", "f"))
	require.False(t, exactFor(p, "here", "other"))
	require.False(t, exactFor(schema.Position{Host: "here", FilterHash: "f"}, "here", "f"))

	exact := resume{can: byTime, from: p, exact: true}
	require.Equal(t, Cursor{Kind: CursorSeq, Value: 7}, exact.cursor(Cursor{}, time.Minute))
	otherHost := resume{can: byTime, from: p}
	require.Equal(t, Cursor{Kind: CursorTime, Value: now.Add(-time.Minute).UnixMicro()}, otherHost.cursor(Cursor{}, time.Minute))
	first := resume{}
	require.Equal(t, Cursor{Kind: CursorSeq}, first.cursor(Cursor{Kind: CursorSeq}, time.Minute))
}

func TestResumeIsVerifiedByTheAnchor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	anchor := at(7, now, "a")
	renumbered := at(7, now, "b")
	check := func(from schema.Position, ev FramePosition) resumeOutcome {
		r := resume{can: byTime, from: from, exact: true, threshold: 5 * time.Minute}
		return r.check(&ev)
	}
	require.Equal(t, alreadyCommitted, check(stored(anchor), anchor),
		"the anchor was delivered again: nothing was missed, and it is already committed")
	require.Equal(t, mismatch, check(stored(anchor), renumbered), "the number now names another event")
	require.Equal(t, mismatch, check(stored(anchor), at(8, now.Add(time.Second), "c")),
		"the server began at the live tip instead of the cursor")

	unnumbered := anchor
	unnumbered.Seq = 0
	early := at(3, now.Add(-time.Minute), "z")
	require.Equal(t, alreadyCommitted, check(stored(unnumbered), unnumbered))
	require.Equal(t, proceed, check(stored(unnumbered), early), "a server that starts before the cursor covers it")
	require.Equal(t, mismatch, check(stored(unnumbered), at(0, now.Add(time.Second), "c")))
}

// TestResumeRequestsAnchorsOfSource checks that a resume requests as many anchors
// as the source needs, and the frame before them if a cursor is exclusive.
func TestResumeRequestsAnchorsOfSource(t *testing.T) {
	t.Parallel()
	p := stored(at(70, noon, "a"))
	p.Cursor = 72 // two keep-alives followed the anchor
	for i, seq := range []int64{70, 64, 0, 51} {
		p.Anchors[i] = schema.AnchorHash{Hash: int64(i + 1), Seq: seq}
	}
	for _, c := range []struct {
		can  Capabilities
		want int64
	}{{Capabilities{}, 70}, {Capabilities{Anchors: 1}, 70}, {Capabilities{Anchors: 2}, 64}, {Capabilities{Anchors: 3}, 64},
		{Capabilities{Anchors: 4}, 51},
		{Capabilities{Anchors: 99}, 51}, {Capabilities{Exclusive: true}, 69}, {Capabilities{Exclusive: true, Anchors: 2}, 63}} {
		r := resume{from: p, exact: true, can: c.can}
		require.Equal(t, Cursor{Kind: CursorSeq, Value: c.want}, r.cursor(Cursor{}, time.Minute), c.can)
	}
	anew := resume{from: p}
	require.Equal(t, Cursor{Kind: CursorSeq}, anew.cursor(Cursor{Kind: CursorSeq, Value: 7}, time.Minute),
		"the source has no time cursors: request the oldest event")
}

// TestOneOfSeveralAnchorsProvesTheResume checks that an anchor proves the resume only with its own
// number. Frames between it and the position are skipped; frames before it are processed again.
func TestOneOfSeveralAnchorsProvesTheResume(t *testing.T) {
	t.Parallel()
	frame := func(seq int64, key string) FramePosition { return at(seq, noon, key) }
	p := stored(frame(70, "a"))
	p.Cursor = 72
	for i, of := range []FramePosition{frame(70, "a"), frame(64, "b"), frame(51, "c")} {
		p.Anchors[i] = schema.AnchorHash{Hash: of.Identity.hash(), Seq: of.Seq}
	}
	silent := FramePosition{Seq: 71, TimeUS: 1}
	for name, c := range map[string]struct {
		frames []FramePosition
		want   []resumeOutcome
	}{
		"all of them": {
			[]FramePosition{frame(64, "b"), frame(66, "x"), frame(70, "a"), silent, frame(72, "y"), frame(73, "z")},
			[]resumeOutcome{alreadyCommitted, alreadyCommitted, alreadyCommitted, alreadyCommitted, alreadyCommitted, proceed},
		},
		"the second is gone": {[]FramePosition{frame(66, "x"), frame(70, "a"), silent, frame(73, "z")}, []resumeOutcome{
			reprocess, alreadyCommitted, alreadyCommitted, proceed,
		}},
		"the last is gone": {
			[]FramePosition{frame(64, "b"), frame(66, "x"), frame(73, "z")}, []resumeOutcome{alreadyCommitted, alreadyCommitted, proceed},
		},
		"both are gone": {[]FramePosition{frame(66, "x"), frame(73, "z")}, []resumeOutcome{reprocess, mismatch}},
		"an earlier start": {
			[]FramePosition{frame(63, "w"), frame(64, "b"), frame(73, "z")}, []resumeOutcome{reprocess, alreadyCommitted, proceed},
		},
		"far too early a start":  {[]FramePosition{frame(50, "w")}, []resumeOutcome{mismatch}},
		"the live tip":           {[]FramePosition{frame(90, "z")}, []resumeOutcome{mismatch}},
		"other numbers":          {[]FramePosition{frame(64, "b2")}, []resumeOutcome{mismatch}},
		"other numbers later on": {[]FramePosition{frame(64, "b"), frame(70, "b2")}, []resumeOutcome{alreadyCommitted, mismatch}},
		"no name at its number":  {[]FramePosition{{Seq: 70, TimeUS: 1}}, []resumeOutcome{mismatch}},
		"the anchor elsewhere":   {[]FramePosition{frame(65, "a"), frame(73, "z")}, []resumeOutcome{reprocess, mismatch}},
	} {
		r := resume{from: p, exact: true, can: Capabilities{Exclusive: true, Anchors: 2}}
		var got []resumeOutcome
		for _, f := range c.frames {
			got = append(got, r.check(&f))
		}
		require.Equal(t, c.want, got, name)
	}
}

// TestOtherHostDropsSequenceNumbers checks that on another host the anchors' names remain valid and
// their numbers do not.
func TestOtherHostDropsSequenceNumbers(t *testing.T) {
	t.Parallel()
	p := stored(at(7, noon, "a"))
	p.Anchors[0] = schema.AnchorHash{Hash: 1, Seq: 7}
	same, other := p, p
	trailed := newRecentAnchors(&p)
	trailed.numbers = true
	trailed.mark(&same)
	require.Equal(t, p.Anchors, same.Anchors)
	require.Equal(t, p.Anchor, same.Anchor)
	trailed = newRecentAnchors(&p)
	trailed.numbers = true
	trailed.renumbered()
	trailed.mark(&other)
	require.Equal(t, schema.Anchors{{Hash: 1}}, other.Anchors)
	require.Nil(t, other.Anchor)
}

// noon is the time of the position in these tests.
var noon = time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)

// position returns a position at noon, after one event of each account.
func position(accounts ...string) schema.Position {
	p := stored(at(7, noon, "a"))
	tr := newRecentAnchors(&schema.Position{})
	for _, did := range accounts {
		ev := at(7, noon, "a")
		ev.Identity.Author = did
		tr.add(&ev)
	}
	tr.mark(&p)
	p.WrittenAt = noon
	return p
}

// delivered returns the outcome of a resume by time. The server delivers these events, and then
// nothing for as long as an anchor may take to arrive.
func delivered(r *resume, events ...FramePosition) resumeOutcome {
	for i := range events {
		if saw := r.check(&events[i]); r.settled {
			return saw
		}
	}
	return r.settle()
}

func TestGapOfResumeByTime(t *testing.T) {
	t.Parallel()
	after := func(d time.Duration) FramePosition { return at(1, noon.Add(d), "z") }
	ask := func(change func(*resume)) *resume {
		r := &resume{can: byTime, from: position("did:plc:a", "did:plc:b"), expectsAnchor: true, threshold: 5 * time.Minute}
		if change != nil {
			change(r)
		}
		return r
	}
	require.Equal(t, proceed, delivered(ask(nil), after(-time.Minute)), "the events start before the position, so the anchor is not needed")
	require.Equal(t, proceed, delivered(ask(nil), after(0)), "the same time as the position's")
	require.Equal(t, missed, delivered(ask(nil), after(time.Second)), "no hole is too short")
	require.Equal(t, missed, delivered(ask(nil), after(6*time.Minute)))

	reprocess := at(900, noon.Add(time.Hour), "a") // another number and time
	require.Equal(t, proceed, delivered(ask(nil), after(time.Second), reprocess), "the anchor arrives after events with new dates")
	another := reprocess
	another.Identity.Author = "did:plc:b"
	require.Equal(t, proceed, delivered(ask(nil), after(time.Second), another), "another account's anchor arrives")

	quiet := func(r *resume) { r.from.CaughtUp, r.from.Quiet = noon.Add(50*time.Minute), true }
	require.Equal(t, proceed, delivered(ask(quiet), after(52*time.Minute)), "a quiet period is no gap")
	require.Equal(t, missed, delivered(ask(quiet), after(time.Hour)))
	require.Equal(t, proceed, delivered(ask(func(r *resume) { quiet(r); r.connected = noon.Add(52 * time.Minute) })),
		"no event arrived at all")
	require.Equal(t, missed, delivered(ask(func(r *resume) { r.connected = noon.Add(2 * time.Second) })), "the anchor should have arrived")

	moved := func(r *resume) { r.expectsAnchor = false }
	require.Equal(t, proceed, delivered(ask(moved), after(10*time.Second)), "nothing is known about other accounts")
	require.Equal(t, missed, delivered(ask(moved), after(time.Minute)))

	live := ask(func(r *resume) { moved(r); r.connected = noon.Add(2 * time.Second) })
	require.Equal(t, proceed, delivered(live, after(time.Hour)), "events after the start of the connection have been delivered")
	down := ask(func(r *resume) { r.connected = noon.Add(20 * time.Minute); r.requested = noon.Add(-5 * time.Minute) })
	require.Equal(t, missed, delivered(down, after(time.Hour)))
	gap := down.gap()
	require.Equal(t, down.connected, gap.To)
	require.Equal(t, noon, gap.From.UTC())
	require.Equal(t, "requested events since 2026-07-04T11:55:00Z, the first to arrive is of 2026-07-04T13:00:00Z", gap.Reason)
}

// TestResumeStaysOpenUntilAnchorIsPassed checks that a resume stays open for a hundred events or
// ten seconds.
func TestResumeStaysOpenUntilAnchorIsPassed(t *testing.T) {
	t.Parallel()
	r := &resume{can: byTime, from: position(), expectsAnchor: true, threshold: 5 * time.Minute}
	ev := at(1, noon.Add(time.Second), "z")
	for range maxFramesToAnchor - 1 {
		require.Equal(t, proceed, r.check(&ev))
		require.False(t, r.settled)
	}
	require.Equal(t, missed, r.check(&ev))
	require.Equal(t, noon.Add(time.Second), r.gap().To.UTC(), "the gap ends at the first event")
	require.Equal(t, proceed, r.check(&ev), "the gap must be recorded only once")
}

// TestLaggingHostIsDetectedByRevs checks that the older of date and rev counts: a host that lags
// dates late events by its own clock.
func TestLaggingHostIsDetectedByRevs(t *testing.T) {
	t.Parallel()
	from := position()
	cursor := func(lag time.Duration) time.Duration {
		from.WrittenAt = from.LastEvent.Add(-lag)
		r := resume{can: byTime, from: from}
		return noon.Sub(time.UnixMicro(r.cursor(Cursor{}, 5*time.Minute).Value))
	}
	require.Equal(t, 5*time.Minute, cursor(0))
	require.Equal(t, 25*time.Minute, cursor(20*time.Minute))
	require.Equal(t, 24*time.Hour, cursor(30*time.Hour))
	require.Equal(t, 5*time.Minute, cursor(-time.Hour), "the rev is in the future")

	written := func(dated, rev time.Duration) FramePosition {
		ev := at(1, noon.Add(dated), "z")
		ev.Identity.Revision = tid(noon.Add(rev))
		return ev
	}
	otherHost := func(events ...FramePosition) *resume {
		from.WrittenAt = noon.Add(-20 * time.Minute)
		r := &resume{can: byTime, from: from, expectsAnchor: true, otherHost: true, threshold: 5 * time.Minute}
		delivered(r, events...)
		return r
	}
	hole := func(r *resume) time.Duration {
		from, to := r.interval()
		return to.Sub(from)
	}
	before, late := written(-25*time.Minute, -25*time.Minute), written(-10*time.Minute, -10*time.Minute)
	require.LessOrEqual(t, hole(otherHost(before, late, late)), 20*time.Minute)
	require.Zero(t, hole(otherHost(before, before, late)), "the host is on time and starts before the position")
	clamped := otherHost(late, late, late)
	require.Equal(t, 10*time.Minute, hole(clamped), "no later than the position by the dates of the host that lagged")
	require.Contains(t, clamped.gap().Reason, "written at 2026-07-04T11:50:00Z")
	liar := written(-10*time.Minute, -time.Hour)
	require.Equal(t, 10*time.Minute, hole(otherHost(liar, late, late)), "the first event alone proves nothing")
}

// TestInformalDatesNeedRevs covers first events that are dated before the position and were written
// after it. They hide a hole only if the source's dates count.
func TestInformalDatesNeedRevs(t *testing.T) {
	t.Parallel()
	wrongly := func(key string) FramePosition {
		ev := at(1, noon.Add(-time.Minute), key)
		ev.Identity.Revision = tid(noon.Add(10 * time.Minute))
		return ev
	}
	for _, informal := range []bool{true, false} {
		r := &resume{can: Capabilities{TimeCursor: true, Informal: informal}, from: position(), expectsAnchor: true, threshold: 5 * time.Minute}
		delivered(r, wrongly("x"), wrongly("y"), wrongly("z"))
		require.Equal(t, map[bool]resumeOutcome{true: missed, false: proceed}[informal], r.settle())
	}
}

// tid returns a rev with this time.
func tid(at time.Time) string { return syntax.NewTID(at.UnixMicro(), 0).String() }

func TestAnchorsAreOfDifferentAccounts(t *testing.T) {
	t.Parallel()
	var p schema.Position
	tr := newRecentAnchors(&p)
	say := func(did, rkey string, late time.Duration) {
		ev := at(1, noon, rkey)
		ev.Identity.Author, ev.Identity.Revision = did, tid(noon.Add(-late).Add(time.Duration(tr.revs)))
		tr.add(&ev)
	}
	anchor := func(did string, i int) {
		t.Helper()
		require.True(t, sameAccount((&Identity{Author: did}).hash(), p.Anchors[i].Hash))
	}
	p.LastEvent = noon
	for range 200 {
		say("did:plc:talks", "x", time.Minute)
	}
	tr.mark(&p)
	anchor("did:plc:talks", 0)
	require.Zero(t, p.Anchors[1], "an account has only one anchor")
	for i := range 8 {
		say(fmt.Sprintf("did:plc:%d", i), "y", time.Minute)
		tr.mark(&p)
	}
	for i := range 8 {
		anchor(fmt.Sprintf("did:plc:%d", 7-i), i)
	}
	require.WithinDuration(t, noon.Add(-time.Minute), p.WrittenAt, time.Millisecond)
	for range 40 { // fewer than half of the dates are wrong
		say("did:plc:liar", "z", -100*time.Hour)
	}
	tr.mark(&p)
	require.WithinDuration(t, noon.Add(-time.Minute), p.WrittenAt, time.Millisecond)

	resumed := newRecentAnchors(&p)
	next := p
	resumed.mark(&next)
	require.Equal(t, p, next, "an empty batch must keep the position")
}

// TestPositionExpiresByBothClocks checks that a position is dropped only if it is
// too old by both clocks.
func TestPositionExpiresByBothClocks(t *testing.T) {
	t.Parallel()
	now := time.Now()
	old := schema.Position{CursorKind: "seq", LastEvent: now.Add(-169 * time.Hour)}
	var moved time.Time
	expired := func(from schema.Position, database time.Time) bool {
		c := &Consumer{cfg: Config{Resuming: Resuming{ResumeWithin: 168 * time.Hour}}, log: slog.New(slog.DiscardHandler)}
		c.clock.set(database)
		return c.expired(from, moved)
	}
	require.True(t, expired(old, now))
	require.False(t, expired(old, now.Add(-2*time.Hour)), "the position is not expired by the database's clock")
	young := schema.Position{CursorKind: "seq", LastEvent: now.Add(-167 * time.Hour)}
	require.False(t, expired(young, now))
	require.False(t, expired(young, now.Add(2*time.Hour)))
	old.CaughtUp = now.Add(-time.Hour)
	require.False(t, expired(old, now), "a quiet stream has missed nothing")
	require.False(t, expired(schema.Position{}, now))
	old.CaughtUp, moved = time.Time{}, now
	require.False(t, expired(old, now), "a position does not expire while the server's past is being read")
	moved = now.Add(-170 * time.Hour)
	require.True(t, expired(old, now), "the position expires if the network was unreachable")
}

func TestSilenceThreshold(t *testing.T) {
	t.Parallel()
	now := time.Now()
	cfg := Config{QuietAfter: 5 * time.Second, SilentFor: 15 * time.Second, can: Capabilities{Filters: true}}
	s := &session{Consumer: &Consumer{cfg: cfg}, connected: now, past: now.Add(-6 * time.Hour)}
	require.Equal(t, 12*time.Minute, s.silenceThreshold())
	advanceTo := func(age time.Duration) { s.reached.Store(now.Add(-age).UnixMicro()) }
	advanceTo(5 * time.Hour)
	require.InDelta(t, 10*time.Minute, s.silenceThreshold(), float64(time.Millisecond), "the rest of the threshold")
	advanceTo(time.Minute)
	require.Equal(t, 15*time.Second, s.silenceThreshold())
	s.recent.Store(true)
	require.Equal(t, 5*time.Second, s.silenceThreshold())
	tip := &session{Consumer: s.Consumer, connected: now}
	require.Equal(t, 5*time.Second, tip.silenceThreshold(), "a stream that starts at the tip has no past to read")
	cfg.can, cfg.BeginWithin = Capabilities{}, time.Minute
	relay := &session{Consumer: &Consumer{cfg: cfg}, connected: now, past: now.Add(-6 * time.Hour)}
	require.Equal(t, time.Minute, relay.silenceThreshold(), "the server has not begun to send")
	relay.begun.Store(true)
	require.Equal(t, 15*time.Second, relay.silenceThreshold())
}

// TestRevTime compares revTime with the network's own library.
func TestRevTime(t *testing.T) {
	t.Parallel()
	rev := tid(noon)
	got, ok := RevTime(rev)
	require.True(t, ok)
	require.True(t, got.Equal(syntax.TID(rev).Time()))
	for _, bad := range []string{"", "3mptbyqhi7s2", "zmptbyqhi7s2f", "3mptbyqhi7s2!", "3mptbyqhi7s20"} {
		_, ok := RevTime(bad)
		require.False(t, ok, bad)
	}
}

// TestAnchorIsStorable checks that an anchor can be stored even if its event is not
// stored and its strings are unchecked.
func TestAnchorIsStorable(t *testing.T) {
	t.Parallel()
	ev := FramePosition{Seq: 1, Identity: Identity{Kind: "commit", Author: "did\x00", Key: "r\xff", Collection: string(make([]byte, 4096))}}
	a := ev.anchor()
	require.Equal(t, "did\uFFFD", a.DID)
	require.Equal(t, "r\uFFFD", a.Rkey)
	require.NotContains(t, a.Collection, "\x00")
	r := resume{can: byTime, from: schema.Position{CursorKind: "seq", Anchor: a}, exact: true}
	require.Equal(t, alreadyCommitted, r.check(&ev))
}

// TestLaterEventOfSameNameIsNoAnchor covers identity and account events. They are named only by
// their account, which may have many of them.
func TestLaterEventOfSameNameIsNoAnchor(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"identity", "account", "other"} {
		databaseTime := func(eventTime, dated time.Duration) FramePosition {
			return FramePosition{Identity: Identity{Kind: kind, Author: "did:plc:a"}, At: noon.Add(eventTime), TimeUS: noon.Add(dated).UnixMicro()}
		}
		last := databaseTime(-time.Second, 0)
		from := stored(last)
		tr := newRecentAnchors(&schema.Position{})
		tr.add(&last)
		tr.mark(&from)
		ask := func(otherHost bool) *resume {
			return &resume{can: byTime, from: from, expectsAnchor: true, threshold: 5 * time.Minute, otherHost: otherHost}
		}
		first := at(1, noon.Add(time.Hour), "z")
		require.Equal(t, missed, delivered(ask(false), first, databaseTime(2*time.Hour, 2*time.Hour)),
			"another event of the same name, from after the hole")
		require.Equal(t, missed, delivered(ask(true), first, databaseTime(2*time.Hour, 2*time.Hour)))
		require.Equal(t, proceed, delivered(ask(true), first, databaseTime(-time.Second, 2*time.Hour)), "the same event, dated by a lagging host")
		unsaid := databaseTime(0, 2*time.Hour)
		unsaid.At = time.Time{}
		require.Equal(t, missed, delivered(ask(false), first, unsaid))
	}
}

// idle is a connection that sends nothing and replies to pings.
type idle struct{ Conn }

func (idle) Proven() time.Time { return time.Now() }

// TestCaughtUpWaitsForGapCommit checks that a stream is not caught up before its
// gap is committed: a process that died in between would hide the gap.
func TestCaughtUpWaitsForGapCommit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	from := stored(at(7, now.Add(-time.Hour), "a"))
	cfg := Config{QuietAfter: 5 * time.Second, SilentFor: 15 * time.Second}
	s := &session{Consumer: &Consumer{cfg: cfg, log: slog.New(slog.DiscardHandler), metrics: newMetrics(nil)}, conn: idle{},
		buf: newBuffer(1 << 20), connected: now.Add(-time.Minute),
		resume: &resume{can: byTime, from: from, expectsAnchor: true, threshold: 5 * time.Minute, connected: now.Add(-time.Minute)}}
	s.lastFrame.Set(now.Add(-time.Minute))
	require.NoError(t, s.await())
	require.NotNil(t, s.open.gap)
	require.True(t, s.settled.Load())
	require.Zero(t, s.caughtUp(), "the gap is not in the database yet")
	s.committed()
	require.NotZero(t, s.caughtUp())
}
