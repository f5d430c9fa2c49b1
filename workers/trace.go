package workers

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// traced writes the span that enqueues a job into the job's metadata, under
// traceparent, and processes the job in a child span. A job enqueued by SQL begins
// a new trace. Without a tracer, traced writes nothing.
type traced struct {
	river.MiddlewareDefaults
	tracer trace.Tracer
}

// newTraced creates spans with tracer; nil: none.
func newTraced(tracer trace.Tracer) *traced {
	return &traced{tracer: cmp.Or[trace.Tracer](tracer, noop.Tracer{})}
}

var (
	_ rivertype.JobInsertMiddleware = &traced{}
	_ rivertype.WorkerMiddleware    = &traced{}
)

// InsertMany is River's middleware around every insert.
func (m *traced) InsertMany(
	ctx context.Context, jobs []*rivertype.JobInsertParams, inner func(context.Context) ([]*rivertype.JobInsertResult, error),
) ([]*rivertype.JobInsertResult, error) {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if len(carrier) > 0 {
		for _, job := range jobs {
			job.Metadata = withTrace(job.Metadata, carrier)
		}
	}
	return inner(ctx)
}

// withTrace adds a span to a job's metadata, a JSON object. Other values stay
// unchanged.
func withTrace(metadata []byte, span map[string]string) []byte {
	fields := map[string]any{}
	if len(metadata) > 0 && json.Unmarshal(metadata, &fields) != nil {
		return metadata
	}
	for name, value := range span {
		fields[name] = value
	}
	added, err := json.Marshal(fields)
	if err != nil {
		return metadata
	}
	return added
}

// Work is River's middleware around a job.
func (m *traced) Work(ctx context.Context, job *rivertype.JobRow, inner func(context.Context) error) error {
	ctx = propagation.TraceContext{}.Extract(ctx, carrierOf(job.Metadata))
	ctx, span := m.tracer.Start(ctx, "job "+job.Kind, trace.WithSpanKind(trace.SpanKindConsumer))
	defer span.End()
	err := inner(ctx)
	if span.IsRecording() {
		outcome := outcomeOf(err)
		span.SetAttributes(attribute.String("weir.job.queue", job.Queue), attribute.Int64("weir.job.id", job.ID),
			attribute.Int("weir.job.attempt", job.Attempt), attribute.String("weir.job.outcome", outcome))
		if outcome == "failed" || outcome == "cancelled" {
			span.SetStatus(codes.Error, err.Error())
		}
	}
	return err
}

// carrierOf returns the span in a job's metadata.
func carrierOf(metadata []byte) propagation.MapCarrier {
	var span struct {
		Parent string `json:"traceparent"`
		State  string `json:"tracestate"`
	}
	if json.Unmarshal(metadata, &span) != nil || span.Parent == "" {
		return nil
	}
	return propagation.MapCarrier{"traceparent": span.Parent, "tracestate": span.State}
}
