package health

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

var noon = time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *time.Time {
	t := noon.Add(-d)
	return &t
}

// neverRead is the lag of a stream that has never been read.
const neverRead = time.Duration(-1)

// TestGapsMessage checks the singular and the plural.
func TestGapsMessage(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 gap is open, over 1m0s", (&Report{OpenGaps: 1, GapSeconds: 60}).gaps())
	require.Equal(t, "2 gaps are open, over 1m0s", (&Report{OpenGaps: 2, GapSeconds: 60}).gaps())
}

// A streamState is a stream and what the report says of it.
type streamState struct {
	status    schema.StreamStatus
	state     string
	connected bool
	lag       time.Duration
	condition []string
}

func streamStates() map[string]streamState {
	hour := *before(time.Hour)
	return map[string]streamState{
		"live": {schema.StreamStatus{
			State: "live", StateSince: hour, Leased: true, LastEvent: before(time.Second), CaughtUp: before(time.Second),
			Advanced: before(time.Second),
		}, "live", true, time.Second, nil},
		"quiet for an hour": {schema.StreamStatus{
			State: "quiet", StateSince: hour, Leased: true, LastEvent: before(time.Hour), CaughtUp: before(3 * time.Second),
			Advanced: before(time.Hour),
		}, "quiet", true, 3 * time.Second, nil},
		"stalled": {schema.StreamStatus{
			State: "live", StateSince: hour, Leased: true, LastEvent: before(3 * time.Minute), CaughtUp: before(3 * time.Minute),
			Advanced: before(3 * time.Minute),
		}, StateStalled, true, 3 * time.Minute, []string{"WeirNoEvents", "WeirLag"}},
		"just reconnected after an hour": {schema.StreamStatus{
			State: "live", StateSince: *before(time.Second), Leased: true, LastEvent: before(30 * time.Second), Advanced: before(time.Hour),
		}, "catching up", true, 30 * time.Second, nil},
		"far behind and moving": {schema.StreamStatus{
			State: "catching up", StateSince: hour, Leased: true, LastEvent: before(6 * time.Minute), Advanced: before(time.Second),
		}, "catching up", true, 6 * time.Minute, []string{"WeirLagCritical"}},
		"scanning server": {schema.StreamStatus{
			State: "catching up", StateSince: hour, Leased: true, LastEvent: before(6 * time.Hour), Advanced: before(time.Hour),
			Detail: schema.DetailScanning,
		}, "catching up", true, 6 * time.Hour, []string{"WeirLagCritical"}},
		"slightly behind": {schema.StreamStatus{
			State: "catching up", StateSince: hour, Leased: true, LastEvent: before(2 * time.Minute), Advanced: before(time.Second),
		}, "catching up", true, 2 * time.Minute, []string{"WeirLag"}},
		"a blip": {schema.StreamStatus{
			State: "connecting", StateSince: *before(time.Minute), Leased: true, LastEvent: before(time.Minute), Advanced: before(time.Minute),
		}, StateReconnecting, false, time.Minute, nil},
		"disconnected": {schema.StreamStatus{
			State: "not connected", StateSince: *before(6 * time.Minute), Leased: true, LastEvent: before(6 * time.Minute), Detail: "refused",
			Failed: 5,
		}, StateReconnecting, false, 6 * time.Minute, []string{"WeirDisconnected", "WeirLagCritical"}},
		"disconnected for two minutes": {schema.StreamStatus{
			State: "not connected", StateSince: *before(2 * time.Minute), Leased: true, LastEvent: before(2 * time.Minute),
		}, StateReconnecting, false, 2 * time.Minute, []string{"WeirLag"}},
		"disconnected after a quiet state": {schema.StreamStatus{
			State: "not connected", StateSince: *before(time.Minute), Leased: true, LastEvent: before(time.Hour), CaughtUp: before(time.Minute),
		}, StateReconnecting, false, time.Minute, nil},
		"a late host": {schema.StreamStatus{
			State: "live", StateSince: hour, Leased: true, LastEvent: before(time.Second), WrittenAt: before(391 * time.Second),
			CaughtUp: before(time.Second), Advanced: before(time.Second),
		}, "live", true, 391 * time.Second, []string{"WeirLagCritical", "WeirHostLate"}},
		"a quiet stream of a host that is slightly late": {schema.StreamStatus{
			State: "quiet", StateSince: hour, Leased: true, LastEvent: before(time.Hour), WrittenAt: before(time.Hour + 9*time.Second),
			CaughtUp: before(3 * time.Second), Advanced: before(time.Hour),
		}, "quiet", true, 12 * time.Second, nil},
		"a short pause by backpressure": {schema.StreamStatus{
			State: "paused by backpressure", StateSince: *before(50 * time.Second), Leased: true, LastEvent: before(50 * time.Second),
			CaughtUp: before(50 * time.Second),
		}, schema.StateDraining, false, 50 * time.Second, nil},
		"paused by backpressure for minutes": {schema.StreamStatus{
			State: "paused by backpressure", StateSince: *before(2 * time.Minute), Leased: true, LastEvent: before(2 * time.Minute),
			CaughtUp: before(2 * time.Minute),
		}, schema.StateDraining, false, 2 * time.Minute, []string{"WeirLag"}},
		"paused by backpressure for days": {schema.StreamStatus{
			State: "paused by backpressure", StateSince: *before(48 * time.Hour), Leased: true, LastEvent: before(48 * time.Hour),
			CaughtUp: before(48 * time.Hour),
		}, schema.StateDraining, false, 48 * time.Hour, []string{"WeirLagCritical"}},
		"no consumer for days": {schema.StreamStatus{State: "stopped", StateSince: hour, LastEvent: before(48 * time.Hour)},
			schema.StateNoConsumer, false, 48 * time.Hour, []string{"WeirNoConsumer"}},
		"no connection yet": {schema.StreamStatus{State: "connecting", StateSince: *before(time.Minute), Leased: true},
			StateNever, false, neverRead, nil},
		"no connection for minutes": {schema.StreamStatus{
			State: "not connected", StateSince: *before(6 * time.Minute), Leased: true, Detail: "refused",
		}, StateNever, false, neverRead, []string{"WeirDisconnected"}},
		"many failed attempts": {schema.StreamStatus{
			State: "not connected", StateSince: *before(time.Minute), Leased: true, LastEvent: before(time.Minute), Failed: 11,
		}, StateReconnecting, false, time.Minute, []string{"WeirReconnectsFail"}},
		"dead holder": {schema.StreamStatus{State: "live", StateSince: hour, Owner: "dead", LastEvent: before(time.Minute)},
			schema.StateNoConsumer, false, time.Minute, []string{"WeirNoConsumer"}},
		"lease given back": {schema.StreamStatus{State: "stopped", StateSince: hour, LastEvent: before(time.Minute)},
			schema.StateNoConsumer, false, time.Minute, []string{"WeirNoConsumer"}},
	}
}

