package health

import (
	"context"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-social/weir/schema"
)

// Collector reads the metrics that are about the database rather than about one
// process: whoever is scraped tells them. Labels are streams, queues, stages,
// tables and our own processes: none of them is a stranger's word. While the database does not answer,
// weir_database_up is 0 and the others are missing, which is the truth. The limits
// are this process's own, and are always told.
type Collector struct {
	db     schema.DB
	now    func() time.Time
	limits Limits
	within time.Duration

	mu    sync.Mutex
	sizes []prometheus.Metric // read seldom: it asks the file system
	sized time.Time
}

// NewCollector reads from db, each time it is asked, for no longer than within.
func NewCollector(db schema.DB, limits Limits, within time.Duration) *Collector {
	return &Collector{db: db, now: time.Now, limits: limits.withDefaults(), within: within}
}

// sizesEvery is how long the sizes of tables are good for.
const sizesEvery = time.Minute

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

var (
	databaseUp     = desc("database_up", "1 where the database answered this scrape.")
	connected      = desc("stream_connected", "1 while a consumer is connected and reads. Its average over a day is the uptime.", "stream")
	leased         = desc("stream_leased", "1 while a consumer holds the stream's lease.", "stream")
	state          = desc("stream_state", "1 for the state that holds: live, quiet, catching_up, reconnecting, never_connected, stalled, paused_by_backpressure, no_consumer_is_running.", "stream", "state")
	stateSeconds   = desc("stream_state_seconds", "For how long the state has held.", "stream")
	lastEventAge   = desc("stream_last_event_age_seconds", "Since the last event committed happened. Grows while the network is quiet: look at the caught-up age.", "stream")
	caughtUpAge    = desc("stream_caught_up_age_seconds", "Since the stream was last known to have nothing unread.", "stream")
	lag            = desc("stream_lag_seconds", "How far behind the stream what is stored may be: the smaller of the last event's age and the caught-up age. Grows while nothing is read.", "stream")
	failedTries    = desc("stream_failed_tries", "Tries to connect that failed since the last event.", "stream")
	epoch          = desc("stream_epoch", "The epoch of the lease: how often it changed hands.", "stream")
	leaseInfo      = desc("stream_lease_info", "1, labelled with the process that holds the stream's lease now; none while nobody does.", "stream", "holder")
	follows        = desc("follows", "Accounts followed; 0 with the whole network.")
	queueJobs      = desc("queue_jobs", "Jobs by queue and state, those available and retryable counted up to 50,001, the others up to 10,001, which mean as many or more.", "queue", "state")
	queueOldest    = desc("queue_oldest_seconds", "For how long the job that waits longest could have been worked; 0 with none.", "queue")
	queuePaused    = desc("queue_paused", "1 while the queue is paused, in River UI for example.", "queue")
	gapsOpen       = desc("gaps_open", "Intervals of a stream that may have been missed and are not closed. Expect zero.")
	gapsUnclosable = desc("gaps_unclosable", "Of the open gaps, those that cannot be closed, as where the whole network is followed. Expect zero.")
	gapSeconds     = desc("gaps_open_seconds", "How long the open gaps are, together. Expect zero.")
	lettersNew     = desc("dead_letters_new", "Dead letters of the last ten minutes. Expect zero.")
	letters        = desc("dead_letters", "Dead letters that were neither replayed nor dismissed, by stage. Expect zero.", "stage")
	databaseBytes  = desc("database_bytes", "The database on disk.")
	tableBytes     = desc("table_bytes", "A table on disk, with its indexes and partitions.", "table")
	tableDeadRows  = desc("table_dead_rows", "Rows of a table that wait for vacuum. Without end: something holds an old snapshot open.", "table")
	auditAge       = desc("audit_age_seconds", "Since the last audit ended, or since there could have been one.")
	auditScore     = desc("audit_score", "The part of the posts that the last audit found as their authors have them. Expect one.")
	auditFaults    = desc("audit_faults", "Posts that the last audit found missing, extra or stale. Expect zero.", "fault")
	auditRecords   = desc("audit_records", "Posts that the last audit compared.")
	auditAccounts  = desc("audit_accounts", "Accounts that the last audit was to compare.")
	auditFailures  = desc("audit_failures", "Accounts that the last audit could not read.")
	lagLimit       = desc("lag_limit_seconds", "WEIR_LAG_LIMIT of this process: a stream further behind is critical.")
	queueLimit     = desc("queue_limit_jobs", "WEIR_QUEUE_LIMIT of this process: so many jobs of a queue may wait.")
	databaseLimit  = desc("database_limit_bytes", "WEIR_DATABASE_LIMIT of this process: so large may the database be.")
	auditLimit     = desc("audit_limit_seconds", "So old may the last audit be, by WEIR_AUDIT_INTERVAL of this process; +Inf where nobody audits.")
	conditionHolds = desc("condition", "1 while something is not well, by the words of /health.", "name", "severity")
)

