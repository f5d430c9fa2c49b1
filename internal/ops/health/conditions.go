package health

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Severities of a condition.
const (
	Warning  = "warning"  // needs attention soon
	Critical = "critical" // Weir does not do its work
)

// Condition is a current problem. Its name is also the name of the alert in
// deploy/prometheus/weir.rules.yml and of the entry in docs/operations.md.
type Condition struct {
	Name      string `json:"name"`
	Severity  string `json:"severity"`
	Component string `json:"component,omitempty"` // the stream or queue; empty: all of Weir
	Message   string `json:"message"`             // what is wrong
	Do        string `json:"do"`                  // what to do or read first

	FireAfter time.Duration `json:"-"` // how long it must hold before its alert fires
}

// addCondition adds a condition. message is a format.
type addCondition func(name, severity, component, do, message string, args ...any)

// addConditions adds the conditions that follow from the report, and sets the
// status.
func (r *Report) addConditions(limits Limits) {
	fireAfter := FireAfter()
	add := func(name, severity, component, do, message string, args ...any) {
		r.Conditions = append(r.Conditions, Condition{
			Name: name, Severity: severity, Component: component, Message: fmt.Sprintf(message, args...), Do: do, FireAfter: fireAfter[name],
		})
	}
	if len(r.Streams) == 0 {
		add("WeirNoConsumer", Critical, "", "weir serve, or weir consume", "no consumer has ever run on this database")
	}
	for _, s := range r.Streams {
		since := Seconds(s.StateSince)
		switch {
		case s.State == schema.StateNoConsumer:
			add("WeirNoConsumer", Critical, s.Name, "weir serve, or weir consume", "no consumer reads stream %s", s.Name)
		case s.State == StateStalled:
			add("WeirNoEvents", Critical, s.Name, "weir status, and the log of "+s.Holder,
				"stream %s is connected, but nothing was committed for %s", s.Name, since)
		case (s.State == StateReconnecting || s.State == StateNever) && since > limits.Disconnected:
			add("WeirDisconnected", Critical, s.Name, "weir doctor", "stream %s has had no connection for %s: %s", s.Name, since,
				cmp.Or(s.Detail, "the cause is unknown"))
		}
		if s.Failed > limits.Tries {
			add("WeirReconnectsFail", Warning, s.Name, "weir doctor", "%d attempts to connect stream %s have failed in a row", s.Failed, s.Name)
		}
		if s.Lag != nil && s.State != schema.StateNoConsumer { // WeirNoConsumer covers it
			switch lag := Seconds(*s.Lag); {
			case lag > limits.LagCritical:
				add("WeirLagCritical", Critical, s.Name, "weir status: the queues, the state, the database", "stream %s is %s behind", s.Name, lag)
			case lag > limits.LagWarning:
				add("WeirLag", Warning, s.Name, "weir status", "stream %s is %s behind", s.Name, lag)
			}
			if late := Seconds(s.HostLag); late > limits.LagWarning {
				add("WeirHostLate", Warning, s.Name, "another host: WEIR_JETSTREAM or WEIR_RELAYS",
					"%s sends the events of stream %s %s after they were written",
					cmp.Or(s.Host, "the host"), s.Name, late)
			}
		}
	}
	r.addQueueConditions(limits, add)
	r.addDeadLetterConditions(limits, add)
	if r.OpenGaps > 0 {
		add("WeirGapOpen", Warning, "", "SELECT * FROM gaps WHERE closed_at IS NULL", "%s", r.gaps())
	}
	if r.DatabaseBytes > limits.Bytes {
		add("WeirDatabaseLarge", Warning, "", "WEIR_RETENTION, WEIR_COLLECTIONS, WEIR_DATABASE_LIMIT",
			"the database has %.1f GB, more than %.1f GB", float64(r.DatabaseBytes)/(1<<30), float64(limits.Bytes)/(1<<30))
	}
	r.addAuditConditions(limits, add)
	r.Conditions = append(r.Conditions, r.problems...)
	slices.SortStableFunc(r.Conditions, func(a, b Condition) int { return cmp.Compare(a.Severity, b.Severity) }) // critical before warning
	switch {
	case len(r.Conditions) > 0 && r.Conditions[0].Severity == Critical:
		r.Status = Unhealthy
	case len(r.Conditions) > 0, slices.ContainsFunc(r.Streams, func(s Stream) bool { return s.State == StateNever }):
		r.Status = Degraded
	default:
		r.Status = Healthy
	}
}

