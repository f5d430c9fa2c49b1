package app

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachLineNamesItsComponent(t *testing.T) {
	t.Parallel()
	for function, want := range map[string]string{
		"github.com/weir-social/weir/consumer.(*Consumer).Run":             "consumer",
		"github.com/weir-social/weir/consumer/nostr.(*conn).notice.func1":  "consumer",
		"github.com/riverqueue/river/internal/leadership.(*Elector).Start": "river",
		"github.com/riverqueue/river.(*Client[...]).Start":                 "river",
		"main.run":                        "main",
		"net/http.(*Server).logf":         "net",
		"log.(*Logger).output":            "log",
		"go.opentelemetry.io/otel.Handle": "otel",
	} {
		require.Equal(t, want, componentOf(function), function)
	}
	for _, journaled := range []bool{false, true} {
		var out bytes.Buffer
		Config{}.loggerTo(&out, journaled).With("stream", "jetstream").Warn("late")
		require.Contains(t, out.String(), `"msg":"late","stream":"jetstream","component":"app"`)
	}
}
