// Package health says how Weir is doing, in the words that the endpoints, the
// command, the metrics and the alerts share. It judges what the database holds
// alone, so that every process of a deployment gives the same answer: the page
// of one host tells that the consumer of another has fallen silent.
package health

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// The states a deployment can be in, worst last, beside those of a stream that
// need no other word: live, quiet, catching up and paused by backpressure.
const (
	StateReconnecting = "reconnecting"
	StateNever        = "never connected"       // since the stream began, there was no connection
	StateStalled      = "stalled"               // connected, and nothing moves
	StateWaiting      = "waiting for the lease" // of one process only: another one does the work
	StateUnknown      = "unknown"               // the database does not answer
)

// Limits is where well ends. Zero fields take the defaults.
type Limits struct {
	Disconnected time.Duration // 5 min: without a connection
	NoEvents     time.Duration // 2 min: connected, not quiet, and nothing was committed
	LagWarning   time.Duration // 60 s: behind the stream
	LagCritical  time.Duration // 5 min: and here a process is not ready any more
	Tries        int           // 10: tries to connect that failed
	Backfills    int64         // 50: feeds that wait to be read
	Jobs         int64         // 10,000: jobs of any queue that wait to be worked
	Letters      int64         // 10: dead letters new within ten minutes
	Bytes        int64         // 3 GB: of the database
	AuditAge     time.Duration // 50 h: since the last audit ended, or could have; negative: nobody audits
	AuditScore   float64       // 0.999: of the last audit
}

func (l Limits) withDefaults() Limits {
	l.Disconnected = cmp.Or(l.Disconnected, 5*time.Minute)
	l.NoEvents = cmp.Or(l.NoEvents, 2*time.Minute)
	l.LagWarning = cmp.Or(l.LagWarning, time.Minute)
	l.LagCritical = cmp.Or(l.LagCritical, 5*time.Minute)
	l.Tries = cmp.Or(l.Tries, 10)
	l.Backfills = cmp.Or(l.Backfills, 50)
	l.Jobs = cmp.Or(l.Jobs, 10_000)
	l.Letters = cmp.Or(l.Letters, 10)
	l.Bytes = cmp.Or(l.Bytes, 3<<30)
	l.AuditAge = cmp.Or(l.AuditAge, 50*time.Hour)
	l.AuditScore = cmp.Or(l.AuditScore, 0.999)
	return l
}

// Status is a report in one word.
const (
	Healthy   = "healthy"   // nothing to do
	Degraded  = "degraded"  // it works, and somebody should look
	Unhealthy = "unhealthy" // it does not do its work
)

// Report is how Weir is doing. Ages are in seconds; null where nothing has
// happened yet.
type Report struct {
	Status string `json:"status"` // healthy, degraded or unhealthy
	State  string `json:"state"`  // of the stream that does worst

	WebsocketConnected  bool     `json:"websocket_connected"`
	LastEventSecondsAgo *float64 `json:"last_event_seconds_ago"` // quiet is no fault: see caught_up_seconds_ago
	CaughtUpSecondsAgo  *float64 `json:"caught_up_seconds_ago"`  // since the stream was last known to have nothing unread
	CursorTimeUS        *int64   `json:"cursor_time_us"`         // when the last event committed happened, in microseconds since 1970
	FollowsCount        int64    `json:"follows_count"`          // 0: the whole network
	UnreadWatches       int64    `json:"unread_watches"`         // whose last sync failed: weir watch list says why
	BackfillQueueDepth  int64    `json:"backfill_queue_depth"`

	Conditions []Condition    `json:"conditions"` // what is not well, the worst first
	Streams    []Stream       `json:"streams"`
	Queues     []schema.Queue `json:"queues"`

	OpenGaps      int64   `json:"open_gaps"`
	GapSeconds    float64 `json:"gap_seconds"`
	GapAccounts   int64   `json:"gap_accounts"`    // that are compared with their repositories before the open ones close
	GapWaiting    int64   `json:"gap_waiting"`     // of these, those still to be compared
	Unclosable    int64   `json:"unclosable_gaps"` // of the open ones
	GapProblem    string  `json:"gap_problem"`     // why they cannot be closed; empty where all can
	DeadLetters   int64   `json:"dead_letters"`
	NewLetters    int64   `json:"new_dead_letters"` // of the last ten minutes
	DatabaseBytes int64   `json:"database_bytes"`

	Audit           *schema.Audit `json:"audit"`             // the last one; null: there was none
	AuditSecondsAgo float64       `json:"audit_seconds_ago"` // since it ended, or since there could have been one
}