// TestStreamStates checks the states: a stream that has never been connected is not
// healthy, a quiet stream is not stalled, a dead holder is not connected, and a
// stream that moved within two minutes is not stalled.
func TestStreamStates(t *testing.T) {
	t.Parallel()
	for name, c := range streamStates() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := Limits{}.withDefaults()
			r := Report{Streams: []Stream{stream(c.status, noon, limits)}}
			r.summarize()
			r.addConditions(limits)
			require.Equal(t, c.state, r.State)
			require.Equal(t, c.connected, r.WebsocketConnected)
			if c.lag == neverRead {
				require.Nil(t, r.Streams[0].Lag)
			} else {
				require.InDelta(t, c.lag.Seconds(), *r.Streams[0].Lag, 0.001)
			}
			require.Equal(t, c.condition, names(r))
			require.Equal(t, len(c.condition) == 0 && c.lag != neverRead, r.Status == Healthy)
		})
	}
}

// names returns the names of the conditions.
func names(r Report) (all []string) {
	for _, c := range r.Conditions {
		all = append(all, c.Name)
	}
	return all
}

// TestDeadWorkersAlert checks that a stream paused by backpressure alerts although no queue is too
// deep: it stays paused until half of the limit is processed.
func TestDeadWorkersAlert(t *testing.T) {
	t.Parallel()
	limits := Limits{}.withDefaults()
	paused := schema.StreamStatus{
		Name: "s", State: schema.StateDraining, StateSince: *before(48 * time.Hour), Leased: true, LastEvent: before(48 * time.Hour),
	}
	r := Report{Streams: []Stream{stream(paused, noon, limits)}, Queues: []schema.Depth{{Name: jobs.QueueProcess, Available: 9000}}}
	r.addConditions(limits)
	require.Equal(t, []string{"WeirLagCritical"}, names(r))
	require.Equal(t, Unhealthy, r.Status)
	require.NotEmpty(t, r.NotReady(limits), "the readiness probe must agree with the alert")
}

