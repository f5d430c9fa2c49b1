package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// backfilledGap opens a gap that began an hour ago, and adds its backfill.
func backfilledGap(t *testing.T) (b schema.NetworkBackfill, move func(schema.NetworkProgress), fail func() time.Duration,
	sealed func(host string, at time.Time) bool, execute func(sql string, args ...any),
) {
	t.Helper()
	pool := schematest.New(t)
	execute = func(sql string, args ...any) { t.Helper(); do(t, pool, sql, args...) }
	execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '1 h', now() - interval '30 min', '', now())`)
	execute(`
		INSERT INTO network_backfills (gap_id, from_at, to_at)
		SELECT id, from_at - interval '1 min', to_at + interval '1 min' FROM gaps`)
	b, err := schema.FindNetworkBackfill(t.Context(), pool, 1)
	require.NoError(t, err)
	move = func(p schema.NetworkProgress) {
		t.Helper()
		require.NoError(t, schema.MoveNetworkBackfill(t.Context(), pool, b, p, time.Minute))
	}
	fail = func() time.Duration {
		t.Helper()
		age, err := schema.FailNetworkBackfill(t.Context(), pool, b.ID, "a\x00test")
		require.NoError(t, err)
		return age
	}
	sealed = func(host string, at time.Time) bool {
		t.Helper()
		found, err := schema.IntervalSealed(t.Context(), pool, b, host, at, b.To)
		require.NoError(t, err)
		return found
	}
	return b, move, fail, sealed, execute
}

// TestUnreadArchiveIsTriedLaterAndLater shows that the age of a failure, after which the archive is tried again, begins
// again with progress only.
func TestUnreadArchiveIsTriedLaterAndLater(t *testing.T) {
	t.Parallel()
	b, move, fail, _, execute := backfilledGap(t)
	require.Zero(t, fail())
	later := func() {
		t.Helper()
		execute(`UPDATE network_backfills SET unread_since = unread_since - interval '10 min'`)
	}
	later()
	require.InDelta(t, 10*time.Minute, fail(), float64(time.Minute))
	read := b.From.Add(10 * time.Minute)
	move(schema.NetworkProgress{ReadTo: read})
	require.Zero(t, fail())
	later()
	move(schema.NetworkProgress{ReadTo: read}) // the block before the missing one
	require.InDelta(t, 10*time.Minute, fail(), float64(time.Minute))
}

// TestGapIsSealedIfItsStreamShowsIt shows what the stream must have read, and from which host, for the end of a gap to
// be in an archive that has nothing later.
func TestGapIsSealedIfItsStreamShowsIt(t *testing.T) {
	t.Parallel()
	b, _, _, sealed, execute := backfilledGap(t)
	last := b.To.Add(-30 * time.Second) // after the gap, and within the margin
	execute(`INSERT INTO streams (name, wire, host, last_event_at, caught_up_at) VALUES ('s', 'jetstream', 'h', $1, $2)`,
		last, b.To.Add(time.Second))
	require.True(t, sealed("h", last))
	require.False(t, sealed("other", last), "the clock of another host")
	require.False(t, sealed("h", last.Add(-time.Microsecond)), "the stream has an event that the archive does not have")
	execute(`UPDATE streams SET caught_up_at = $1`, b.To)
	require.False(t, sealed("h", last), "something may be unread")
	execute(`UPDATE streams SET caught_up_at = now(), last_event_at = $1`, b.To.Add(-2*time.Minute))
	require.False(t, sealed("h", last), "nothing was received after the gap")
}

// TestRequestedIntervalIsSealedIfAllStreamsShowIt shows the same for an interval that was requested: no stream that is
// read may have anything that is not sealed.
func TestRequestedIntervalIsSealedIfAllStreamsShowIt(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Now().Truncate(time.Microsecond)
	b := schema.NetworkBackfill{From: now.Add(-time.Hour), To: now.Add(-10 * time.Minute)}
	last, after := now.Add(-20*time.Minute), b.To.Add(time.Minute)
	sealed := func(at time.Time) bool {
		t.Helper()
		found, err := schema.IntervalSealed(t.Context(), pool, b, "h", at, after)
		require.NoError(t, err)
		return found
	}
	require.False(t, sealed(last), "nothing is read")
	stream := func(name, wire, host string, last *time.Time, caughtUp time.Time) {
		t.Helper()
		do(t, pool, `INSERT INTO streams (name, wire, host, last_event_at, caught_up_at) VALUES ($1, $2, $3, $4, $5)`,
			name, wire, host, last, caughtUp)
	}
	stream("old", "jetstream", "elsewhere", &now, after)
	stream("nostr:relay", "nostr", "relay", &now, now)
	stream("file", schema.WireRecording, "", &now, now)
	require.False(t, sealed(last), "no stream is read since")
	stream("one", "jetstream", "h", &last, now)
	require.True(t, sealed(last))
	require.False(t, sealed(last.Add(-time.Microsecond)), "the stream has an event that the archive does not have")
	stream("two", "jetstream", "h", nil, now)
	require.False(t, sealed(last), "it is unknown what the host had before the stream")
	do(t, pool, `UPDATE streams SET last_event_at = $1 WHERE name = 'two'`, last)
	require.True(t, sealed(last))
	do(t, pool, `UPDATE streams SET host = 'other' WHERE name = 'two'`)
	require.False(t, sealed(last), "the clock of another host")
}
