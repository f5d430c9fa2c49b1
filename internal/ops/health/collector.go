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

// Collector exports the metrics that describe the database rather than one process,
// so every process exports the same values. Labels are streams, queues, stages,
// tables, configured collections and Weir's own processes, never text from the network. While the database
// does not respond, weir_database_up is 0 and the other metrics are missing. The
// limits of this process are always exported.
type Collector struct {
	db     schema.DB
	now    func() time.Time
	limits Limits
	within time.Duration

	features []Feature

	mu    sync.Mutex
	sizes []prometheus.Metric // cached: reading them accesses the file system
	sized time.Time
}

// NewCollector returns a collector that reads from db at each scrape, for at most
// the time within.
func NewCollector(db schema.DB, limits Limits, within time.Duration, features ...Feature) *Collector {
	return &Collector{db: db, now: time.Now, limits: limits.withDefaults(), within: within, features: features}
}

// sizesInterval is how long the sizes of tables are cached.
const sizesInterval = time.Minute

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_"+name, help, labels, nil)
}

var (
	databaseUp = desc("database_up", "1 if the database responded to this scrape.")
	connected  = desc("stream_connected", "1 while a consumer is connected and reads. Its average over a day is the uptime.", "stream")
	leased     = desc("stream_leased", "1 while a consumer holds the stream's lease.", "stream")
	state      = desc("stream_state",
		"1 for the current state: live, quiet, catching_up, reconnecting, never_connected, stalled, paused_by_backpressure, "+
			"no_consumer_is_running.", "stream", "state")
	stateSeconds = desc("stream_state_seconds", "How long the stream has been in its state.", "stream")
	lastEventAge = desc("stream_last_event_age_seconds",
		"Time since the last committed event happened. Grows while the network is quiet: see weir_stream_caught_up_age_seconds.", "stream")
	caughtUpAge = desc("stream_caught_up_age_seconds", "Time since the stream last had nothing unread.", "stream")
	lag         = desc("stream_lag_seconds",
		"How far the stored data is behind what was written: the smaller of the last event's age and the caught-up age, and how late the host "+
			"sent it. Grows while nothing is read.", "stream")
	hostLag = desc("stream_host_lag_seconds",
		"How long after they were written the host sent the last events, by the authors' clocks. Expect a few seconds.", "stream")
	failedTries = desc("stream_failed_tries", "Failed attempts to connect since the last event.", "stream")
	epoch       = desc("stream_epoch", "The epoch of the lease: how many times it has been taken.", "stream")
	leaseInfo   = desc("stream_lease_info",
		"1, labelled with the process that holds the stream's lease. Absent while no process holds it.", "stream", "holder")
	follows   = desc("follows", "Followed accounts; 0 if the whole network is followed.")
	queueJobs = desc("queue_jobs",
		"Jobs by queue and state. Counting stops at 50,001 for available and retryable jobs, and at 10,001 for the others.", "queue", "state")
	queueOldest    = desc("queue_oldest_seconds", "How long the oldest available job has been waiting; 0 if there is none.", "queue")
	queuePaused    = desc("queue_paused", "1 while the queue is paused, in River UI for example.", "queue")
	gapsOpen       = desc("gaps_open", "Open gaps: intervals of a stream that may have been missed. Expect zero.")
	gapsUnclosable = desc("gaps_unclosable",
		"Open gaps that cannot be closed, for example because the whole network is followed. Expect zero.")
	gapSeconds     = desc("gaps_open_seconds", "The total length of the open gaps. Expect zero.")
	deadLettersNew = desc("dead_letters_new",
		"Dead letters of the last ten minutes, of collections that have no limit of their own. Expect zero.")
	collectionNew = desc("collection_dead_letters_new",
		"Dead letters of the last ten minutes of collections that have a limit of their own.", "collections")
	collectionLimit = desc("collection_dead_letters_limit",
		"WEIR_DEAD_LETTER_LIMITS of this process: how many new dead letters these collections may have.", "collections")
	deadLetters    = desc("dead_letters", "Dead letters that were neither retried nor dismissed, by stage. Expect zero.", "stage")
	desynchronized = desc("desynchronized_accounts",
		"Accounts that must be compared with their repositories, because a commit of them could not be verified. At 10,000 no further ones "+
			"are marked. Expect zero after a while.")
	historyAccount = desc("history_accounts",
		"Accounts of the histories of collections, by state: waiting, done, unread (cannot be read for now) and limited (of done, those that "+
			"reached the limit of an account).", "collection", "state")
	historyRecords   = desc("history_records", "Records of the accounts that the history of a collection has read.", "collection")
	networkBackfills = desc("network_backfills_open",
		"Intervals, of gaps or on request, that are being read from the archive of a server.")
	networkLeft   = desc("network_backfill_left_seconds", "The total length of what is still to be read of these intervals.")
	networkUnread = desc("network_backfill_unread_seconds",
		"How long the archive could not be read, of the interval for which that is longest. Expect zero.")
	databaseBytes = desc("database_bytes", "The size of the database on disk.")
	tableBytes    = desc("table_bytes", "The size of a table on disk, with its indexes and partitions.", "table")
	tableDeadRows = desc("table_dead_rows",
		"Dead rows of a table that wait for vacuum. If they only grow, a transaction holds an old snapshot open.", "table")
	auditAge      = desc("audit_age_seconds", "Time since the last audit ended or, before the first, since one was possible.")
	auditScore    = desc("audit_score", "The share of the audited posts that match their authors' repositories. Expect one.")
	auditFaults   = desc("audit_faults", "Posts that the last audit found missing, extra or stale. Expect zero.", "fault")
	auditRecords  = desc("audit_records", "Posts that the last audit compared.")
	auditAccounts = desc("audit_accounts", "Accounts in the last audit.")
	auditFailures = desc("audit_failures", "Accounts that the last audit could not read.")
	lagLimit      = desc("lag_limit_seconds", "WEIR_LAG_LIMIT of this process: the lag at which a stream is critical.")
	queueLimit    = desc("queue_limit_jobs", "WEIR_QUEUE_LIMIT of this process: how many jobs of a queue may wait.")
	databaseLimit = desc("database_limit_bytes", "WEIR_DATABASE_LIMIT of this process: how large the database may be.")
	auditLimit    = desc("audit_limit_seconds",
		"How old the last audit may be, by WEIR_AUDIT_INTERVAL of this process; +Inf if audits are off.")
	conditionHolds = desc("condition", "1 for each condition that /health reports.", "name", "severity")
)

