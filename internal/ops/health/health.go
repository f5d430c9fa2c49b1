// Package health reports the state of Weir in the terms that the endpoints, the
// command, the metrics and the alerts share. It reads only the database, so every
// process of a deployment reports the same: the page on one host shows that the
// consumer on another has stopped.
package health

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// The states of a deployment that are not states of a stream, from better to worse.
// The stream's states live, quiet, catching up and paused by backpressure are in
// package schema.
const (
	StateReconnecting = "reconnecting"
	StateNever        = "never connected"       // the stream has never had a connection
	StateStalled      = "stalled"               // connected, but nothing is committed
	StateWaiting      = "waiting for the lease" // for a single process: another process reads the stream
	StateUnknown      = "unknown"               // the database does not respond
)

// Limits are the thresholds of the conditions. Zero fields take the defaults.
type Limits struct {
	Disconnected time.Duration // 5 min: without a connection
	NoEvents     time.Duration // 2 min: connected, not quiet, nothing committed
	LagWarning   time.Duration // 60 s: behind the stream
	LagCritical  time.Duration // 5 min: a process is no longer ready
	Tries        int           // 10: failed attempts to connect
	Backfills    int64         // 50: feeds that are waiting to be read
	Jobs         int64         // 10,000: jobs of any queue that are waiting
	DeadLetters  int64         // 10: new dead letters within ten minutes, for collections without their own limit
	Collections  []DeadLetterLimit
	Bytes        int64         // 3 GB: size of the database
	AuditAge     time.Duration // 50 h: since the last audit ended, or since one was possible; negative: audits are off
	AuditScore   float64       // 0.999: score of the last audit
}

// DeadLetterLimit is how many new dead letters some collections may have within ten
// minutes. A collection uses the first limit that covers it.
type DeadLetterLimit struct {
	Pattern string // a collection's name, or a prefix such as pub.layers.*
	Most    int64
}

func (l Limits) withDefaults() Limits {
	l.Disconnected = cmp.Or(l.Disconnected, 5*time.Minute)
	l.NoEvents = cmp.Or(l.NoEvents, 2*time.Minute)
	l.LagWarning = cmp.Or(l.LagWarning, time.Minute)
	l.LagCritical = cmp.Or(l.LagCritical, 5*time.Minute)
	l.Tries = cmp.Or(l.Tries, 10)
	l.Backfills = cmp.Or(l.Backfills, 50)
	l.Jobs = cmp.Or(l.Jobs, 10_000)
	l.DeadLetters = cmp.Or(l.DeadLetters, 10)
	l.Bytes = cmp.Or(l.Bytes, 3<<30)
	l.AuditAge = cmp.Or(l.AuditAge, 50*time.Hour)
	l.AuditScore = cmp.Or(l.AuditScore, 0.999)
	return l
}

// The statuses of a report.
const (
	Healthy   = "healthy"   // no action is needed
	Degraded  = "degraded"  // Weir works, but needs attention
	Unhealthy = "unhealthy" // Weir does not do its work
)

// Report is the state of Weir. Ages are in seconds, and null if nothing has
// happened yet.
type Report struct {
	Status string `json:"status"` // healthy, degraded or unhealthy
	State  string `json:"state"`  // of the stream in the worst state

	WebsocketConnected  bool     `json:"websocket_connected"`
	LastEventSecondsAgo *float64 `json:"last_event_seconds_ago"` // large while the network is quiet: see caught_up_seconds_ago
	CaughtUpSecondsAgo  *float64 `json:"caught_up_seconds_ago"`  // since the stream last had nothing unread
	CursorTimeUS        *int64   `json:"cursor_time_us"`         // time of the last committed event, in microseconds since 1970
	FollowsCount        int64    `json:"follows_count"`          // 0: the whole network
	UnreadWatches       int64    `json:"unread_watches"`         // watches whose last sync failed: `weir watch list` shows why
	BackfillQueueDepth  int64    `json:"backfill_queue_depth"`

	Conditions []Condition    `json:"conditions"` // the problems, worst first
	Streams    []Stream       `json:"streams"`
	Queues     []schema.Depth `json:"queues"`

	OpenGaps   int64   `json:"open_gaps"`
	GapSeconds float64 `json:"gap_seconds"`
	// accounts to compare with their repositories before the open gaps close
	GapAccounts           int64                   `json:"gap_accounts"`
	GapWaiting            int64                   `json:"gap_waiting"`     // of these, the accounts not compared yet
	Unclosable            int64                   `json:"unclosable_gaps"` // open gaps that cannot be closed
	GapProblem            string                  `json:"gap_problem"`     // why they cannot be closed; empty if all can be
	DeadLetters           int64                   `json:"dead_letters"`
	NewDeadLetters        int64                   `json:"new_dead_letters"` // in the last ten minutes, for collections without their own limit
	CollectionDeadLetters []CollectionDeadLetters `json:"collection_dead_letters"`
	Desynchronized        int64                   `json:"desynchronized_accounts"` // accounts that must be compared with their repositories
	DatabaseBytes         int64                   `json:"database_bytes"`

	Histories        []history.History        `json:"histories"`         // of collections: how far their past has been read
	NetworkBackfills []schema.NetworkBackfill `json:"network_backfills"` // from the archives of servers: open, or of the last week

	Audit           *schema.Audit `json:"audit"`             // the last audit; null: none yet
	AuditSecondsAgo float64       `json:"audit_seconds_ago"` // since it ended, or since one was possible

	at       time.Time           // of the report
	figures  map[string]*float64 // of features, by name
	fields   map[string]any      // of features, by name
	problems []Condition         // of features
}

