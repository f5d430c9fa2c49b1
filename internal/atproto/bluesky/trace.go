package bluesky

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// traced calls send in a span of the caller's trace. The trace's identity is not
// sent to the server.
func (c *Client) traced(ctx context.Context, h *host, r request) ([]byte, error) {
	ctx, span := c.cfg.Tracer.Start(ctx, "call "+r.call, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	body, err := c.send(ctx, h, r)
	if !span.IsRecording() {
		return body, err
	}
	span.SetAttributes(attribute.String("http.request.method", r.method), attribute.String("weir.host", h.origin),
		attribute.Int("weir.answer_bytes", len(body)))
	if err != nil {
		span.SetAttributes(attribute.String("weir.class", Classify(err).String()))
		span.SetStatus(codes.Error, err.Error())
	}
	return body, err
}