// Stream is one stream of a report.
type Stream struct {
	Name       string   `json:"name"`
	State      string   `json:"state"`
	Detail     string   `json:"detail,omitempty"`
	StateSince float64  `json:"state_seconds"` // for how long
	Connected  bool     `json:"connected"`
	Host       string   `json:"host"`
	LastEvent  *float64 `json:"last_event_seconds_ago"`
	CaughtUp   *float64 `json:"caught_up_seconds_ago"`
	Lag        *float64 `json:"lag_seconds"` // behind the stream: nothing unread was known this long ago
	CursorTime *int64   `json:"cursor_time_us"`
	Failed     int      `json:"failed_tries"` // to connect, since the last event
	Holder     string   `json:"lease_holder,omitempty"`
	Epoch      int64    `json:"epoch"`
}

// Read asks the database how Weir is doing.
func Read(ctx context.Context, db schema.DB, now time.Time, limits Limits) (Report, error) {
	limits = limits.withDefaults()
	statuses, err := schema.StreamStatuses(ctx, db)
	if err != nil {
		return Report{}, err
	}
	queues, err := schema.Queues(ctx, db, jobs.Queues())
	if err != nil {
		return Report{}, err
	}
	totals, err := schema.ReadTotals(ctx, db, now.Add(-letterWindow))
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Queues: queues, FollowsCount: totals.Follows, UnreadWatches: totals.FailedWatches, OpenGaps: totals.Gaps, GapSeconds: totals.GapSeconds,
		GapAccounts: totals.GapAccounts, GapWaiting: totals.GapAccountsLeft, Unclosable: totals.StuckGaps, GapProblem: totals.GapProblem,
		DeadLetters: totals.DeadLetters, NewLetters: totals.NewDeadLetters, DatabaseBytes: totals.Bytes, Conditions: []Condition{}, Streams: []Stream{},
	}
	for _, st := range statuses {
		r.Streams = append(r.Streams, stream(st, now, limits))
	}
	for _, q := range queues {
		if q.Name == jobs.QueueBackfill {
			r.BackfillQueueDepth = q.Available + q.Scheduled + q.Retryable
		}
	}
	if err := r.readAudit(ctx, db, now); err != nil {
		return Report{}, err
	}
	r.sum()
	r.judge(limits)
	return r, nil
}

// readAudit reads what the last audit came to.
func (r *Report) readAudit(ctx context.Context, db schema.DB, now time.Time) error {
	last, err := schema.LastAudit(ctx, db)
	at := last.Ended
	switch {
	case err == nil:
		r.Audit = &last
	case errors.Is(err, schema.ErrNoRows):
		if at, err = schema.AuditableSince(ctx, db); err != nil {
			return err
		}
	default:
		return err
	}
	r.AuditSecondsAgo = max(0, now.Sub(at).Seconds())
	return nil
}

// liveWithin is how far behind a stream counts as live.
const liveWithin = 10 * time.Second

// letterWindow is how long a dead letter counts as new.
const letterWindow = 10 * time.Minute