// TestWorstStreamDecides checks that the report has the state of the worst stream.
func TestWorstStreamDecides(t *testing.T) {
	t.Parallel()
	limits := Limits{}.withDefaults()
	r := Report{}
	for name, state := range map[string]string{"a": "live", "b": "not connected", "c": "quiet"} {
		r.Streams = append(r.Streams, stream(schema.StreamStatus{
			Name: name, State: state, StateSince: noon, Leased: true, LastEvent: before(time.Second), CaughtUp: before(time.Second),
			Advanced: before(time.Second),
		}, noon, limits))
	}
	r.summarize()
	require.Equal(t, StateReconnecting, r.State)
	require.False(t, r.WebsocketConnected)
	r.addConditions(limits)
	require.Equal(t, Healthy, r.Status, "a blip must not be a condition: %+v", r.Conditions)
	require.Empty(t, r.NotReady(limits))
}

// TestDeepQueues checks that available and failed jobs count as waiting, and
// scheduled ones do not.
func TestDeepQueues(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		queue   schema.Depth
		message string
	}{
		"at the limit":           {schema.Depth{Available: 10_000}, ""},
		"available":              {schema.Depth{Available: 10_001}, "10001 jobs wait in queue q"},
		"failed":                 {schema.Depth{Retryable: 10_001}, "10001 jobs wait in queue q, 10001 of them failed and will be retried"},
		"at the limit, together": {schema.Depth{Available: 5000, Retryable: 5000}, ""},
		"together": {
			schema.Depth{Available: 5000, Retryable: 5001}, "10001 jobs wait in queue q, 5001 of them failed and will be retried",
		},
		"scheduled and running":    {schema.Depth{Available: 1, Scheduled: schema.CountedJobs, Running: schema.CountedJobs}, ""},
		"at the bound of counting": {schema.Depth{Available: schema.CountedJobs + 1}, "50001 or more jobs wait in queue q"},
		"beyond the bound of counting": {schema.Depth{Available: 1, Retryable: schema.CountedJobs + 1},
			"50002 or more jobs wait in queue q, 50001 or more of them failed and will be retried"},
		"below the bound, together above it": {schema.Depth{Available: 30_000, Retryable: 30_000},
			"60000 jobs wait in queue q, 30000 of them failed and will be retried"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limits := Limits{}.withDefaults()
			c.queue.Name = "q"
			r := Report{Queues: []schema.Depth{c.queue}, Streams: []Stream{{Name: "s", State: schema.StateLive, Connected: true}}}
			r.addConditions(limits)
			if c.message == "" {
				require.Empty(t, r.Conditions)
				return
			}
			require.Equal(t, []string{"WeirQueueDeep"}, names(r))
			require.Equal(t, c.message, r.Conditions[0].Message)
		})
	}
}

