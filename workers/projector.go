package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Projector does for the worker of a projection what every one needs: it reads
// the records as they are stored now, under their locks, sets aside those that
// cannot be projected as dead letters, and counts.
type Projector struct {
	name    string
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *projectorMetrics
}

type projectorMetrics struct{ records, parked *prometheus.CounterVec }

func newProjectorMetrics(r prometheus.Registerer) *projectorMetrics {
	f := promauto.With(r)
	return &projectorMetrics{
		records: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_projector_records_total", Help: "Records projected, by projection."}, []string{"projection"}),
		parked: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_projector_dead_lettered_total",
			Help: "Records that could not be projected, set aside in dead_letters, by projection and cause: unreadable, panicked (a bug), or refused (by the database). Expect zero."},
			[]string{"projection", "cause"}),
	}
}

// Why a record is set aside, in metrics.
const (
	causeUnreadable = "unreadable"
	causePanicked   = "panicked"
	causeRefused    = "refused"
)

// errPanicked is in the error of a projection that panicked.
var errPanicked = errors.New("the projection panicked")

func newProjector(name string, pool *pgxpool.Pool, log *slog.Logger, metrics *projectorMetrics) *Projector {
	metrics.records.WithLabelValues(name)
	for _, cause := range []string{causeUnreadable, causePanicked, causeRefused} {
		metrics.parked.WithLabelValues(name, cause) // so that the first one is an increase
	}
	return &Projector{name: name, pool: pool, log: log, metrics: metrics}
}

// Apply writes what a projection makes of records, in their transaction: all that
// it writes of a record, whatever it wrote before, so that applying it twice
// changes nothing. It calls nobody else's service.
type Apply func(ctx context.Context, tx pgx.Tx, records []schema.Record) error

// Project calls apply with the records of a job that are stored, in one
// transaction that holds their locks: the stream can neither edit nor delete them
// until it ends. A record that is gone needs nothing: its rows in the projection's
// tables went with it. Where apply panics, or returns an error that is the fault of
// what it was given, the records are divided until the one at fault is alone; that
// one becomes a dead letter, and the others are projected. Any other error, such as
// the loss of the connection, is returned, and the job is tried again.
func (p *Projector) Project(ctx context.Context, job *rivertype.JobRow, records []jobs.Record, apply Apply) error {
	keys := make([]schema.Key, len(records))
	for i, r := range records {
		keys[i] = schema.Key(r)
	}
	return p.project(ctx, job, sortedKeys(keys), apply)
}

func (p *Projector) project(ctx context.Context, job *rivertype.JobRow, keys []schema.Key, apply Apply) error {
	if len(keys) == 0 {
		return nil
	}
	records, err := p.try(ctx, keys, apply)
	for try := 1; try <= 3 && schema.Classify(err) == schema.Transient && ctx.Err() == nil; try++ {
		records, err = p.try(ctx, keys, apply) // most often a deadlock's victim
	}
	switch {
	case err == nil:
		p.metrics.records.WithLabelValues(p.name).Add(float64(len(records)))
		return nil
	case !ofRecord(err) || ctx.Err() != nil:
		return err
	case len(keys) > 1:
		half := len(keys) / 2
		if err := p.project(ctx, job, keys[:half], apply); err != nil {
			return err
		}
		return p.project(ctx, job, keys[half:], apply)
	case len(records) == 0:
		return err // it failed without a record
	}
	return p.park(ctx, job, failure{Key: keys[0], rev: records[0].Rev, raw: records[0].Record, cause: err})
}

// try is the transaction.
func (p *Projector) try(ctx context.Context, keys []schema.Key, apply Apply) (records []schema.Record, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) (err error) {
		if records, err = schema.LockRecords(ctx, tx, keys); err != nil || len(records) == 0 {
			return err
		}
		defer p.recovered(&err)
		return apply(ctx, tx, records)
	})
	return records, err
}

// recovered makes an error of a panic: one record must not take the rest of the
// batch along. It is deferred.
func (p *Projector) recovered(err *error) {
	if r := recover(); r != nil {
		p.log.Error("projection_panic", "projection", p.name, "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("%w: %v", errPanicked, r)
	}
}

// ofRecord reports whether an error is the fault of a record: every error of the
// projection itself, and of the database those that refuse its data.
func ofRecord(err error) bool {
	_, cancelled := errors.AsType[*river.JobCancelError](err)
	_, snoozed := errors.AsType[*river.JobSnoozeError](err)
	switch {
	case cancelled, snoozed, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	}
	if _, ofDatabase := errors.AsType[*pgconn.PgError](err); ofDatabase {
		return schema.Classify(err) == schema.Data
	}
	return schema.Classify(err) != schema.Transient
}

// failure is a record that cannot be projected, and why.
type failure struct {
	schema.Key
	rev   string
	raw   []byte // the record; nil where the database refuses what is made of it
	cause error
}

// park makes a dead letter of a record. A dead letter that this job retries is
// open again.
func (p *Projector) park(ctx context.Context, job *rivertype.JobRow, f failure) error {
	cause := causeUnreadable
	switch {
	case errors.Is(f.cause, errPanicked):
		cause = causePanicked
	case schema.Classify(f.cause) == schema.Data:
		cause = causeRefused
	}
	p.metrics.parked.WithLabelValues(p.name, cause).Inc()
	jobLog(ctx, p.log).Warn("record_dead_lettered", "projection", p.name, "collection", f.Collection, "did", f.DID, "rkey", f.Rkey, "error", f.cause)
	retried, err := schema.RetriedBy(ctx, p.pool, job.ID, f.Key)
	if err != nil {
		return err
	}
	letter := schema.DeadLetter{ID: retried, Stage: schema.StageProcess, Projection: p.name, Key: f.Key, Rev: f.rev, Cause: f.cause.Error(), Raw: f.raw, At: time.Now()}
	return letter.Store(ctx, p.pool, "")
}

// sortedKeys are keys in the order in which they are locked, each once.
func sortedKeys(keys []schema.Key) []schema.Key {
	slices.SortFunc(keys, func(a, b schema.Key) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.DID, b.DID), cmp.Compare(a.Rkey, b.Rkey))
	})
	return slices.Compact(keys)
}
