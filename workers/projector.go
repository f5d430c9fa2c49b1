package workers

import (
	"context"
	"errors"
	"fmt"
	"github.com/weir-social/weir/internal/bisect"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Projector is the common part of the workers of projections. It reads the current
// records under their locks, dead-letters those that cannot be projected, and
// counts both.
type Projector struct {
	name    string
	pool    *pgxpool.Pool
	log     *slog.Logger
	metrics *projectorMetrics
}

type projectorMetrics struct {
	records, deadLettered *prometheus.CounterVec
	stored                collection.Registry
}

func newProjectorMetrics(r prometheus.Registerer, stored collection.Registry) *projectorMetrics {
	f := promauto.With(r)
	return &projectorMetrics{
		stored: stored,
		records: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_projector_records_total", Help: "Records projected, by projection. " +
			"New posts that share nothing are ruled out when they are stored, and not counted."}, []string{"projection"}),
		deadLettered: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_projector_dead_lettered_total",
			Help: "Records that were dead-lettered, by projection, stage, collection and cause: unreadable, " +
				"panicked (a bug) or refused (by the database) at the stage process; invalid at the stages lexicon and rules; " +
				"missing at the stage reference. Expect zero."},
			[]string{"projection", "stage", "collection", "cause"}),
	}
}

// causesOf returns the causes of dead letters at a stage, in metrics.
func causesOf(stage string) []string {
	switch stage {
	case schema.StageProcess:
		return []string{causeUnreadable, causePanicked, causeRefused}
	case schema.StageReference:
		return []string{causeMissing}
	}
	return []string{causeInvalid}
}

// count counts a dead letter of a projection.
func (m *projectorMetrics) count(projection, stage, collection, cause string) {
	m.deadLettered.WithLabelValues(projection, stage, m.stored.Label(collection), cause).Inc()
}

// Stages names the further stages at which the projection dead-letters records. The metrics export zero for
// them, so that the first one is an increase.
func (p *Projector) Stages(stages ...string) {
	for _, stage := range stages {
		p.metrics.zero(p.name, stage)
	}
}

// Count counts a dead letter that the projection itself stores, at one of its stages.
func (p *Projector) Count(stage, collection string) {
	p.metrics.count(p.name, stage, collection, causesOf(stage)[0])
}

// Projected counts records that were projected.
func (p *Projector) Projected(records int) {
	p.metrics.records.WithLabelValues(p.name).Add(float64(records))
}

// Name returns the projection's name.
func (p *Projector) Name() string { return p.name }

// zero exports zero for the dead letters of a stage, so that the first one is an increase.
func (m *projectorMetrics) zero(projection, stage string) {
	for _, e := range m.stored.Entries() {
		for _, cause := range causesOf(stage) {
			m.deadLettered.WithLabelValues(projection, stage, e.Pattern, cause)
		}
	}
}

// Causes of dead letters, in metrics.
const (
	causeUnreadable = "unreadable"
	causePanicked   = "panicked"
	causeRefused    = "refused"
	causeInvalid    = "invalid"
	causeMissing    = "missing"
)

// errPanicked is wrapped by the error of a projection that panicked.
var errPanicked = errors.New("the projection panicked")

func newProjector(name string, pool *pgxpool.Pool, log *slog.Logger, metrics *projectorMetrics) *Projector {
	metrics.records.WithLabelValues(name)
	metrics.zero(name, schema.StageProcess)
	return &Projector{name: name, pool: pool, log: log, metrics: metrics}
}

// Apply writes the rows of a projection for records, in their transaction. It
// writes everything that it derives from a record, whatever was written before,
// so that applying it twice changes nothing. It must not call external services.
type Apply func(ctx context.Context, tx pgx.Tx, records []schema.Record) error

// Project calls apply with the job's stored records, in one transaction that
// holds their locks: the stream cannot edit or delete them until it ends.
// Deleted records are skipped: their rows in the projection's tables were
// deleted with them. If apply panics or returns an error caused by its input,
// the records are split until the one at fault is alone. That record becomes a
// dead letter, and the others are projected. Any other error, such as a lost
// connection, is returned, and the job is retried.
func (p *Projector) Project(ctx context.Context, job *rivertype.JobRow, records []jobs.Record, apply Apply) error {
	keys := make([]schema.Key, len(records))
	for i, r := range records {
		keys[i] = schema.Key(r)
	}
	return p.ProjectKeys(ctx, job, SortedKeys(keys), apply)
}

// ProjectKeys does what Project does, for keys in locking order.
func (p *Projector) ProjectKeys(ctx context.Context, job *rivertype.JobRow, keys []schema.Key, apply Apply) error {
	var records []schema.Record
	return bisect.Each(keys, func(keys []schema.Key) (err error) {
		records, err = p.try(ctx, keys, apply)
		for try := 1; try <= 3 && schema.Classify(err) == schema.Transient && ctx.Err() == nil; try++ {
			records, err = p.try(ctx, keys, apply) // usually this transaction was the victim of a deadlock
		}
		if err == nil {
			p.Projected(len(records))
		}
		return err
	}, func(err error) bool { return ofRecord(err) && ctx.Err() == nil }, func(key schema.Key, err error) error {
		if len(records) == 0 {
			return err // no record can be at fault
		}
		return p.DeadLetter(ctx, job, Failure{Key: key, Rev: records[0].Rev, Raw: records[0].Record, Cause: err})
	})
}

// try runs the transaction once.
func (p *Projector) try(ctx context.Context, keys []schema.Key, apply Apply) (records []schema.Record, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) (err error) {
		if records, err = schema.LockRecords(ctx, tx, keys); err != nil || len(records) == 0 {
			return err
		}
		defer p.Recovered(&err)
		return apply(ctx, tx, records)
	})
	return records, err
}

// Recovered turns a panic into an error, so that one record does not fail the
// whole batch. It must be deferred.
func (p *Projector) Recovered(err *error) {
	if r := recover(); r != nil {
		p.log.Error("projection_panic", "projection", p.name, "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("%w: %v", errPanicked, r)
	}
}

// ofRecord reports whether a record caused an error. This is so for all errors of
// the projection itself, and for database errors that refuse the data.
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

// Failure is a record that cannot be projected, and the cause.
type Failure struct {
	schema.Key
	Rev   string
	Raw   []byte // the record; nil if the database refuses the rows derived from it
	Cause error
}

// DeadLetter stores a record as a dead letter. A dead letter that this job
// retries is opened again.
func (p *Projector) DeadLetter(ctx context.Context, job *rivertype.JobRow, f Failure) error {
	cause := causeUnreadable
	switch {
	case errors.Is(f.Cause, errPanicked):
		cause = causePanicked
	case schema.Classify(f.Cause) == schema.Data:
		cause = causeRefused
	}
	p.metrics.count(p.name, schema.StageProcess, f.Collection, cause)
	JobLog(ctx, p.log).Warn("record_dead_lettered", "projection", p.name, "collection", f.Collection, "did", f.DID, "rkey", f.Rkey, "error",
		f.Cause)
	retried, err := schema.RetriedBy(ctx, p.pool, job.ID, f.Key)
	if err != nil {
		return err
	}
	letter := schema.DeadLetter{
		ID: retried, Stage: schema.StageProcess, Projection: p.name, Key: f.Key, Rev: f.Rev, Cause: f.Cause.Error(), Raw: f.Raw,
	}
	return letter.Store(ctx, p.pool, "")
}

// SortedKeys returns keys in locking order, each once.
func SortedKeys(keys []schema.Key) []schema.Key {
	slices.SortFunc(keys, schema.Key.Compare)
	return slices.Compact(keys)
}