// CollectionDeadLetters counts the new dead letters of collections with their own
// limit.
type CollectionDeadLetters struct {
	Collections string `json:"collections"` // as configured: a name or a prefix
	New         int64  `json:"new"`         // in the last ten minutes
	Most        int64  `json:"most"`        // an alert fires above it
}

// Stream is one stream of a report.
type Stream struct {
	Name       string   `json:"name"`
	Wire       string   `json:"wire"` // the protocol that it is read with
	State      string   `json:"state"`
	Detail     string   `json:"detail,omitempty"`
	StateSince float64  `json:"state_seconds"` // how long the state has lasted
	Connected  bool     `json:"connected"`
	Host       string   `json:"host"`
	LastEvent  *float64 `json:"last_event_seconds_ago"`
	CaughtUp   *float64 `json:"caught_up_seconds_ago"`
	Lag        *float64 `json:"lag_seconds"`      // how far the stored data is behind what was written
	HostLag    float64  `json:"host_lag_seconds"` // of this, how late the host sent the last events
	CursorTime *int64   `json:"cursor_time_us"`
	Failed     int      `json:"failed_tries"` // failed attempts to connect since the last event
	Holder     string   `json:"lease_holder,omitempty"`
	Epoch      int64    `json:"epoch"`
}

// Read reads the state of Weir and of its features from the database.
func Read(ctx context.Context, db schema.DB, now time.Time, limits Limits, features ...Feature) (Report, error) {
	limits = limits.withDefaults()
	statuses, err := schema.StreamStatuses(ctx, db)
	if err != nil {
		return Report{}, err
	}
	queues, err := schema.Queues(ctx, db, jobs.Queues())
	if err != nil {
		return Report{}, err
	}
	totals, err := schema.ReadTotals(ctx, db)
	if err != nil {
		return Report{}, err
	}
	r := Report{
		at: now, Queues: queues, FollowsCount: totals.Follows, UnreadWatches: totals.FailedWatches, OpenGaps: totals.Gaps,
		GapSeconds:  totals.GapSeconds,
		GapAccounts: totals.GapAccounts, GapWaiting: totals.GapAccountsLeft, Unclosable: totals.StuckGaps, GapProblem: totals.GapProblem,
		DeadLetters: totals.DeadLetters, Desynchronized: totals.Desynchronized, DatabaseBytes: totals.Bytes, Conditions: []Condition{},
		Streams: []Stream{},
	}
	if err := r.readDeadLetters(ctx, db, limits); err != nil {
		return Report{}, err
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
	if r.Histories, err = history.Histories(ctx, db); err != nil {
		return Report{}, err
	}
	if r.NetworkBackfills, err = schema.NetworkBackfills(ctx, db); err != nil {
		return Report{}, err
	}
	for _, f := range features {
		if err := r.readFeature(ctx, db, f); err != nil {
			return Report{}, err
		}
	}
	r.summarize()
	r.addConditions(limits)
	return r, nil
}

// readDeadLetters counts the new dead letters by the limits.
func (r *Report) readDeadLetters(ctx context.Context, db schema.DB, limits Limits) error {
	r.CollectionDeadLetters = make([]CollectionDeadLetters, len(limits.Collections))
	patterns := make([]string, len(limits.Collections))
	for i, l := range limits.Collections {
		patterns[i] = l.Pattern
	}
	counts, err := schema.CountNewDeadLetters(ctx, db, r.at.Add(-newWithin), patterns)
	if err != nil {
		return err
	}
	for i, l := range limits.Collections {
		r.CollectionDeadLetters[i] = CollectionDeadLetters{l.Pattern, counts[i], l.Most}
	}
	r.NewDeadLetters = counts[len(patterns)]
	return nil
}

// readAudit reads the result of the last audit.
func (r *Report) readAudit(ctx context.Context, db schema.DB, now time.Time) error {
	last, err := schema.LastAudit(ctx, db)
	at := last.Ended
	switch {
	case err == nil:
		r.Audit = &last
	case errors.Is(err, schema.ErrNoRows):
		if at, err = schema.MadeAt(ctx, db); err != nil {
			return err
		}
	default:
		return err
	}
	r.AuditSecondsAgo = max(0, now.Sub(at).Seconds())
	return nil
}

// liveWithin is how old the last event of a live stream may be, by the server's clock.
const liveWithin = 10 * time.Second

// newWithin is how long a dead letter counts as new.
const newWithin = 10 * time.Minute

func stream(st schema.StreamStatus, now time.Time, limits Limits) Stream {
	s := Stream{Name: st.Name, Wire: st.Wire, State: st.Current(), Host: st.Host, Failed: st.Failed, Epoch: st.Epoch,
		StateSince: now.Sub(st.StateSince).Seconds(), LastEvent: ago(st.LastEvent, now), CaughtUp: ago(st.CaughtUp, now)}
	if st.Leased {
		s.Holder, s.Detail = st.Owner, st.Detail
	}
	if st.LastEvent != nil {
		us := st.LastEvent.UnixMicro()
		s.CursorTime = &us
	}
	if st.WrittenAt != nil && st.LastEvent != nil {
		s.HostLag = max(0, st.LastEvent.Sub(*st.WrittenAt).Seconds())
	}
	unread := s.CaughtUp
	if s.CaughtUp == nil || s.LastEvent != nil && *s.LastEvent < *s.CaughtUp {
		unread = s.LastEvent
	}
	if unread != nil {
		lag := *unread + s.HostLag
		s.Lag = &lag
	}
	switch s.State {
	case schema.StateLive, schema.StateCatchingUp:
		s.Connected = true
		if unread != nil && *unread > liveWithin.Seconds() {
			s.State = schema.StateCatchingUp // the connection is live, but the stored data is behind
		}
		moved := later(st.Advanced, st.StateSince)
		if now.Sub(moved) > limits.NoEvents && st.Detail != schema.DetailScanning { // a scan ends in a quiet state or with events
			s.State, s.StateSince = StateStalled, now.Sub(moved).Seconds()
		}
	case schema.StateQuiet:
		s.Connected = true
	case schema.StateConnecting, schema.StateNoNetwork:
		switch {
		case !st.Leased:
			s.State = schema.StateNoConsumer // the consumer ended without releasing the lease
		case st.CaughtUp == nil && st.LastEvent == nil: // the first connection writes one of them
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

// states returns the states, best first.
func states() []string {
	return []string{schema.StateLive, schema.StateQuiet, schema.StateCatchingUp, schema.StateDraining, StateReconnecting, StateNever,
		StateStalled, schema.StateNoConsumer}
}

// summarize sets the totals from the streams: the worst value of each.
func (r *Report) summarize() {
	if len(r.Streams) == 0 {
		r.State = schema.StateNoConsumer
		return
	}
	order := states()
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

// Unreachable returns the report for a database that does not respond: nothing else
// is known.
func Unreachable(err error, features ...Feature) Report {
	r := Report{Status: Unhealthy, State: StateUnknown, Streams: []Stream{}, Queues: []schema.Depth{}, Conditions: []Condition{
		{Name: "WeirDatabaseDown", Severity: Critical, Message: "the database does not respond: " + err.Error(), Do: "weir doctor"},
	}}
	for _, f := range features {
		r.addFigures(f, Reading{})
	}
	return r
}

// SeenBy turns the report into that of one process that runs a consumer. If other
// processes hold all leases, its state is "waiting for the lease".
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

// Summary returns the status and the state, such as "healthy: live".
func (r Report) Summary() string { return r.Status + ": " + r.State }