// addQueueConditions adds the conditions about queues of jobs.
func (r *Report) addQueueConditions(limits Limits, add addCondition) {
	for _, q := range r.Queues {
		if q.Available+q.Retryable > limits.Jobs { // scheduled jobs wait by design, such as a snoozed job or a feed to be read later
			message, do := fmt.Sprintf("%s jobs wait in queue %s",
				atLeast(q.Available+q.Retryable, max(q.Available, q.Retryable) > schema.CountedJobs), q.Name), "start more weir work processes"
			if q.Retryable > 0 {
				message += fmt.Sprintf(", %s of them failed and will be retried", atLeast(q.Retryable, q.Retryable > schema.CountedJobs))
				do += "; SELECT id, kind, errors[array_upper(errors, 1)] FROM river_job WHERE state = 'retryable' LIMIT 5"
			}
			add("WeirQueueDeep", Warning, q.Name, do, "%s", message)
		}
		if wait := Seconds(valueOf(ago(q.Oldest, r.at))); wait > unprocessedAfter && q.Running == 0 && !q.Paused {
			add("WeirQueueUnprocessed", Warning, q.Name, "weir work, or weir work --queues "+q.Name,
				"no process takes the jobs of queue %s: the first has waited for %s", q.Name, wait)
		}
		if q.Paused {
			add("WeirQueuePaused", Warning, q.Name, "resume it in River UI when you are done", "queue %s is paused", q.Name)
		}
	}
	if r.BackfillQueueDepth > limits.Backfills {
		add("WeirBackfillsWait", Warning, jobs.QueueBackfill, "weir backfill status; after a first start, wait until every feed is read",
			"%s feeds are waiting to be read", atLeast(r.BackfillQueueDepth, r.BackfillQueueDepth > schema.CountedOthers))
	}
}

// gaps describes the open gaps: how many there are, how many accounts have been
// compared, and why some cannot be closed.
func (r *Report) gaps() string {
	message := fmt.Sprintf("%s open, over %s", output.Count(r.OpenGaps, "gap is", "gaps are"), Seconds(r.GapSeconds))
	if r.GapAccounts > 0 {
		message += fmt.Sprintf("; %d of %d accounts have been compared", r.GapAccounts-r.GapWaiting, r.GapAccounts)
	}
	if r.Unclosable > 0 {
		message += fmt.Sprintf("; %d cannot be closed: %s", r.Unclosable, r.GapProblem)
	}
	return message
}

func (r *Report) addDeadLetterConditions(limits Limits, add addCondition) {
	if r.NewDeadLetters > limits.DeadLetters {
		add("WeirDeadLetters", Warning, "", "weir deadletter list", "%d dead letters within %s", r.NewDeadLetters, newWithin)
	}
	for _, c := range r.CollectionDeadLetters {
		if c.New > c.Most {
			add("WeirCollectionDeadLetters", Warning, c.Collections,
				"SELECT stage, cause, path, count(*) FROM dead_letters WHERE state = 'open' GROUP BY 1, 2, 3 ORDER BY 4 DESC",
				"%d dead letters of %s within %s, more than %d", c.New, c.Collections, newWithin, c.Most)
		}
	}
}

// addAuditConditions adds the conditions about the audits and their results.
func (r *Report) addAuditConditions(limits Limits, add addCondition) {
	if limits.AuditAge >= 0 && Seconds(r.AuditSecondsAgo) > limits.AuditAge {
		add("WeirAuditOld", Warning, "", "weir audit, and the log of the workers",
			"the posts have not been compared with their authors' repositories for %s", Seconds(r.AuditSecondsAgo))
	}
	a := r.Audit
	if a == nil {
		return
	}
	if 2*a.Failures > a.Accounts {
		add("WeirAuditFails", Warning, "", "SELECT * FROM audit_faults WHERE fault = 'unread'", "the last audit could not read %d of %d accounts",
			a.Failures, a.Accounts)
	}
	if a.Score != nil && *a.Score < limits.AuditScore {
		add("WeirAuditScore", Warning, "", "weir audit --repair, and SELECT * FROM audit_faults",
			"%d of %d posts do not match their authors' repositories: %d missing, %d extra, %d stale",
			a.Missing+a.Extra+a.Stale, a.Records, a.Missing, a.Extra, a.Stale)
	}
}

// unprocessedAfter is how long a job may wait in a queue in which nothing runs.
const unprocessedAfter = 5 * time.Minute

func valueOf(s *float64) float64 {
	if s == nil {
		return 0
	}
	return *s
}

// Seconds returns a number of seconds as a duration, without fractions.
func Seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

// atLeast formats a count. If more is set, it appends "or more".
func atLeast(n int64, more bool) string {
	if more {
		return fmt.Sprintf("%d or more", n)
	}
	return fmt.Sprint(n)
}