// TestReadCounts checks the counts of jobs, gaps and dead letters, and that
// counting stops at its bound.
func TestReadCounts(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	r, err := Read(t.Context(), pool, time.Now(), Limits{})
	require.NoError(t, err)
	require.Equal(t, Unhealthy, r.Status)
	require.Equal(t, "WeirNoConsumer", r.Conditions[0].Name)
	at := time.Now() // by which ten dead letters are new: the rows are inserted slowly
	_, err = pool.Exec(t.Context(), `
INSERT INTO projections (name, collections, kind, queue, tables) VALUES ('links', '{app.bsky.feed.post}', 'process_posts', 'process', '{}');
INSERT INTO river_job (kind, args, max_attempts, priority, queue, state, scheduled_at)
SELECT 'process_posts', '{}', 25, 1 + n % 4, 'process', 'available', now() - interval '1 hour' FROM generate_series(1, 60000) AS n;
INSERT INTO river_job (kind, args, max_attempts, priority, queue, state, scheduled_at)
SELECT 'backfill_account', '{}', 25, 4, 'backfill', 'available', now() - interval '1 minute' FROM generate_series(1, 51) AS n;
INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
VALUES ('s', now() - interval '10 minutes', now() - interval '8 minutes', 'test', now());
INSERT INTO dead_letters (key, stage, cause, raw, raw_bytes, first_seen, last_seen)
SELECT sha256(n::text::bytea), 'decode', 'test', '', 0, now() - (n || ' minutes 30 seconds')::interval, now()
FROM generate_series(0, 20) AS n;
INSERT INTO river_queue (name, paused_at, updated_at) VALUES ('network', now(), now())`)
	require.NoError(t, err)
	r, err = Read(t.Context(), pool, at, Limits{Bytes: 1})
	require.NoError(t, err)
	names := map[string]string{}
	for _, c := range r.Conditions {
		names[c.Name] = c.Component
	}
	require.Equal(t, map[string]string{"WeirNoConsumer": "", "WeirQueueDeep": "process", "WeirQueuePaused": "network",
		"WeirBackfillsWait": "backfill", "WeirGapOpen": "", "WeirDatabaseLarge": "", "WeirQueueUnprocessed": "process"}, names)
	require.EqualValues(t, 51, r.BackfillQueueDepth)
	require.EqualValues(t, 21, r.DeadLetters)
	require.EqualValues(t, 10, r.NewDeadLetters)
	require.InDelta(t, 120, r.GapSeconds, 1)
	for _, q := range r.Queues {
		if q.Name == jobs.QueueProcess {
			require.EqualValues(t, schema.CountedJobs+1, q.Available)
			var oldest time.Time
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT min(scheduled_at) FROM river_job WHERE queue = 'process'`).Scan(&oldest))
			require.True(t, oldest.Equal(*q.Oldest), "%s, not %s", q.Oldest, oldest)
		}
	}
}

// TestUnreachable checks the report for a database that does not respond.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Read(ctx, pool, noon, Limits{})
	require.Error(t, err)
	r := Unreachable(errors.New("refused"))
	require.Equal(t, Unhealthy, r.Status)
	require.Nil(t, r.CursorTimeUS)
}

// TestUnprocessedQueues covers queues whose jobs wait while none runs. A queue that is
// slow, paused, or empty does not count as unprocessed.
func TestUnprocessedQueues(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	old, young := noon.Add(-6*time.Minute), noon.Add(-4*time.Minute)
	r := Report{at: noon, Queues: []schema.Depth{{Name: "unworked", Available: 1, Oldest: &old}, {
		Name: "slow", Available: 1, Running: 1, Oldest: &old,
	},
		{Name: "paused", Available: 1, Oldest: &old, Paused: true}, {Name: "new", Available: 1, Oldest: &young}, {Name: "empty"}}}
	r.addConditions(Limits{}.withDefaults())
	var components []string
	for _, c := range r.Conditions {
		if c.Name == "WeirQueueUnprocessed" {
			components = append(components, c.Component)
			require.Equal(t, "no process takes the jobs of queue unworked: the first has waited for 6m0s", c.Message)
		}
	}
	require.Equal(t, []string{"unworked"}, components)
}

// TestCollectionsHaveLimits shows that collections can have their own limits of dead letters. Their
// dead letters do not count elsewhere, and the first limit that matches a collection applies.
func TestCollectionsHaveLimits(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	noon := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	_, err := pool.Exec(t.Context(), `
INSERT INTO dead_letters (key, stage, collection, did, rkey, cause, raw, raw_bytes, state, first_seen, last_seen)
SELECT int8send(row_number() OVER ()), 'lexicon', l.collection, 'did:plc:a', i::text, 'x', '', 0, l.state, l.at, l.at
FROM (VALUES ('com.example.note', 'open', 3, $1::timestamptz), ('com.example.note', 'open', 50, $1 - interval '11 minutes'),
    ('com.example.note', 'dismissed', 50, $1),
             ('com.example.memo', 'retrying', 5, $1), ('com.examples.note', 'open', 2, $1), (NULL, 'open', 1, $1))
    AS l (collection, state, n, at)
CROSS JOIN LATERAL generate_series(1, l.n) AS i`, noon.Add(-time.Minute))
	require.NoError(t, err)
	read := func(limits ...DeadLetterLimit) (r Report, components []string) {
		r, err := Read(t.Context(), pool, noon, Limits{Collections: limits})
		require.NoError(t, err)
		for _, c := range r.Conditions {
			if c.Name == "WeirCollectionDeadLetters" || c.Name == "WeirDeadLetters" {
				components = append(components, c.Name+" "+c.Component)
			}
		}
		return r, components
	}
	r, components := read()
	require.EqualValues(t, 11, r.NewDeadLetters)
	require.Equal(t, []string{"WeirDeadLetters "}, components)
	r, components = read(DeadLetterLimit{"com.example.note", 2}, DeadLetterLimit{"com.example.*", 5})
	require.EqualValues(t, 3, r.NewDeadLetters)
	require.Equal(t, []CollectionDeadLetters{{"com.example.note", 3, 2}, {"com.example.*", 5, 5}}, r.CollectionDeadLetters)
	require.Equal(t, []string{"WeirCollectionDeadLetters com.example.note"}, components)
	_, components = read(DeadLetterLimit{"com.example.*", 7}, DeadLetterLimit{"com.example.note", 0})
	require.Equal(t, []string{"WeirCollectionDeadLetters com.example.*"}, components)
}
