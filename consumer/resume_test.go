package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// stored is a position as a commit leaves it after ev.
func stored(ev Event) schema.Position {
	p := schema.Position{Host: "here", FilterHash: "f"}
	move(&p, &ev)
	return p
}

func at(seq int64, t time.Time, rkey string) Event {
	ev := write(rkey, "3mptbyqhi7s2f")
	ev.Seq, ev.TimeUS = seq, t.UnixMicro()
	return ev
}

func TestCursorHoldsForItsHostAndFilterOnly(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	p := stored(at(7, now, "a"))
	require.True(t, exactFor(p, "here", "f"))
	require.False(t, exactFor(p, "there", "f"))
	require.False(t, exactFor(p, "here", "other"))
	require.False(t, exactFor(schema.Position{Host: "here", FilterHash: "f"}, "here", "f"))

	exact := resume{from: p, exact: true}
	require.Equal(t, Cursor{Kind: CursorSeq, Value: 7}, exact.cursor(Cursor{}, time.Minute))
	elsewhere := resume{from: p}
	require.Equal(t, Cursor{Kind: CursorTime, Value: now.Add(-time.Minute).UnixMicro()}, elsewhere.cursor(Cursor{}, time.Minute))
	first := resume{}
	require.Equal(t, Cursor{Kind: CursorSeq}, first.cursor(Cursor{Kind: CursorSeq}, time.Minute))
}

func TestResumeIsVerifiedByTheAnchor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	anchor := at(7, now, "a")
	renumbered := at(7, now, "b")
	check := func(exact bool, from schema.Position, ev Event) verdict {
		r := resume{from: from, exact: exact, threshold: 5 * time.Minute}
		return r.check(&ev)
	}
	require.Equal(t, known, check(true, stored(anchor), anchor), "delivered again: nothing was missed, and it is committed")
	require.Equal(t, mismatch, check(true, stored(anchor), renumbered), "the number now names another event")
	require.Equal(t, mismatch, check(true, stored(anchor), at(8, now.Add(time.Second), "c")), "the live tip instead of the cursor")

	byTime := anchor
	byTime.Seq = 0
	early := at(3, now.Add(-time.Minute), "z")
	require.Equal(t, known, check(true, stored(byTime), byTime))
	require.Equal(t, proceed, check(true, stored(byTime), early), "a server that starts earlier than asked covers it")
	require.Equal(t, mismatch, check(true, stored(byTime), at(0, now.Add(time.Second), "c")))
}

func TestGapIsWhatAResumeByTimeDidNotCover(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	from := stored(at(7, now, "a"))
	first := func(from schema.Position, ev Event) verdict {
		r := resume{from: from, threshold: 5 * time.Minute}
		return r.check(&ev)
	}
	require.Equal(t, proceed, first(from, at(1, now.Add(-time.Minute), "z")), "starts before the position")
	require.Equal(t, proceed, first(from, at(1, now.Add(4*time.Minute), "z")), "a short hole is trusted")
	require.Equal(t, missed, first(from, at(1, now.Add(6*time.Minute), "z")))

	again := at(900, now.Add(time.Hour), "a") // another host's number and clock
	require.Equal(t, proceed, first(from, again), "the anchor itself, whatever the clock says")

	quiet := from
	quiet.CaughtUp = now.Add(50 * time.Minute)
	require.Equal(t, proceed, first(quiet, at(1, now.Add(52*time.Minute), "z")), "quietness is no gap")
	require.Equal(t, missed, first(quiet, at(1, now.Add(time.Hour), "z")))
	live := resume{from: from, threshold: 5 * time.Minute, connected: now.Add(2 * time.Minute)}
	late := at(1, now.Add(time.Hour), "z")
	require.Equal(t, proceed, live.check(&late), "what happened after the connection was made has been delivered")
	down := resume{from: from, threshold: 5 * time.Minute, connected: now.Add(20 * time.Minute)}
	require.Equal(t, missed, down.check(&late))
	require.Equal(t, down.connected, down.gap(&late).To)

	r := resume{from: quiet}
	ev := at(1, now.Add(time.Hour), "z")
	require.Equal(t, quiet.CaughtUp, r.gap(&ev).From)
	require.True(t, r.gap(&ev).To.Equal(now.Add(time.Hour)))
}

// TestAnchorIsStorable: the last event may be one that is not stored, and then
// nobody has checked its strings.
func TestAnchorIsStorable(t *testing.T) {
	t.Parallel()
	ev := Event{Kind: KindCommit, DID: "did\x00", Rkey: "r\xff", Collection: string(make([]byte, 4096))}
	a := anchorOf(&ev)
	require.Equal(t, "did\uFFFD", a.DID)
	require.Equal(t, "r\uFFFD", a.Rkey)
	require.NotContains(t, a.Collection, "\x00")
	r := resume{from: schema.Position{CursorKind: "seq", Anchor: a}, exact: true}
	require.Equal(t, known, r.check(&ev))
}
