package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTracesWanted checks which settings enable traces, and that a setting that
// Weir does not support is an error.
func TestTracesWanted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env map[string]string
		on  bool
		err string
	}{
		"nothing":      {nil, false, ""},
		"an endpoint":  {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, true, ""},
		"its own":      {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:4318/v1/traces"}, true, ""},
		"the exporter": {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		"none":         {map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318"}, false, ""},
		"disabled":     {map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, false, ""},
		"another": {
			map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, false, `OTEL_TRACES_EXPORTER is "zipkin": expected otlp or none`,
		},
		"grpc": {
			map[string]string{"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, false, "expected http/protobuf",
		},
		"grpc, overruled": {map[string]string{
			"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
		}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on, err := tracesWanted(func(name string) string { return c.env[name] })
			require.Equal(t, c.on, on)
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}
