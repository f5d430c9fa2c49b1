package consumer

import (
	"cmp"
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// traced calls persist in a span that begins with the arrival of the batch's first
// event. The span is the parent of the jobs that the commit enqueues.
func (c *committer) traced(ctx context.Context, b *batch) error {
	began := b.oldest
	if began.IsZero() {
		began = time.Now()
	}
	ctx, span := cmp.Or[trace.Tracer](c.Tracer, noop.Tracer{}).Start(ctx, "batch", trace.WithTimestamp(began))
	defer span.End()
	err := c.persist(ctx, b)
	if !span.IsRecording() {
		return err
	}
	span.SetAttributes(attribute.String("weir.stream", c.lease.Stream), attribute.Int("weir.events", b.count))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		return err
	}
	span.SetAttributes(attribute.Int("weir.stored", c.stored), attribute.Int64("weir.cursor", c.position.Cursor),
		attribute.String("weir.cursor_kind", c.position.CursorKind), attribute.String("weir.host", c.position.Host))
	return nil
}
