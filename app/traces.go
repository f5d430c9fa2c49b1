package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// flushTimeout limits how long the last spans are sent when the process ends: the
// collector may hang.
const flushTimeout = 3 * time.Second

// StartTraces sends traces as the OTEL_ environment variables say, until stop is
// called. Without them it does nothing.
func StartTraces(ctx context.Context) (stop func(), err error) {
	on, err := tracesWanted(os.Getenv)
	if err != nil || !on {
		return func() {}, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "weir"), attribute.String("service.version", Version()),
			attribute.String("service.instance.id", owner())), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about))
	otel.SetTracerProvider(provider)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		provider.Shutdown(ctx) // the process ends anyway
	}, nil
}

// tracesWanted reports whether the environment requests traces. It returns an error
// if it requests a protocol or exporter that Weir does not support.
func tracesWanted(env func(string) string) (bool, error) {
	named := env("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
	switch exporter := env("OTEL_TRACES_EXPORTER"); {
	case env("OTEL_SDK_DISABLED") == "true", exporter == "none", exporter == "" && !named:
		return false, nil
	case exporter != "" && exporter != "otlp":
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: expected otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		switch env(name) {
		case "http/protobuf":
			return true, nil
		case "":
		default:
			return false, fmt.Errorf("%s is %q: expected http/protobuf, at the collector's port 4318", name, env(name))
		}
	}
	return true, nil
}

// logTraceErrors logs errors of the exporter at most once a minute: an unreachable
// collector must not fill the log.
func logTraceErrors(log *slog.Logger) {
	var last atomic.Int64
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		now := time.Now().Unix()
		if before := last.Load(); now-before >= 60 && last.CompareAndSwap(before, now) && !errors.Is(err, context.Canceled) {
			log.Warn("trace_export_failed", "error", err)
		}
	}))
}