// Describe sends nothing, because the streams and queues are only known at the scrape.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads the database and sends the metrics.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.within)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.sendLimits(gauge)
	r, err := Read(ctx, c.db, c.now(), c.limits, c.features...)
	byStage, deadLettersErr := schema.CountDeadLetters(ctx, c.db)
	if err != nil || deadLettersErr != nil {
		gauge(databaseUp, 0)
		return
	}
	gauge(databaseUp, 1)
	for _, s := range r.Streams {
		gauge(connected, bit(s.Connected), s.Name)
		gauge(leased, bit(s.Holder != ""), s.Name)
		for _, word := range states() {
			gauge(state, bit(s.State == word), s.Name, strings.ReplaceAll(word, " ", "_"))
		}
		gauge(stateSeconds, s.StateSince, s.Name)
		for d, v := range map[*prometheus.Desc]*float64{lastEventAge: s.LastEvent, caughtUpAge: s.CaughtUp, lag: s.Lag} {
			if v != nil {
				gauge(d, *v, s.Name)
			}
		}
		gauge(hostLag, s.HostLag, s.Name)
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
	gauge(deadLettersNew, float64(r.NewDeadLetters))
	for _, n := range r.CollectionDeadLetters {
		gauge(collectionNew, float64(n.New), n.Collections)
	}
	for _, s := range byStage {
		gauge(deadLetters, float64(s.Count), s.Stage)
	}
	gauge(desynchronized, float64(r.Desynchronized))
	sendHistories(r, gauge)
	sendNetworkBackfills(r, gauge)
	gauge(databaseBytes, float64(r.DatabaseBytes))
	sendAudit(r, gauge)
	for _, f := range c.features {
		for _, figure := range f.Figures {
			if v := r.figures[figure.Name]; v != nil {
				gauge(desc(figure.Metric, figure.Help), *v)
			}
		}
	}
	seen := map[[2]string]bool{}
	for _, condition := range r.Conditions {
		if key := [2]string{condition.Name, condition.Severity}; !seen[key] {
			seen[key] = true
			gauge(conditionHolds, 1, condition.Name, condition.Severity)
		}
	}
	for _, m := range c.tables(ctx) {
		out <- m
	}
}

// sendLimits exports the limits, so that alerting rules can compare with them.
func (c *Collector) sendLimits(gauge func(*prometheus.Desc, float64, ...string)) {
	gauge(lagLimit, c.limits.LagCritical.Seconds())
	gauge(queueLimit, float64(c.limits.Jobs))
	gauge(databaseLimit, float64(c.limits.Bytes))
	for _, l := range c.limits.Collections {
		gauge(collectionLimit, float64(l.Most), l.Pattern)
	}
	age := math.Inf(1)
	if c.limits.AuditAge >= 0 {
		age = c.limits.AuditAge.Seconds()
	}
	gauge(auditLimit, age)
}

// sendHistories exports how far the past of collections has been read. Operators name these
// collections.
func sendHistories(r Report, gauge func(*prometheus.Desc, float64, ...string)) {
	for _, h := range r.Histories {
		gauge(historyAccount, float64(h.Accounts-h.Done-h.Unread), h.Collection, "waiting")
		gauge(historyAccount, float64(h.Done), h.Collection, "done")
		gauge(historyAccount, float64(h.Unread), h.Collection, "unread")
		gauge(historyAccount, float64(h.Limited), h.Collection, "limited")
		gauge(historyRecords, float64(h.Records), h.Collection)
	}
}

// sendNetworkBackfills exports how far archives of the network have been read.
func sendNetworkBackfills(r Report, gauge func(*prometheus.Desc, float64, ...string)) {
	var open int
	var left, unread time.Duration
	for _, b := range r.NetworkBackfills {
		if b.Open() {
			open++
			left += b.To.Sub(b.Rest())
			if b.UnreadSince != nil {
				unread = max(unread, r.at.Sub(*b.UnreadSince))
			}
		}
	}
	gauge(networkBackfills, float64(open))
	gauge(networkLeft, left.Seconds())
	gauge(networkUnread, unread.Seconds())
}

// sendAudit exports the result of the last audit.
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

// tables returns the sizes of the tables, at most a minute old.
func (c *Collector) tables(ctx context.Context) []prometheus.Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.sized) < sizesInterval {
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