// Describe says nothing beforehand: which streams and queues there are is data.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads and sends.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.within)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.sendLimits(gauge)
	r, err := Read(ctx, c.db, c.now(), c.limits)
	byStage, lettersErr := schema.CountDeadLetters(ctx, c.db)
	if err != nil || lettersErr != nil {
		gauge(databaseUp, 0)
		return
	}
	gauge(databaseUp, 1)
	for _, s := range r.Streams {
		gauge(connected, bit(s.Connected), s.Name)
		gauge(leased, bit(s.Holder != ""), s.Name)
		for _, word := range byWorth() {
			gauge(state, bit(s.State == word), s.Name, strings.ReplaceAll(word, " ", "_"))
		}
		gauge(stateSeconds, s.StateSince, s.Name)
		for d, v := range map[*prometheus.Desc]*float64{lastEventAge: s.LastEvent, caughtUpAge: s.CaughtUp, lag: s.Lag} {
			if v != nil {
				gauge(d, *v, s.Name)
			}
		}
		gauge(failedTries, float64(s.Failed), s.Name)
		gauge(epoch, float64(s.Epoch), s.Name)
		if s.Holder != "" {
			gauge(leaseInfo, 1, s.Name, s.Holder)
		}
	}
	for _, q := range r.Queues {
		gauge(queueJobs, float64(q.Available), q.Name, "available")
		gauge(queueJobs, float64(q.Running), q.Name, "running")
		gauge(queueJobs, float64(q.Retryable), q.Name, "retryable")
		gauge(queueJobs, float64(q.Scheduled), q.Name, "scheduled")
		gauge(queuePaused, bit(q.Paused), q.Name)
		oldest := 0.0
		if s := ago(q.Oldest, c.now()); s != nil {
			oldest = *s
		}
		gauge(queueOldest, oldest, q.Name)
	}
	gauge(follows, float64(r.FollowsCount))
	gauge(gapsOpen, float64(r.OpenGaps))
	gauge(gapsUnclosable, float64(r.Unclosable))
	gauge(gapSeconds, r.GapSeconds)
	gauge(lettersNew, float64(r.NewLetters))
	for _, s := range byStage {
		gauge(letters, float64(s.Count), s.Stage)
	}
	gauge(databaseBytes, float64(r.DatabaseBytes))
	sendAudit(r, gauge)
	seen := map[[2]string]bool{}
	for _, held := range r.Conditions {
		if key := [2]string{held.Name, held.Severity}; !seen[key] {
			seen[key] = true
			gauge(conditionHolds, 1, held.Name, held.Severity)
		}
	}
	for _, m := range c.tables(ctx) {
		out <- m
	}
}

// sendLimits tells where well ends, for the rules to compare with.
func (c *Collector) sendLimits(gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(lagLimit, c.limits.LagCritical.Seconds())
	gauge(queueLimit, float64(c.limits.Jobs))
	gauge(databaseLimit, float64(c.limits.Bytes))
	age := math.Inf(1)
	if c.limits.AuditAge >= 0 {
		age = c.limits.AuditAge.Seconds()
	}
	gauge(auditLimit, age)
}

// sendAudit tells what the last audit came to.
func sendAudit(r Report, gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(auditAge, r.AuditSecondsAgo)
	a := r.Audit
	if a == nil {
		return
	}
	if a.Score != nil {
		gauge(auditScore, *a.Score)
	}
	gauge(auditFaults, float64(a.Missing), schema.FaultMissing)
	gauge(auditFaults, float64(a.Extra), schema.FaultExtra)
	gauge(auditFaults, float64(a.Stale), schema.FaultStale)
	gauge(auditRecords, float64(a.Records))
	gauge(auditAccounts, float64(a.Accounts))
	gauge(auditFailures, float64(a.Failures))
}

// tables are the sizes, as they were a minute ago at most.
func (c *Collector) tables(ctx context.Context) []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.sized) < sizesEvery {
		return c.sizes
	}
	sizes, err := schema.TableSizes(ctx, c.db)
	if err != nil {
		return c.sizes
	}
	dead, err := schema.DeadRows(ctx, c.db)
	if err != nil {
		return c.sizes
	}
	c.sizes, c.sized = nil, c.now()
	for _, s := range sizes {
		c.sizes = append(c.sizes, prometheus.MustNewConstMetric(tableBytes, prometheus.GaugeValue, s.Value, s.Name))
	}
	for _, s := range dead {
		c.sizes = append(c.sizes, prometheus.MustNewConstMetric(tableDeadRows, prometheus.GaugeValue, s.Value, s.Name))
	}
	return c.sizes
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