func stream(st schema.StreamStatus, now time.Time, limits Limits) Stream {
	s := Stream{Name: st.Name, State: st.Current(), Host: st.Host, Failed: st.Failed, Epoch: st.Epoch,
		StateSince: now.Sub(st.StateSince).Seconds(), LastEvent: ago(st.LastEvent, now), CaughtUp: ago(st.CaughtUp, now)}
	if st.Leased {
		s.Holder, s.Detail = st.Owner, st.Detail
	}
	if st.LastEvent != nil {
		us := st.LastEvent.UnixMicro()
		s.CursorTime = &us
	}
	switch {
	case s.CaughtUp == nil || s.LastEvent != nil && *s.LastEvent < *s.CaughtUp:
		s.Lag = s.LastEvent
	default:
		s.Lag = s.CaughtUp
	}
	switch s.State {
	case schema.StateLive, schema.StateCatchingUp:
		s.Connected = true
		if s.Lag != nil && *s.Lag > liveWithin.Seconds() {
			s.State = schema.StateCatchingUp // what was read is live, what is stored is not yet
		}
		moved := later(st.Advanced, st.StateSince)
		if now.Sub(moved) > limits.NoEvents && st.Detail != schema.DetailScanning { // which ends as quiet, or brings events
			s.State, s.StateSince = StateStalled, now.Sub(moved).Seconds()
		}
	case schema.StateQuiet:
		s.Connected = true
	case schema.StateConnecting, schema.StateNoNetwork:
		switch {
		case !st.Leased:
			s.State = schema.StateNoConsumer // it fell silent without a word
		case st.CaughtUp == nil && st.LastEvent == nil: // a first connection writes one of them
			s.State = StateNever
		default:
			s.State = StateReconnecting
		}
	}
	return s
}

func later(a *time.Time, b time.Time) time.Time {
	if a != nil && a.After(b) {
		return *a
	}
	return b
}

func ago(t *time.Time, now time.Time) *float64 {
	if t == nil {
		return nil
	}
	s := max(0, now.Sub(*t).Seconds()) // a server's clock may be ahead of ours
	return &s
}

// byWorth are the states, the best first.
func byWorth() []string {
	return []string{schema.StateLive, schema.StateQuiet, schema.StateCatchingUp, schema.StateDraining, StateReconnecting, StateNever, StateStalled, schema.StateNoConsumer}
}

// sum makes the figures of the whole of those of the streams: the worst of each.
func (r *Report) sum() {
	if len(r.Streams) == 0 {
		r.State = schema.StateNoConsumer
		return
	}
	order := byWorth()
	worst := -1
	r.WebsocketConnected = true
	for _, s := range r.Streams {
		if at := slices.Index(order, s.State); at > worst {
			worst, r.State = at, s.State
		}
		r.WebsocketConnected = r.WebsocketConnected && s.Connected
		r.LastEventSecondsAgo = least(r.LastEventSecondsAgo, s.LastEvent)
		r.CaughtUpSecondsAgo = most(r.CaughtUpSecondsAgo, s.CaughtUp)
		if s.CursorTime != nil && (r.CursorTimeUS == nil || *s.CursorTime < *r.CursorTimeUS) {
			r.CursorTimeUS = s.CursorTime
		}
	}
}

func least(a, b *float64) *float64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}

func most(a, b *float64) *float64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// Unreachable is the report when the database does not answer: nothing else is
// known.
func Unreachable(cause error) Report {
	return Report{Status: Unhealthy, State: StateUnknown, Streams: []Stream{}, Queues: []schema.Queue{}, Conditions: []Condition{
		{Name: "WeirDatabaseDown", Severity: Critical, Message: "the database does not answer: " + cause.Error(), Do: "weir doctor"},
	}}
}

// SeenBy makes it the report of one process that runs a consumer: where others
// hold all the leases, it waits for one.
func (r *Report) SeenBy(owner string) {
	for _, s := range r.Streams {
		if s.Holder == "" || s.Holder == owner {
			return
		}
	}
	if len(r.Streams) > 0 {
		r.State = StateWaiting
	}
}

// Verdict is the status and the state in a few words, such as "healthy: live".
func (r Report) Verdict() string { return r.Status + ": " + r.State }
